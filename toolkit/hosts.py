"""hosts.txt -> Host: which servers the toolkit may talk to. It reads text, never a file or a network."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from toolkit.errors import ToolkitError
from toolkit.records import Host

DEFAULT_PORT = 8000
"""vLLM's own default."""

EXAMPLE = "Put one host per line, e.g., `alice http://10.0.0.4:8000 team=red`"
KEYS = ("team", "model", "root", "max_model_len", "api_key_env", "note")
_PAGE = re.compile(
    r"/v1/(models|(chat/)?completions|embeddings)$|^/(metrics|health|version|tokenize)$"
)
"""The path of an engine's own page. `/team/models` and `/v1/account/openai` may be where a server stands."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and what stands for a byte that is no UTF-8."""


def read_hosts(text: str, source: str) -> list[Host]:
    """Read a hosts file's text; `source` is its name in messages.

    Raises ToolkitError on the first bad line, with its number, on a name or URL that stands twice,
    and on a file that names no host.
    """
    names: dict[str, Host] = {}
    urls: dict[str, Host] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        words = _words(line)
        if words:
            where = f"`{source}` line {number}: "
            host = _host(words, where)
            _refuse_twin(host, names, urls, where)
            names[host.name] = urls[host.url] = host
    if not names:
        raise ToolkitError(f"`{source}` names no host", EXAMPLE)
    return list(names.values())


def one_host(url: str) -> Host:
    """Make the Host for a URL or address named on the command line."""
    return _host([url], "")


def looks_like_url(word: str) -> bool:
    """Tell a URL or `address:port` on the command line from a file's name."""
    return "://" in word or bool(
        re.fullmatch(r"(\d+\.\d+\.\d+\.\d+|localhost|\[[^\]]+\])(:\d+)?|[\w.-]+:\d+", word)
    )


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def same_origin(url: str, other: str) -> bool:
    """Whether two URLs reach the same server; ValueError when one has no valid port."""
    return _server(url) == _server(other)


