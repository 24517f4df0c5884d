"""What `toolkit serve` runs: engines, the proxy in front of them, and how they are warmed and watched, from TOML or a command line's words.

    folder = "data/serve"                # the top: logs, orders, what is to be known after a crash
    database = "data/toolkit.db"

    [[engine]]                           # one table for each server
    model = "Qwen/Qwen2.5-7B-Instruct"   # its name, where none is given: `Qwen2.5-7B-Instruct`
    preset = "throughput"                # its flags come first, those below go over them
    gpus = "0"
    key_env = "VLLM_API_KEY"             # keys stand in variables, never here
    ready = "30m"

    [engine.flags]                       # as `vllm serve` has them, without dashes
    max-model-len = 4096
    speculative-config = { method = "ngram", num_speculative_tokens = 3 }

    [warm]
    limit = "10m"

    [guard]
    stuck = "30s"

    [proxy]                              # the keys of `toolkit proxy --config`; `proxy = false`: none
    port = 8000

A port that is not named is the next free one when the stack starts. docs/settings.md is made from what stands here. It reads no file.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema

from toolkit.config_file import (
    DECLARED,
    Duration,
    FieldError,
    Number,
    OrNone,
    Port,
    Switch,
    Text,
    Variable,
    Whole,
    described,
    merged,
    name_in_file,
    record,
    toml_tables,
)
from toolkit.errors import ToolkitError
from toolkit.proxy.config import Host, Settings, UpstreamSetting, agreed
from toolkit.safe_text import printable
from toolkit.serving.presets import over as flags_over

Flags = Mapping[str, str | bool]
Preset = Callable[[str], Flags]
"""A preset's name -> its flags; raises ToolkitError for one that nobody knows."""

EXAMPLE = 'An engine is, e.g., `[[engine]]` and below it `model = "Qwen/Qwen2.5-7B-Instruct"`'
NOTHING: Mapping[str, Any] = MappingProxyType({})
FOLDER = "data/serve"
CACHE_FILE = "proxy-cache.db"
HIGHEST_PORT = 65535
SLOTS = ("a", "b")
"""Of two upstreams that stand for one engine, in turn."""
CHANGEABLE = ("model", "preset", "flags", "env", "served_name", "gpus", "vllm", "ready")
"""What a swap may change of an engine."""
OWN_FLAGS = {
    "host": "host",
    "port": "port",
    "served-model-name": "served_name",
    "model": "model",
    "api-key": "key_env",
}
"""Flags that a stack says with keys of its own, and those keys."""
KEY_VARIABLE = "VLLM_API_KEY"
"""In which vLLM looks for its key; the stack fills it from the engine's `key_env`."""


# --- kinds of values -------------------------------------------------------------------------------


def flag_name(word: str) -> str:
    """A flag as `vllm serve` has it, without dashes before it. Raises FieldError."""
    name = word.lstrip("-").replace("_", "-")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise FieldError(f"`{printable(word)}` is no flag", "E.g., `max-model-len`")
    if name in OWN_FLAGS:
        raise FieldError(
            f"`{name}` is said by another key here", f"Set the engine's `{OWN_FLAGS[name]}`"
        )
    return name


def _flags(value: object) -> tuple[tuple[str, str | bool], ...]:
    if not isinstance(value, Mapping):
        raise FieldError("is no table", "Write, e.g., `flags = { max-model-len = 4096 }`")
    return tuple((flag_name(key), _flag(key, each)) for key, each in value.items())


def _flag(key: str, value: object) -> str | bool:
    match value:
        case bool():
            return value
        case int() | float():
            return str(value)
        case str() if value.strip() and value.isprintable():
            return value
        case [_, *_] if all(isinstance(one, str | int | float) for one in value):
            return " ".join(map(str, value))
        case dict():
            with suppress(TypeError):  # a date
                return json.dumps(value)
    raise FieldError(
        f"`{printable(key)}` is not one line of text", 'Texts stand in quotes: `"..."`'
    )


