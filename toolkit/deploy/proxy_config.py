"""The proxy's settings for a place where engines have other addresses: a stack's `[proxy]` -> the TOML of `toolkit proxy --config`.

Nothing of it is lost but what can't be true there: addresses, files of this machine. It opens nothing, and keys stay names of variables.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolkit.deploy.containers import ANYWHERE
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Site, SiteProxy
from toolkit.deploy.templating import render
from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback

STATE = "/var/lib/toolkit"
"""The folder inside the container that the proxy may write to."""
Tables = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFile:
    """Settings as a file's text, and what others must know of them."""

    text: str
    has_public_metrics: bool
    """The clients' port has /metrics, too."""
    slots: int | None
    """Calls upstream at a time, all engines together; None: no limit."""


def proxy_file(site: Site, proxy: SiteProxy, urls: Mapping[str, str]) -> ProxyFile:
    """The settings with each engine of the site at its place in `urls`. Raises ToolkitError for what can't go along."""
    told = _told(site)
    _refuse_keys_file(told)
    own = told.pop("upstream", [])
    _refuse_loopback(own)
    engines = [
        {"name": each.name, "url": urls[each.name]}
        | ({} if each.key_env is None else {"key_env": each.key_env})
        for each in site.engines
    ]
    listening = {
        "host": ANYWHERE,
        "port": proxy.port,
        # reached from inside the container alone: whoever may ask it may empty the cache
        "admin_host": "127.0.0.1",
        "admin_port": proxy.admin_port,
    }
    tables = told | listening | {"cache": _cache(told), "upstream": [*engines, *own]}
    if "tell" in told:
        tables["tell"] = _tell(told["tell"])
    is_public = told.get("tell", {}).get("metrics_on_port", not told.get("team"))
    return ProxyFile(
        text=toml(tables),
        # "none" is the proxy's own choice: where no team has a key
        has_public_metrics=not told.get("team") if is_public == "none" else is_public,
        slots=_slots(told),
    )


def whole_file(site: Site, file: ProxyFile, templates: Mapping[str, str]) -> str:
    """The settings below the lines that say where they come from."""
    return render(
        templates["proxy.toml.j2"],
        language="shell",
        stack_file=site.stack_file,
        settings=Plain(file.text),
    )


def toml(tables: Mapping[str, Any]) -> str:
    """A file's text: bare values first, then tables, then lists of tables."""
    return "".join(f"{line}\n" for line in _lines(tables))


def _told(site: Site) -> Tables:
    """`[proxy]` as the stack's file has it; nothing where it does not say."""
    told = tomllib.loads(site.stack_text.removeprefix("\ufeff")).get("proxy", {})
    return dict(told) if isinstance(told, dict) else {}


def _cache(told: Tables) -> Tables:
    """As `serve` has it: answers outlive a restart of an engine whose model, version and settings are the same."""
    cache = {"epoch": "change", **told.get("cache", {})}
    if cache.get("file") != "none":
        cache["file"] = f"{STATE}/proxy-cache.db"
    return cache


def _tell(tell: Tables) -> Tables:
    """A container's log is its standard output; a database lies beside the cache."""
    found = dict(tell)
    if found.get("log", "none") != "none":
        found["log"] = "-"
    if found.get("database", "none") != "none":
        found["database"] = f"{STATE}/proxy.db"
    return found


def _slots(told: Tables) -> int | None:
    slots = told.get("admission", {}).get("concurrency")
    return slots if isinstance(slots, int) else None


def _refuse_keys_file(told: Tables) -> None:
    if told.get("keys_file", "none") != "none":
        raise ToolkitError(
            "`[proxy]` has a `keys_file`, and no secret leaves this machine in a file",
            'Give each `[[proxy.team]]` a `key_env = "VARIABLE"` instead',
        )


def _refuse_loopback(upstreams: list[Tables]) -> None:
    for each in upstreams:
        host = urlsplit(str(each.get("url"))).hostname or ""
        if is_loopback(host):
            raise ToolkitError(
                f"the upstream `{each.get('url')}` is this machine, and inside a container another one",
                "Name it by an address that containers reach",
            )


def _lines(tables: Mapping[str, Any]) -> Iterator[str]:
    for key, value in tables.items():
        if not isinstance(value, dict) and not _is_list_of_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        entries = [value] if isinstance(value, dict) else value if _is_list_of_tables(value) else []
        head = f"[{_key(key)}]" if isinstance(value, dict) else f"[[{_key(key)}]]"
        for entry in entries:
            yield ""
            yield head
            for name, inner in entry.items():
                yield f"{_key(name)} = {_value(inner)}"


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else _text(name)


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    raise ToolkitError(f"`[proxy]` holds `{value}`, which is no setting", "Leave it out")


def _text(text: str) -> str:
    """A basic string, in ASCII: JSON's escapes, but that a character above U+FFFF is one escape, not two halves."""
    return '"' + "".join(map(_character, text)) + '"'


def _character(one: str) -> str:
    if ord(one) > 0xFFFF:
        return f"\\U{ord(one):08x}"
    # DEL is the one control character that JSON lets stand
    return "\\u007f" if one == "\x7f" else json.dumps(one)[1:-1]
