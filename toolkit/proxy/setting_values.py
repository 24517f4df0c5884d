"""Is one value of a settings file what its field takes? Each check returns the value or raises a ToolkitError that names the key.

What a field takes follows from its type and its unit in settings.py; its bounds stand here.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from toolkit import file_values as values
from toolkit import hosts, request_prompt
from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.proxy import media, routes
from toolkit.quantities import bytes_of
from toolkit.request_body import OWN

NONE = "none"
"""How a file says None."""
LONGEST_S = 3650 * 86400.0
LARGEST_BYTES = 2**50
SECONDS: dict[str, tuple[float, float]] = {
    "drain_s": (0.0, 3600.0),
    "redis_timeout_s": (0.001, 10.0),
    "redis_wait_s": (0.0, 3600.0),
    "look_s": (0.05, 60.0),
    "probe_s": (0.1, 600.0),
    # it doubles up to a minute
    "back_s": (0.1, 60.0),
}
"""Bounds of durations; of others a millisecond and ten years."""
BYTES = {"header_bytes": (1024, 16 * 2**20)}
"""Bounds of sizes; of others 1 and 1 PiB."""
NUMBERS = {
    "port": (0, 65535),
    "admin_port": (0, 65535),
    "workers": (1, 64),
    "retries": (0, 10),
    "queue": (0, 1_000_000),
    "priority": (-100, 100),
    "headers": (1, 10_000),
}
"""Bounds of whole numbers; of others 1 and a thousand million. Port 0 is any free one."""
NEVER_INERT = (
    OWN - {"stream"}
    | {*request_prompt.BEFORE, *request_prompt.TOOLS, *request_prompt.BESIDE, *request_prompt.PAIRS}
    | {"cache_salt", "response_format", "structured_outputs", "tool_choice", "stop", "logprobs"}
)
"""Fields that change the answer: to leave one out of the key would be a wrong hit."""
EXAMPLES = {
    "name": 'Write, e.g., `name = "red"`',
    "url": 'Write, e.g., `url = "http://10.0.0.4:8000"`',
}

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_UPSTREAM_LABEL = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9_.:\[\]-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_HOST_NAME = re.compile(r"[A-Za-z0-9.-]{1,253}")
_PATH = re.compile(r"(/[A-Za-z0-9_~.-]+)+")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
WILD = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not listened on

Reader = Callable[[Any, str], Any]


def value(record: type, field: str, told: Any, where: str) -> Any:
    """One value for a field of a record in settings.py; `where` names file and key."""
    hint = _hints(record)[field]
    if told == NONE and isinstance(told, str) and type(None) in get_args(hint):
        return None
    return _reader(record.__name__, field, hint)(told, where)


def example(field: str) -> str:
    """What a missing value may look like."""
    return EXAMPLES.get(field, f"Set `{field}`")


def is_visible(text: str) -> bool:
    """Whether it is ASCII without spaces: fit for a header."""
    return _VISIBLE.fullmatch(text) is not None


def same_host(one: str, other: str) -> bool:
    """Whether two addresses to listen on would meet on one port."""
    if one == other or not WILD.isdisjoint((one, other)):
        return True
    return "localhost" in (one, other) and hosts.is_loopback(one) and hosts.is_loopback(other)


def leads_to(url: str, host: str, port: int) -> bool:
    """Whether a URL is what listens on an address and port."""
    parts = urlsplit(url)
    own = parts.port or (443 if parts.scheme == "https" else 80)
    if own != port or parts.hostname is None:
        return False
    if parts.hostname == host:
        return True
    return hosts.is_loopback(parts.hostname) and (host in WILD or hosts.is_loopback(host))


@lru_cache(maxsize=16)
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _reader(record: str, field: str, hint: Any) -> Reader:
    """What reads a field: by its name where that says more than its type."""
    by_name = BY_NAME.get(f"{record}.{field}") or BY_NAME.get(field)
    if by_name is not None:
        return by_name
    if field.endswith("_env"):
        return values.variable
    if field.endswith("_s"):
        low, high = SECONDS.get(field, (0.001, LONGEST_S))
        return lambda told, where: values.duration(told, where, low, high)
    if field.endswith("_bytes"):
        least, most = BYTES.get(field, (1, LARGEST_BYTES))
        return lambda told, where: _size(told, where, least, most)
    return _by_type(field, hint)


def _by_type(field: str, hint: Any) -> Reader:
    kinds = [kind for kind in _kinds(hint) if kind is not type(None)]
    if kinds == [bool]:
        return values.switch
    if kinds == [int]:
        least, most = NUMBERS.get(field, (1, 1_000_000_000))
        return lambda told, where: values.whole(told, where, least, most)
    if get_origin(kinds[0]) is Literal:
        return lambda told, where: values.choice(told, where, get_args(kinds[0]))
    assert kinds == [str], f"settings.py has a new kind of field: {field}"
    return values.one_line


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _size(told: Any, where: str, low: int, high: int) -> int:
    try:
        size = bytes_of(told) if isinstance(told, str) else told
    except OverflowError:  # hundreds of digits
        size = None
    if isinstance(size, bool) or not isinstance(size, int):
        raise ToolkitError(
            f"{where} is no size", "Write, e.g., `512MiB` or `8GiB`, or a number of bytes"
        )
    if not low <= size <= high:
        raise ToolkitError(f"{where} is not from {low:,} to {high:,} bytes", "Write, e.g., `64MiB`")
    return size


def _label(told: Any, where: str) -> str:
    return _fitting(told, _LABEL, where, "Up to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`, e.g., `red`")


def _upstream_label(told: Any, where: str) -> str:
    hint = "Up to 128 of A-Z, a-z, 0-9, `_`, `.`, `:` and `-`, e.g., `gpu-1`"
    return _fitting(told, _UPSTREAM_LABEL, where, hint)


def _fitting(told: Any, pattern: re.Pattern[str], where: str, hint: str) -> str:
    if not isinstance(told, str) or not pattern.fullmatch(told):
        raise ToolkitError(f"{where} is no good label: it stands in metrics and logs", hint)
    return told


def _url(told: Any, where: str) -> str:
    if not isinstance(told, str) or not told.isprintable() or " " in told:
        raise ToolkitError(f"{where} is no URL", EXAMPLES["url"])
    url = hosts.base_url(told, where)
    if urlsplit(url).path:
        raise ToolkitError(
            f"{where}: `{url}` has a path",
            "Name the server alone; clients' paths are sent as they are",
        )
    return url


def _host(told: Any, where: str) -> str:
    if isinstance(told, str) and (_is_address(told) or _HOST.fullmatch(told)):
        return told
    raise ToolkitError(
        f"{where} is no address",
        "Write, e.g., `127.0.0.1`, `::1` or `0.0.0.0`; the port has a key of its own",
    )


def _share(told: Any, where: str) -> float:
    found = checks.share(told, where)
    if found is None:
        raise ToolkitError(f"{where} is not a number from 0 to 1", "One in a hundred is 0.01")
    return found


def _replay(told: Any, where: str) -> str | float:
    if told in ("instant", "original") and isinstance(told, str):
        return told
    rate = checks.number(told)
    if rate is None or not 0 < rate <= 1_000_000:
        raise ToolkitError(
            f"{where} is neither `instant`, `original` nor a number of tokens/s up to 1,000,000",
            'Write, e.g., `replay = "original"` or `replay = 50`',
        )
    return rate


def _inert(told: Any, where: str) -> frozenset[str]:
    for name in _texts(told, where):
        if name in NEVER_INERT:
            raise ToolkitError(
                f"{where}: `{name}` changes the answer", "Name only fields that don't, e.g., `user`"
            )
    return frozenset(told)


def _paths(told: Any, where: str) -> tuple[str, ...]:
    for path in _texts(told, where):
        if not _PATH.fullmatch(path) or not {".", ".."}.isdisjoint(path.split("/")):
            raise ToolkitError(
                f"{where}: `{checks.shown(path)}` is no plain path", "Write, e.g., `/tokenize`"
            )
        if path in routes.NEVER:
            raise ToolkitError(
                f"{where}: `{path}` is never forwarded: it changes what all others are answered",
                "Call it on the upstream itself",
            )
        if path in routes.ANSWERS or path in routes.PASSED:
            raise ToolkitError(f"{where}: `{path}` is forwarded already", "Leave it out")
        if path in routes.OWN or path in routes.PUBLIC:
            raise ToolkitError(f"{where}: `{path}` is the proxy's own page", "Leave it out")
    return tuple(told)


def _media_hosts(told: Any, where: str) -> tuple[str, ...]:
    for host in _texts(told, where):
        if host != media.ANY and not _HOST_NAME.fullmatch(host):
            raise ToolkitError(
                f"{where}: `{checks.shown(host)}` is no host's name",
                "Write, e.g., `images.example.com`, without a scheme or port; `*` is any",
            )
    return tuple(host.lower() for host in told)


def _texts(told: Any, where: str) -> list[str]:
    if not isinstance(told, list) or not all(isinstance(one, str) and one for one in told):
        raise ToolkitError(f"{where} is no list of texts", 'Write, e.g., `["a", "b"]`')
    if len(set(told)) < len(told):
        raise ToolkitError(f"{where} names one thing twice", "Keep one of them")
    return told


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


BY_NAME: dict[str, Reader] = {
    "UpstreamSetting.name": _upstream_label,
    "TeamSetting.name": _label,
    "pool": _label,
    "url": _url,
    "host": _host,
    "admin_host": _host,
    "verify_share": _share,
    "replay": _replay,
    "inert": _inert,
    "paths": _paths,
    "media_hosts": _media_hosts,
}