def _env(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise FieldError("is no table", 'Write, e.g., `env = { HF_HOME = "/models" }`')
    for key, each in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise FieldError(f"`{printable(key)}` is no variable's name", "E.g., `HF_HOME`")
        if key == KEY_VARIABLE:
            raise FieldError(
                "holds a key, which stands in no file",
                f'`export {KEY_VARIABLE}=...`, and `key_env = "{KEY_VARIABLE}"` here',
            )
        # the system ends a variable at a zero byte, and takes none with one
        if type(each) not in (str, int, float) or "\0" in str(each):
            raise FieldError(f"`{key}` is not a text", 'Write, e.g., `"1"`')
    return tuple((key, str(each)) for key, each in value.items())


def _gpus(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    return value.replace(" ", "") if isinstance(value, str) else value


def _model(word: str) -> str:
    if word.startswith("-"):
        raise FieldError(f"`{word}` is no model", "Name one of Hugging Face's, or a directory")
    return word


def _rising(counts: tuple[int, ...]) -> tuple[int, ...]:
    if list(counts) != sorted(set(counts)):
        raise FieldError("does not rise from each to the next", "E.g., `[1, 2, 4, 8]`")
    return counts


def _table_or_false(value: object) -> object:
    if value is not False and not isinstance(value, Mapping):
        raise FieldError(
            "is neither a table nor false",
            "Write `[proxy]` and its keys below it, or `proxy = false`",
        )
    return None if value is False else value


def _or_false(part: dict[str, Any]) -> None:
    part["anyOf"][1] = {"const": False}


Kind = Literal["vllm", "tiny", "sim"]
"""`tiny`: a real vLLM on the CPU with a tiny random model. `sim`: the toolkit's simulator."""
Name = Annotated[
    str,
    Strict(),
    Field(pattern="^([A-Za-z0-9][A-Za-z0-9_.-]{0,62})?$"),
    described(
        "a name of up to 63 of A-Z, a-z, 0-9, `_`, `.` and `-`",
        "It stands in file names, metrics and logs; write, e.g., `qwen`",
    ),
]
FlagPairs = Annotated[
    tuple[tuple[str, str | bool], ...],
    BeforeValidator(_flags),
    WithJsonSchema({"type": "object", "x-allowed": "a table of flags and their values"}),
]
EnvPairs = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_env),
    WithJsonSchema({"type": "object", "x-allowed": "a table of variables and their values"}),
]
Gpus = Annotated[
    Text,
    BeforeValidator(_gpus),
    described(
        "numbers of GPUs, or a MIG slice's UUID",
        'Write, e.g., `gpus = "0,1"`',
        type=["string", "integer"],
    ),
]
Wait = Annotated[Duration, Field(ge=0.01, le=7 * 86400)]


# --- the stack -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """One inference server, on a port of its own, on this machine; one table for each. They share the proxy."""

    __pydantic_config__ = DECLARED

    name: Name = ""
    """In logs, metrics and orders; where none is given, the model's last word."""
    kind: Kind = "vllm"
    """`tiny`: a real vLLM on the CPU with a tiny random model. `sim`: the toolkit's simulator."""
    model: Annotated[Text, AfterValidator(_model)] = ""
    """A name at Hugging Face, or a directory; for `sim` the personality."""
    served_name: OrNone[Text] = None
    """What clients call the model."""
    port: Port = 0
    """0: the next free one, found when the stack starts."""
    spare_port: OrNone[Port] = 0
    """Where a successor starts that takes over without a gap; `none`: a swap has a gap."""
    host: Host = "127.0.0.1"
    """Where it listens."""
    flags: FlagPairs = ()
    """As `vllm serve` has them, without dashes; `true`: without a value, `false`: left out (`--no-...` where the engine has that)."""
    env: EnvPairs = ()
    """Further variables of its environment. Keys are never here: `key_env` names their variable."""
    gpus: OrNone[Gpus] = None
    """CUDA_VISIBLE_DEVICES: `0,1` or a MIG slice's UUID; by default as inherited."""
    key_env: OrNone[Variable] = None
    """The environment variable with the key that it wants of its clients, the proxy."""
    vllm: Text = "vllm"
    """The command that starts it: a name on the PATH, or a path."""
    ready_s: Wait = 1800.0
    """The longest wait until it is ready."""
    team: OrNone[Text] = None
    """Whose engine it is, where slices belong to teams."""
    preset: OrNone[Text] = None
    """A preset of `toolkit serve --preset`, whose flags come before `flags`."""

    @property
    def url(self) -> str:
        """Where it answers on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSetting:
    """What each engine is asked before clients are let in."""

    __pydantic_config__ = DECLARED

    concurrency: Annotated[
        tuple[Annotated[Whole, Field(ge=1, le=4096)], ...],
        Field(min_length=1, json_schema_extra={"x-hint": "Write, e.g., `[1, 2, 4, 8]`"}),
        AfterValidator(_rising),
    ] = (1, 2, 4, 8, 16, 32, 64)
    """Requests at once, in turn; cut at the engine's max-num-seqs."""
    profile: OrNone[Text] = None
    """Whose prompts: a blast profile of the catalog or a file; by default plain ones."""
    max_tokens: Annotated[Whole, Field(ge=1, le=100_000)] = 32
    """Of each answer."""
    stream: OrNone[Switch] = None
    """By default streams and whole answers."""
    structured: Switch = False
    """Answers that must be JSON, too."""
    long_prompts: Switch = False
    """Prompts near the limit, too."""
    tolerance: Annotated[
        Number, Field(gt=0, le=1, json_schema_extra={"x-hint": "A fifth is 0.2"})
    ] = 0.2
    """Two rounds agree when their median TTFT differ by less."""
    rounds: Annotated[Whole, Field(ge=1, le=100)] = 8
    """The most rounds of the last concurrency."""
    limit_s: Wait = 600.0
    """The longest that all of it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSetting:
    """When an engine is restarted, and when no more."""

    __pydantic_config__ = DECLARED

    look_s: Wait = 1.0
    """How often it is looked at."""
    stuck_s: Wait = 30.0
    """Requests run and nothing that the engine counts moved for so long: then it is asked for one token."""
    answer_s: Wait = 30.0
    """Time for that token. Only without it, and with nothing moved meanwhile either, it is stuck."""
    ask_s: Wait = 60.0
    """One that says it has nothing to do is asked for a token so often: an engine that froze idle still says so."""
    refused_s: Wait = 5.0
    """Connections were refused for so long."""
    backoff_s: Wait = 2.0
    """The first wait before a restart; doubles from one to the next."""
    backoff_most_s: Wait = 60.0
    """The longest."""
    restarts: Annotated[Whole, Field(ge=0, le=1000)] = 5
    """So many within `restarts_time` are a crash loop: it stays down."""
    restarts_s: Annotated[Wait, Field(validation_alias="restarts_time")] = 600.0
    """In which restarts are counted."""
    stop_s: Wait = 10.0
    """From SIGTERM to SIGKILL of the whole process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`toolkit serve FILE`, and `toolkit deploy KIND FILE`."""

    __pydantic_config__ = DECLARED

    engines: Annotated[tuple[EngineSetting, ...], Field(validation_alias="engine")] = ()
    proxy: Annotated[
        Settings | None,
        BeforeValidator(_table_or_false),
        Field(json_schema_extra=_or_false),
    ] = field(default_factory=Settings)
    """The proxy in front of them, with the keys of `toolkit proxy --config`. `false`: clients ask the engines themselves."""
    warm: WarmSetting = field(default_factory=WarmSetting)
    guard: GuardSetting = field(default_factory=GuardSetting)
    folder: Text = FOLDER
    """Logs, the socket for orders, and what is to be known after a crash."""
    database: OrNone[Text] = None
    """Events go there; where a file does not say, to the toolkit's own database."""
    preflight: Switch = True
    """The machine is checked first."""


