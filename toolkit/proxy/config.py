"""The settings of a proxy: what may be said, within which limits, and whether it goes together. It reads text, never a file or a variable.

    port = 8000                          # the top: what is no part of a table below
    drain = "30s"
    keys_file = "proxy-keys.txt"         # lines `TEAM KEY`

    [[upstream]]                         # one table for each
    url = "http://10.0.0.4:8000"         # its name, where none is given: `10.0.0.4:8000`
    key_env = "VLLM_API_KEY"             # keys stand in variables, never here

    [[team]]
    name = "red"
    concurrency = 8

    [cache]
    ttl = "1h"                           # or "none": without end
    memory = "256MiB"
    file_size = "2GiB"

    [admission]
    first_token = "2m"

docs/settings.md is made from what stands here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from toolkit import hosts
from toolkit.config_file import (
    DECLARED,
    Bytes,
    Count,
    Duration,
    FieldError,
    Number,
    OrNone,
    Port,
    Seconds,
    Size,
    Switch,
    Text,
    Variable,
    Whole,
    described,
    record,
    toml_tables,
)
from toolkit.errors import ToolkitError
from toolkit.protocol.request import BEFORE, BESIDE, OWN, PAIRS, TOOLS
from toolkit.proxy import media, routes
from toolkit.safe_text import printable

MIB = 2**20
COMMAND_LINE = "the command line"
WILD = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not listened on
NEVER_INERT = (
    OWN - {"stream"}
    | {*BEFORE, *TOOLS, *BESIDE, *PAIRS}
    | {"cache_salt", "response_format", "structured_outputs", "tool_choice", "stop", "logprobs"}
)
"""Fields that change the answer: to leave one out of the key would be a wrong hit."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_PATH = re.compile(r"(/[A-Za-z0-9_~.-]+)+")
_VISIBLE = re.compile(r"[\x21-\x7e]+")


# --- kinds of values -------------------------------------------------------------------------------


def _url(value: object) -> str:
    example = 'Write, e.g., `url = "http://10.0.0.4:8000"`'
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise FieldError("is no URL", example)
    try:
        url = hosts.base_url(value, "")
    except ToolkitError as error:
        raise FieldError(error.message, error.hint) from None
    if urlsplit(url).path:
        raise FieldError(
            f"`{url}` has a path", "Name the server alone; clients' paths are sent as they are"
        )
    return url


def _host(value: str) -> str:
    try:
        ip_address(value)
    except ValueError:
        if not _HOST.fullmatch(value):
            raise FieldError(
                "is no address",
                "Write, e.g., `127.0.0.1`, `::1` or `0.0.0.0`; the port has a key of its own",
            ) from None
    return value


def _path(path: str) -> str:
    if not _PATH.fullmatch(path) or not {".", ".."}.isdisjoint(path.split("/")):
        raise FieldError(f"`{printable(path)}` is no plain path", "Write, e.g., `/tokenize`")
    if path in routes.NEVER:
        raise FieldError(
            f"`{path}` is never forwarded: it changes what all others are answered",
            "Call it on the upstream itself",
        )
    if path in routes.ANSWERS or path in routes.PASSED:
        raise FieldError(f"`{path}` is forwarded already", "Leave it out")
    if path in routes.OWN or path in routes.PUBLIC:
        raise FieldError(f"`{path}` is the proxy's own page", "Leave it out")
    return path


def _pace(value: object) -> object:
    if value == "original" and isinstance(value, str):
        raise FieldError(
            "`original` is a pace no more",
            "Leave it out, and stored streams are sent at once; or write tokens/s, e.g., `replay = 50`",
        )
    return value


def _inert(name: str) -> str:
    if name in NEVER_INERT:
        raise FieldError(
            f"`{name}` changes the answer", "Name only fields that don't, e.g., `user`"
        )
    return name


def _media_host(host: str) -> str:
    if host != media.ANY and not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
        raise FieldError(
            f"`{printable(host)}` is no host's name",
            "Write, e.g., `images.example.com`, without a scheme or port; `*` is any",
        )
    return host.lower()