def _server(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _words(line: str) -> list[str]:
    """Split a line into words; `#` starts a comment at the line's start or after a space."""
    return re.sub(r"(^|\s)#.*", "", line).split()


def _host(words: list[str], where: str) -> Host:
    if _UNPRINTABLE.search(" ".join(words)):
        # not repeated: it would do to the screen here what it does in the table
        raise ToolkitError(f"{where}a control character stands in it", "Type the line anew")
    assigned = re.match(r"([^\s=/]+) ?= ?([^\s=]+)", " ".join(words))
    if assigned and assigned[1] not in KEYS and looks_like_url(assigned[2]):
        base_url(assigned[2], where)  # refuses what the hint must not repeat, e.g., a password
        raise ToolkitError(
            f"{where}`=` stands between a name and its URL",
            f"Write `{assigned[1]} {assigned[2]}`",
        )
    plain = [word for word in words if not _is_option(word)]
    options = _options([word for word in words if _is_option(word)], where)
    if words[: len(plain)] != plain:
        # `note=two words`: the second word is no option and no host
        raise ToolkitError(
            f"{where}`{plain[-1]}` stands after an option",
            "Options hold no spaces; write `note=two-words`",
        )
    if len(plain) not in (1, 2):
        raise ToolkitError(
            f"{where}expected `URL` or `NAME URL`, found {len(plain)} words", EXAMPLE
        )
    if len(plain) == 2 and looks_like_url(plain[0]):
        base_url(plain[0], where)
        if "://" in plain[0] and looks_like_url(plain[1]):
            raise ToolkitError(f"{where}two URLs on one line", EXAMPLE)
        # a host may be called by its address
        if not looks_like_url(plain[1]):
            raise ToolkitError(
                f"{where}the name `{plain[1]}` stands after its URL",
                f"Write `{plain[1]} {plain[0]}`",
            )
    url = base_url(plain[-1], where)
    # with the path: one address may serve several engines
    return Host(
        name=plain[0] if len(plain) == 2 else url.partition("://")[2],
        url=url,
        max_model_len=_tokens(options.pop("max_model_len", None), where),
        **options,
    )


def _is_option(word: str) -> bool:
    """`key=value`, but not a URL that has a `=` in it."""
    return "=" in word and "://" not in word.split("=", 1)[0]


def _options(words: Iterable[str], where: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        key, value = word.split("=", 1)
        if not key:
            raise ToolkitError(
                f"{where}`=` stands after a space", "Options hold no spaces: `team=red`"
            )
        if key not in KEYS:
            raise ToolkitError(
                f"{where}unknown option `{key}`",
                f"Known options: {', '.join(KEYS)}; a name stands alone before the URL",
            )
        if not value:
            raise ToolkitError(f"{where}`{key}=` has no value", EXAMPLE)
        if key in options:
            raise ToolkitError(f"{where}`{key}=` stands twice", "Keep one of them")
        options[key] = value
    if not _VARIABLE.fullmatch(options.get("api_key_env", "_")):
        # never print the word: whoever mistakes this option writes the key itself there
        raise ToolkitError(
            f"{where}`api_key_env=` is not the name of an environment variable",
            "Put the key into a variable and its name here, e.g., `api_key_env=ALICE_KEY`",
        )
    return options


def _tokens(word: str | None, where: str) -> int | None:
    if word is None:
        return None
    if not re.fullmatch(r"0*[1-9][0-9]{0,11}", word):
        raise ToolkitError(
            f"{where}`max_model_len=` is not a whole number of tokens",
            "Write it out, e.g., `max_model_len=32768`",
        )
    return int(word)


def base_url(word: str, where: str) -> str:
    """Complete an address: `10.0.0.4` means `http://10.0.0.4:8000`. A URL keeps its own port; `where` begins its error."""
    given = "://" in word
    try:
        parts = urlsplit(word if given else f"http://{word}")
        hostname, port = parts.hostname, parts.port
    except ValueError as error:  # half an IPv6 bracket, a port past 65535
        raise _not_a_url(word, where) from error
    if parts.scheme not in ("http", "https") or not hostname or port == 0:
        raise _not_a_url(word, where)
    if parts.username is not None:
        raise ToolkitError(f"{where}the URL carries a user or password", "Use `api_key_env=NAME`")
    if parts.query or parts.fragment:
        raise ToolkitError(f"{where}`{word}` has a `?` or `#` part", "Give the base URL only")
    base, path = f"{parts.scheme}://{_netloc(hostname, port, given=given)}", parts.path.rstrip("/")
    if page := _PAGE.search(path):
        raise ToolkitError(
            f"{where}`{word}` is the address of a page, not of a server",
            f"Drop the path: `{base}{path[: page.start()]}`",
        )
    # often pasted with its `/v1`; the paths we ask for start before it
    return base + re.sub(r"/v1$", "", path).rstrip("/")


def path_hint(url: str) -> str:
    """What to add where a server's own pages are not found: its address has a path, which may be none of its own."""
    path = urlsplit(url).path
    return f"; drop the path `{path}` unless the server stands below it" if path else ""


def _not_a_url(word: str, where: str) -> ToolkitError:
    """Name the address without the user and password that may stand in it."""
    what = f"`{word.rpartition('@')[2]}` is not an http or https URL with a valid port"
    # not a hosts file's line: settings and stacks hold addresses, too
    return ToolkitError(f"{where}{what}", "Write it like `http://10.0.0.4:8000`, or `10.0.0.4`")


def _netloc(hostname: str, port: int | None, *, given: bool) -> str:
    host = f"[{hostname}]" if ":" in hostname else hostname
    if port is None:
        return host if given else f"{host}:{DEFAULT_PORT}"
    return f"{host}:{port}"


def _refuse_twin(
    host: Host, names: Mapping[str, Host], urls: Mapping[str, Host], where: str
) -> None:
    if host.name in names:
        raise ToolkitError(
            f"{where}the name `{host.name}` stands twice", "Give each host its own name"
        )
    if host.url in urls:
        raise ToolkitError(
            f"{where}`{host.url}` stands twice", f"It is `{urls[host.url].name}` already"
        )