# --- reading it ------------------------------------------------------------------------------------


def read(
    text: str,
    name: str,
    preset: Preset,
    over: Mapping[str, Any] = NOTHING,
    usual: Mapping[str, Any] = NOTHING,
) -> Stack:
    """The stack in a file's text; `name` is the file's in messages. `placed` gives it its ports.

    `over` are the command line's words at the top and for the proxy, `usual` what holds at the top where nobody says anything.
    Raises ToolkitError.
    """
    tables = {**usual, **toml_tables(text, name)}
    return drafted(tables, f"`{name}`", preset, text=text, over=over)


def drafted(
    tables: Mapping[str, Any],
    where: str,
    preset: Preset,
    *,
    text: str = "",
    over: Mapping[str, Any] = NOTHING,
) -> Stack:
    """The stack in a file's tables, or in what a command line says in their words."""
    if tables.get("proxy") is False and "proxy" in over:
        raise ToolkitError(
            f"the stack has `proxy = false`, and the command line sets its `{next(iter(over['proxy']))}`",
            "Leave one of them out",
        )
    folder = str(over.get("folder") or tables.get("folder") or FOLDER).rstrip("/")
    # The proxy's own default, `restart`, is for servers of others, which may come back as anything. What runs here was started by
    # the stack itself, with the very words of before; a swap to other words makes what was stored unreachable (swap.py), and so
    # does another model, version or setting that the engine shows by itself.
    cache = {"epoch": "change", "file": f"{folder}/{CACHE_FILE}"}
    stack = record(Stack, merged({"proxy": {"cache": cache}}, tables), where, text=text, over=over)
    if not stack.engines:
        raise ToolkitError(f"{where} names no engine", EXAMPLE)
    engines = []
    taken = [each.name for each in stack.engines if each.name]
    for number, engine in enumerate(stack.engines, start=1):
        if not engine.model and engine.kind != "tiny":
            raise ToolkitError(f"{where}: engine {number} has no `model`", EXAMPLE)
        if taken.count(engine.name) > 1:
            raise ToolkitError(f"{where}: the engine `{engine.name}` stands twice", "Rename one of them")  # fmt: skip
        flags = engine.flags
        if engine.preset is not None:
            flags = tuple(flags_over(preset(engine.preset), engine.flags).items())
        name = engine.name or _free_name(engine, taken)
        taken.append(name)
        engines.append(replace(engine, name=name, flags=flags))
    return replace(stack, engines=tuple(engines))