def _no_twins(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise FieldError("names one thing twice", "Keep one of them")
    return values


Policy = Literal["all", "declared", "off"]
Label = Annotated[
    str,
    Strict(),
    Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"),
    described(
        "a label: up to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`",
        "It stands in metrics and logs; write, e.g., `red`",
    ),
]
UpstreamLabel = Annotated[
    str,
    Strict(),
    Field(pattern=r"^([A-Za-z0-9\[][A-Za-z0-9_.:\[\]-]{0,127})?$"),
    described(
        "a label: up to 128 of A-Z, a-z, 0-9, `_`, `.`, `:` and `-`",
        "It stands in metrics and logs; write, e.g., `gpu-1`",
    ),
]
Url = Annotated[
    str,
    BeforeValidator(_url),
    described("a server's address", 'Write, e.g., `url = "http://10.0.0.4:8000"`'),
]
Host = Annotated[Text, AfterValidator(_host), described("an address or a name", "Write `0.0.0.0`")]
Path = Annotated[
    str, Strict(), AfterValidator(_path), described("a path", 'Write, e.g., `["/tokenize"]`')
]
MediaHost = Annotated[
    str,
    Strict(),
    AfterValidator(_media_host),
    described("a host's name", 'Write, e.g., `["images.example.com"]`'),
]
Inert = Annotated[
    str, Strict(), AfterValidator(_inert), described("a field's name", 'Write, e.g., `["user"]`')
]
Queue = Annotated[Whole, Field(ge=0, le=1_000_000)]


# --- the settings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSetting:
    """A server that answers what is not stored; one table for each."""

    __pydantic_config__ = DECLARED

    name: UpstreamLabel = ""
    """In logs and metrics; the address, where none is given."""
    url: Url
    """Its address, without a path, e.g., `http://127.0.0.1:8001`."""
    key_env: OrNone[Variable] = None
    """The environment variable that holds its API key."""
    concurrency: OrNone[Count] = None
    """The most requests of ours at a time."""
    fallback: Switch = False
    """Asked only when none of the others can be."""
    model: OrNone[Text] = None
    """For a fallback: asked for instead of the request's own model."""
    probes: OrNone[Switch] = None
    """Its /metrics and /health are read, and a token is asked for when it seems stuck. By default all but fallbacks are probed, whose
    tokens may cost money."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.url.partition("://")[2])

    @property
    def is_watched(self) -> bool:
        """Whether it is looked at beside the requests that it answers."""
        return not self.fallback if self.probes is None else self.probes


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSetting:
    """Who may ask, and how much at a time; one table for each. Without any, everybody may, without a key, and all share the answers."""

    __pydantic_config__ = DECLARED

    name: Label
    """In logs and metrics, and in a file of keys."""
    key_env: OrNone[Variable] = None
    """The environment variable with its API key; the other way is `keys_file`."""
    concurrency: OrNone[Count] = None
    """The most requests upstream at a time; over one Redis, of all proxies on it together."""
    queue: OrNone[Queue] = None
    """The most requests that wait for one of these slots; by default as `admission.queue`."""
    priority: Annotated[Whole, Field(ge=-100, le=100)] = 0
    """Who waits with a higher one is served first."""
    max_prompt_tokens: OrNone[Count] = None
    """Longer prompts are refused."""
    max_output_tokens: OrNone[Count] = None
    """Requests for more are refused."""
    pool: OrNone[Label] = None
    """Teams with one pool share their stored answers; without one a team shares with nobody."""
    policy: OrNone[Policy] = None
    """As `cache.policy`, for this team."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSetting:
    """What is stored, where, and for how long."""

    __pydantic_config__ = DECLARED | {
        "json_schema_extra": {
            "x-gone": {"verify_share": "Leave it out: stored answers are not asked again"}
        }
    }

    policy: Policy = "all"
    """`all`: every complete answer; `declared`: to requests with temperature 0 or a seed; `off`: nothing."""
    ttl_s: OrNone[Seconds] = 3600.0
    """How long an answer is given again."""
    memory_bytes: Bytes = 256 * MIB
    """For answers in memory."""
    file: OrNone[Text] = "data/proxy-cache.db"
    """Answers that survive a restart, and that workers share."""
    file_bytes: Annotated[Bytes, Field(validation_alias="file_size")] = 2048 * MIB
    """The most that file grows to."""
    redis_env: OrNone[Variable] = None
    """The environment variable with the address of a Redis that several proxies share (it may hold a password)."""
    redis_timeout_s: Annotated[Duration, Field(ge=0.001, le=10)] = 0.03
    """The longest wait for that Redis."""
    redis_wait_s: Annotated[Duration, Field(ge=0, le=3600)] = 30.0
    """The longest wait while another proxy asks for the same answer; then this one asks, too."""
    max_answer_bytes: Bytes = 16 * MIB
    """Longer answers are not stored."""
    replay: Annotated[
        Literal["instant"] | Annotated[Number, Field(gt=0, le=1_000_000)], BeforeValidator(_pace)
    ] = "instant"
    """How fast a stored stream is sent: at once, or so many tokens a second."""
    epoch: Literal["restart", "change"] = "restart"
    """What makes stored answers unreachable: any restart of the upstream, or only another model, version or settings."""
    inert: frozenset[Inert] = frozenset()
    """Top-level fields of requests that are known not to change the answer, e.g., `user`, `metadata`."""
    longest_flight_s: OrNone[Seconds] = None
    """A call under way for so long is joined by no further request."""
    obeys_upstream: Switch = True
    """An answer with `Cache-Control: no-store` or `private`, or `Vary: *`, is not stored. `false`: stored all the same, e.g., in a
    contest behind a gateway that sends them with everything."""
    asks_usage: Switch = True
    """A stream's usage is asked for, so that it can be shown as a whole body, too; clients that didn't ask don't see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSetting:
    """How many at a time, who waits, and until when."""

    __pydantic_config__ = DECLARED

    concurrency: OrNone[Count] = None
    """Calls upstream at a time, all teams together."""
    queue: Queue = 1024
    """The most that wait, all teams together."""
    wait_s: Seconds = 30.0
    """The longest wait for a slot; what cannot be served in time is rejected before it waits. For an engine that is started, too."""
    first_token_s: OrNone[Seconds] = 120.0
    """The longest wait for the first token, once sent upstream (prefill)."""
    token_gap_s: OrNone[Seconds] = 60.0
    """The longest gap between two reads of an answer (decode)."""
    whole_s: OrNone[Seconds] = 600.0
    """The longest time for a whole answer."""
    max_prompt_tokens: OrNone[Count] = None
    """Longer prompts are refused."""
    max_output_tokens: OrNone[Count] = None
    """Requests for more are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSetting:
    """How upstreams are chosen and given up."""

    __pydantic_config__ = DECLARED

    affinity: Switch = False
    """Equal beginnings of prompts go to one upstream, as long as it is not much fuller than the others."""
    look_s: Annotated[Duration, Field(ge=0.05, le=60)] = 1.0
    """How often each upstream's /metrics is read."""
    stuck_s: Seconds = 4.0
    """Requests run and no token came for so long: it is asked for one token."""
    probe_s: Annotated[Duration, Field(ge=0.1, le=600)] = 3.0
    """As long may that take; then the upstream is left."""
    back_s: Annotated[Duration, Field(ge=0.1, le=60)] = 5.0
    """The first wait before one that was left is tried again; doubles up to a minute."""
    retries: Annotated[Whole, Field(ge=0, le=10)] = 1
    """Other upstreams tried before the first byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSetting:
    """What one client may cost before it is understood."""

    __pydantic_config__ = DECLARED

    header_bytes: Annotated[Size, Field(validation_alias="header_size", ge=1024, le=16 * MIB)] = (
        64 * 1024
    )
    """The longest head of a request."""
    headers: Annotated[Whole, Field(ge=1, le=10_000)] = 100
    """The most headers in it."""
    body_bytes: Annotated[Bytes, Field(validation_alias="body_size")] = 32 * MIB
    """The longest body."""
    held_bytes: Bytes = 256 * MIB
    """Of bodies that come and of those that wait for their answer, all clients together."""
    header_s: Annotated[Seconds, Field(validation_alias="header_time")] = 10.0
    """The longest time that a head may take."""
    body_s: Annotated[Seconds, Field(validation_alias="body_time")] = 60.0
    """The longest time that a body may take; one that brings 64 KiB a second may take longer."""
    idle_s: Seconds = 75.0
    """A connection without a request is closed after so long."""
    stall_s: Seconds = 60.0
    """A client that reads nothing of its answer for so long is let go."""
    connections: Count = 10_000
    """The most connections at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSetting:
    """What is told of each request, and where."""

    __pydantic_config__ = DECLARED

    log: OrNone[Text] = None
    """A file of JSON lines; `-` for standard output."""
    log_prompts: Switch = False
    """Prompts stand in that log, too."""
    database: OrNone[Text] = None
    """Each request is stored in this database, as `toolkit capture` does."""
    metrics_on_port: OrNone[Switch] = None
    """/metrics and /version on the clients' port, too; by default where no team has a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`toolkit proxy --config FILE`, and `[proxy]` of a stack."""

    __pydantic_config__ = DECLARED

    upstreams: Annotated[tuple[UpstreamSetting, ...], Field(validation_alias="upstream")] = ()
    host: Host = "127.0.0.1"
    """Where clients are taken; `0.0.0.0`: from everywhere."""
    port: Port = 8000
    """For clients; 0: any free one."""
    admin_host: Host = "127.0.0.1"
    """Where the admin's pages are asked for."""
    admin_port: OrNone[Port] = None
    """For /metrics, /state, /purge, /explain and /drain; by default the next one above `port` that is no upstream's."""
    workers: Annotated[Whole, Field(ge=1, le=64)] = 1
    """Processes that answer hits; one of them makes all calls upstream."""
    teams: Annotated[tuple[TeamSetting, ...], Field(validation_alias="team")] = ()
    keys_file: OrNone[Text] = None
    """A file of lines `TEAM KEY`, readable by its owner alone."""
    paths: Annotated[tuple[Path, ...], AfterValidator(_no_twins)] = ()
    """Further paths to be forwarded, uncached."""
    media_hosts: Annotated[tuple[MediaHost, ...], AfterValidator(_no_twins)] = ()
    """Where a server may fetch images, videos and sounds from that a request names; `*`: anywhere. Data that comes along may always."""
    drain_s: Annotated[Duration, Field(ge=0, le=3600)] = 30.0
    """How long requests under way may take when the proxy ends."""
    cache: CacheSetting = field(default_factory=CacheSetting)
    admission: AdmissionSetting = field(default_factory=AdmissionSetting)
    routing: RoutingSetting = field(default_factory=RoutingSetting)
    front: FrontSetting = field(default_factory=FrontSetting)
    tell: TellSetting = field(default_factory=TellSetting)


# --- reading them ----------------------------------------------------------------------------------


def read(text: str, name: str, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in a file's text, and the command line's `flags` over them; `name` is the file's in messages.

    Without a file the text is empty. A flag is called as in a file, a table's after a dot: `{"port": 8001, "cache.ttl": "10m",
    "upstream": ["URL", "NAME=URL"]}`; None and an empty list were not given, a list that was replaces the file's. Raises ToolkitError.
    """
    over: dict[str, Any] = {}
    for flag, given in (flags or {}).items():
        if given is None or given in ((), []):
            continue
        table, dot, key = flag.rpartition(".")
        (over.setdefault(table, {}) if dot else over)[key] = given
    if "upstream" in over:
        # `URL` or `NAME=URL`
        named = [each.partition("=") for each in over["upstream"]]
        over["upstream"] = [
            {"name": name, "url": url}
            if equals and "/" not in name
            else {"url": f"{name}{equals}{url}"}
            for name, equals, url in named
        ]
    where = f"`{name}`" if text else COMMAND_LINE
    settings = record(Settings, toml_tables(text, name), where, text=text, over=over)
    if not settings.upstreams:
        raise ToolkitError(
            f"{where} names no upstream" if text else "no upstream is named",
            'An upstream is, e.g., `[[upstream]]` and below it `url = "http://10.0.0.4:8000"`, or give `--upstream URL`',
        )
    return agreed(settings, where)


def agreed(settings: Settings, where: str) -> Settings:
    """The same settings, if they go together; else a ToolkitError."""
    for problem, hint in _conflicts(settings):
        raise ToolkitError(f"{where}: {problem}", hint)
    return settings


def _conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """What does not go together, and the way out of each."""
    upstreams, teams, keys_file = settings.upstreams, settings.teams, settings.keys_file
    for what, named in (
        ("the upstream's name", [each.name for each in upstreams]),
        ("the upstream", [each.url for each in upstreams]),
        ("the team", [each.name for each in teams]),
        ("the teams' variable", [each.key_env for each in teams if each.key_env is not None]),
    ):
        for name, count in Counter(named).items():
            if count > 1:
                yield f"{what} `{name}` stands twice", "Keep one of them, or rename one"
    if all(each.fallback for each in upstreams):
        yield "every upstream is a fallback", "Let one be the first choice: without `fallback`"
    for each in upstreams:
        if each.model is not None and not each.fallback:
            # its answers would be stored as the other model's
            problem = f"upstream `{each.name}` has a `model` and is no fallback"
            yield problem, "Set `fallback = true`, or let clients ask for that model"

    if keys_file is not None and not teams:
        yield "`keys_file` is set and there is no team", 'Add `[[team]]` with `name = "..."`'
    for team in teams:
        if keys_file is None and team.key_env is None:
            hint = 'Add `key_env = "VARIABLE"` to it, or `keys_file` at the top'
            yield f"team `{team.name}` has no key", hint

    host, own_port, admin = settings.host, settings.port, admin_port(settings)
    if admin > 65535:
        yield "no port is above `port` for the admin", "Set `admin_port`"
    both = {host, settings.admin_host}
    is_one_host = len(both) == 1 or not WILD.isdisjoint(both)
    is_one_host |= "localhost" in both and all(map(hosts.is_loopback, both))
    if admin and admin == own_port and is_one_host:
        yield f"`port` and `admin_port` are both {admin}", "Give each a port of its own"
    for each in upstreams:
        for address, port, does, key in (
            (host, own_port, "listens", "port"),
            (settings.admin_host, admin, "has its admin", "admin_port"),
        ):
            if port and _leads_to(each.url, address, port):
                problem = f"upstream `{each.name}` is where this proxy {does}, `{each.url}`"
                yield problem, f"Set another `{key}`"

    if settings.front.held_bytes < settings.front.body_bytes:
        hint = "One body of that size could never be taken; all unfinished ones together need more room"
        yield "`front.held` is less than `front.body_size`", hint


def admin_port(settings: Settings) -> int:
    """Where the admin listens: the next port above the clients' at which no upstream is asked; 0: any free port."""
    if settings.admin_port is not None:
        return settings.admin_port
    if not settings.port:
        return 0
    port = settings.port + 1
    while any(_leads_to(each.url, settings.admin_host, port) for each in settings.upstreams):
        port += 1
    return port


def _leads_to(url: str, host: str, port: int) -> bool:
    """Whether a URL is what listens on an address and port."""
    parts = urlsplit(url)
    own = parts.port or (443 if parts.scheme == "https" else 80)
    if own != port or parts.hostname is None:
        return False
    if parts.hostname == host:
        return True
    return hosts.is_loopback(parts.hostname) and (host in WILD or hosts.is_loopback(host))


def checked(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of all variables that upstreams and Redis name; raises for one that is not set or can't be sent.

    The teams' are keyring's.
    """
    named = [(each.key_env, f"the key of upstream `{each.name}`") for each in settings.upstreams]
    values = {}
    for variable, what in (*named, (settings.cache.redis_env, "the address of Redis")):
        if variable is None:
            continue
        values[variable] = value = environ.get(variable, "").strip()
        if not value:
            raise ToolkitError(f"`{variable}`, {what}, is not set", f"`export {variable}=...`")
        if not _VISIBLE.fullmatch(value):
            raise ToolkitError(
                f"`{variable}`, {what}, holds a space or what is no ASCII",
                "Set it anew, without quotes in it",
            )
    return values