def _free_name(engine: EngineSetting, taken: Sequence[str]) -> str:
    """The model's last word, with a number where another engine has it."""
    last = (engine.served_name or engine.model or engine.kind).rstrip("/").rpartition("/")[2]
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", last).strip("-._")[:60] or engine.kind
    number, name = 1, word
    while name in taken:
        number += 1
        name = f"{word}-{number}"
    return name


def placed(stack: Stack, where: str, is_free: Callable[[str, int], bool]) -> Stack:
    """The stack with each engine on a port, and the proxy in front of them; `is_free` says whether nobody listens at (host, port)."""
    settings = stack.proxy
    named = [port for each in stack.engines for port in (each.port, each.spare_port) if port]
    if settings is not None:
        named += [port for port in (settings.port, settings.admin_port) if port]
    for port in named:
        if named.count(port) > 1:
            raise ToolkitError(f"{where}: port {port} is named twice", "Give each a port of its own")  # fmt: skip
    taken = set(named)
    first = (settings.port if settings is not None and settings.port else 8000) + 1

    def next_port(host: str) -> int:
        for port in range(first, HIGHEST_PORT + 1):
            if port not in taken and is_free(host, port):
                taken.add(port)
                return port
        raise ToolkitError(f"{where}: no port above {first - 1} is free", "Name each `port`")

    engines = [replace(each, port=each.port or next_port(each.host)) for each in stack.engines]
    if settings is None:
        # without a proxy clients know the port: a successor has to stand on the very same
        return replace(stack, engines=tuple(replace(each, spare_port=None) for each in engines))
    engines = [
        each if each.spare_port is None else replace(each, spare_port=each.spare_port or next_port(each.host))
        for each in engines
    ]  # fmt: skip
    if settings.admin_port is None and settings.port:
        settings = replace(settings, admin_port=next_port(settings.admin_host))
    settings = replace(settings, upstreams=(*upstreams(engines), *settings.upstreams))
    return replace(stack, engines=tuple(engines), proxy=agreed(settings, f"{where}: [proxy]"))


def upstreams(engines: Sequence[EngineSetting]) -> tuple[UpstreamSetting, ...]:
    """What the proxy asks: each engine, and the place of its successor."""
    return tuple(
        UpstreamSetting(
            name=upstream_name(engine.name, slot),
            url=replace(engine, port=port).url,
            key_env=engine.key_env,
        )
        for engine in engines
        for slot, port in zip(SLOTS, (engine.port, engine.spare_port), strict=True)
        if port is not None
    )


def upstream_name(engine: str, slot: str) -> str:
    """How the proxy calls one of an engine's two places, e.g., `qwen.a`."""
    return f"{engine}.{slot}"


def changed(
    setting: EngineSetting, told: Mapping[str, Any], preset: Preset, where: str
) -> EngineSetting:
    """An engine's successor: what is `told` in a file's words, the rest as it was.

    Another preset takes the place of all flags but those that are told beside it.
    """
    for key in told:
        if key not in CHANGEABLE:
            raise ToolkitError(
                f"{where}: unknown key `{printable(key)}`", f"Known keys: {', '.join(CHANGEABLE)}"
            )
    if setting.kind == "tiny" and "model" in told:
        raise ToolkitError(f"`{setting.name}` has the tiny model, and no other", "Change its flags")
    new = record(EngineSetting, told, where)
    values = {
        each.name: getattr(new, each.name)
        for each in fields(EngineSetting)
        if name_in_file(each.name) in told
    }
    flags = preset(new.preset) if new.preset is not None else dict(setting.flags)
    return replace(setting, **values | {"flags": tuple(flags_over(flags, new.flags).items())})


def turns(engines: Sequence[EngineSetting]) -> list[list[EngineSetting]]:
    """Groups of engines that share a GPU: within each only one may start at a time, as each measures how much is free."""
    groups: list[list[EngineSetting]] = []
    for engine in engines:
        near = [group for group in groups if any(_share_a_gpu(engine, each) for each in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(each for group in near for each in group), engine])
    return groups


def _share_a_gpu(one: EngineSetting, other: EngineSetting) -> bool:
    """One that names none takes what it inherits, which may be any."""
    if one.gpus is None or other.gpus is None:
        return one.kind == other.kind
    return not set(one.gpus.split(",")).isdisjoint(other.gpus.split(","))
