"""A sweep's file: which configurations, under which load, how often, and what to look at. It reads text, never a file.

summary = "Three quantizations of one model"
look_at = ["output_tokens_per_s", "ttft_p95_ms"]   # the first decides which one is best
blocks = 5                                         # A B C A B C ...: what drifts meets all of them alike
how = "one at a time"                              # or "grid": every lever with every other
profile = "contest"                                # of the catalog, or a file; or a table [profile] like such a file
stage = "quantization"                             # how the lever is called that [[configurations]] are values of

[load]                                             # as the options of `toolkit blast`
users = 64
duration = "60s"
settle = "10s"                                     # users come evenly so long, and it does not count

[base]                                             # what all configurations have in common
model = "Qwen/Qwen3.5-35B-A3B-FP8"                 # `toolkit serve` runs it; or: url = "http://10.0.0.4:8000"
flags = {max-model-len = "512"}                    # of vLLM
sim = "fp8"                                        # the simulator's personality, for `--sim`
settings = {time_scale = 0.1}                      # of the simulator

[[configurations]]                                 # models, tried first; each changes the base
name = "fp8"
[[levers]]                                         # then these, around the best of them
name = "batch"
values = [{name = "16", flags = {max-num-seqs = 16}}, {name = "64", flags = {max-num-seqs = 64}}]

[plan]                                             # what cannot fit is skipped
gpu = "a100-80gb"
[asking]                                           # structured output: how often is the answer no valid JSON?
requests = 40
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from toolkit.errors import ToolkitError
from toolkit.file_values import choice, switch, whole
from toolkit.improve.configurations import How, Lever, Serving, Value
from toolkit.profile_checks import refuse_unknown, shown, word
from toolkit.profiles import read_profile
from toolkit.quantities import seconds_of

SWEEP_KEYS = (
    *("summary", "look_at", "blocks", "how", "profile", "stage", "warm"),
    *("load", "base", "configurations", "levers", "plan", "asking", "profiles"),
)
LOAD_KEYS = (
    *("users", "duration", "settle", "rate", "mix", "max_tokens", "canaries", "timeout"),
    *("processes", "start"),
)
SERVING_KEYS = (
    *("sim", "settings", "model", "tiny", "flags", "env", "gpus", "vllm", "url", "key_env"),
    *("served_name", "quantization", "profile", "asked"),
)
PLAN_KEYS = ("gpu", "gpus", "model")
ASKING_KEYS = ("requests", "concurrency", "max_tokens", "prompts", "schema")
ASKED = ("schema", "json", "words")
MOST_BLOCKS = 100
MOST = 1_000_000
"""Of users, requests, tokens: beyond any that one machine could send."""
EXAMPLE = (
    'A lever is, e.g., `[[levers]]` and below it `name = "batch"` and `values = [{name = "16", flags = '
    "{max-num-seqs = 16}}]`; the head of toolkit/improve/sweep_file.py holds a whole sweep"
)
LOOK_AT = ("output_tokens_per_s", "rps", "ttft_p95_ms", "e2e_p95_ms", "error_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The evaluator's own load; None: as `toolkit blast` has it."""

    duration_s: float = 60.0
    settle_s: float = 5.0
    """Its first seconds, in which users come evenly; they do not count."""
    users: int = 32
    rate: float | None = None
    """Requests a second, whatever answers take."""
    mix: int | None = None
    max_tokens: int | None = None
    canaries: float = 0.0
    """Per cent. None are needed: who serves is known."""
    timeout_s: float = 60.0
    processes: int = 1
    start_s: float | None = None
    """How long a start takes, for `--dry-run`; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Requests for JSON, sent after the load, whose answers are parsed."""

    requests: int = 40
    concurrency: int = 4
    max_tokens: int = 300
    prompts: tuple[str, ...]
    schema: str
    """JSON Schema, as JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """All that a sweep's file says."""

    name: str
    summary: str = ""
    look_at: tuple[str, ...] = LOOK_AT
    blocks: int = 3
    how: How = "one at a time"
    profile: str = "contest"
    """One of `profiles`, else the catalog's name or a file."""
    profiles: tuple[tuple[str, str], ...] = ()
    """Those that stand in the file itself: name and text, as TOML."""
    stage: str = "configuration"
    warm: bool = True
    load: Load = field(default_factory=Load)
    base: Serving = field(default_factory=Serving)
    configurations: tuple[Value, ...] = ()
    levers: tuple[Lever, ...] = ()
    gpu: str | None = None
    gpus: int = 1
    model: str | None = None
    """The planner's name for it, where the configurations' own names are none that it knows."""
    asking: Asking | None = None


def read_sweep(text: str, name: str) -> SweepPlan:
    """Read a sweep's text; raises ToolkitError naming the key at fault."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deep"
        raise ToolkitError(f"`{name}` is not TOML: {shown(reason)}", EXAMPLE) from error
    refuse_unknown(table, SWEEP_KEYS, f"`{name}`")
    plan = SweepPlan(
        name=name,
        summary=word(table.get("summary", ""), f"`{name}`: `summary`"),
        look_at=_words(table.get("look_at", list(LOOK_AT)), f"`{name}`: `look_at`"),
        blocks=whole(table.get("blocks", 3), f"`{name}`: `blocks`", 1, MOST_BLOCKS),
        how=_how(table.get("how", "one at a time"), name),
        profile=word(table.get("profile", "contest"), f"`{name}`: `profile`"),
        profiles=_profiles(_table(table, "profiles", name), name),
        stage=word(table.get("stage", "configuration"), f"`{name}`: `stage`"),
        warm=switch(table.get("warm", True), f"`{name}`: `warm`"),
        load=_load(_table(table, "load", name), name),
        base=_serving(_table(table, "base", name), f"`{name}`: `base`"),
        configurations=_values(table.get("configurations", []), f"`{name}`: `configurations`"),
        levers=_levers(table.get("levers", []), name),
        asking=_asking(table.get("asking"), name),
        **_plan(_table(table, "plan", name), name),
    )
    _refuse_nothing(plan)
    return plan


def _refuse_nothing(plan: SweepPlan) -> None:
    if not plan.configurations and not plan.levers:
        raise ToolkitError(f"`{plan.name}` names no configuration and no lever", EXAMPLE)
    names = [value.name for value in plan.configurations] + [
        f"{lever.name} {value.name}" for lever in plan.levers for value in lever.values
    ]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise ToolkitError(f"`{plan.name}`: `{twice}` stands twice", "Give each its own name")
    if plan.load.settle_s >= plan.load.duration_s:
        raise ToolkitError(
            f"`{plan.name}`: `load`: `settle` leaves nothing of `duration`", "Make one longer"
        )


# --- the parts ------------------------------------------------------------------------------------


def _table(table: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise ToolkitError(f"`{name}`: `{key}` is no table", EXAMPLE)
    return found


def _profiles(table: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    """Each as the text of a profile's file, checked."""
    found = []
    for key, value in table.items():
        where = f"{name}: profiles.{shown(key)}"
        if not isinstance(value, dict) or "/" in key:
            raise ToolkitError(f"`{where}` is no profile", EXAMPLE)
        text = as_toml(value)
        read_profile(text, where, "toml")
        found.append((key, text))
    return tuple(found)


def _how(value: object, name: str) -> How:
    for known in get_args(How):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ToolkitError(
        f"`{name}`: `how` is `{shown(str(value))}`", "Write `one at a time` or `grid`"
    )


def _load(table: Mapping[str, Any], name: str) -> Load:
    where = f"`{name}`: `load`"
    refuse_unknown(table, LOAD_KEYS, where)
    duration_s = _seconds(table.get("duration", "60s"), f"{where}: `duration`")
    settle = table.get("settle")
    mix, tokens, rate = table.get("mix"), table.get("max_tokens"), table.get("rate")
    return Load(
        duration_s=duration_s,
        settle_s=min(10.0, duration_s / 5)
        if settle is None
        else _seconds(settle, f"{where}: `settle`"),
        users=whole(table.get("users", 32), f"{where}: `users`", 1, MOST),
        rate=None if rate is None else _number(rate, f"{where}: `rate`"),
        mix=None if mix is None else whole(mix, f"{where}: `mix`", 0, 100),
        max_tokens=None if tokens is None else whole(tokens, f"{where}: `max_tokens`", 1, MOST),
        canaries=_number(table.get("canaries", 0.0), f"{where}: `canaries`", least=0.0),
        timeout_s=_seconds(table.get("timeout", "60s"), f"{where}: `timeout`"),
        processes=whole(table.get("processes", 1), f"{where}: `processes`", 1, 256),
        start_s=_seconds(table["start"], f"{where}: `start`") if "start" in table else None,
    )


def _levers(entries: object, name: str) -> tuple[Lever, ...]:
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ToolkitError(f"`{name}`: `levers` is no list of tables", EXAMPLE)
    levers = []
    for number, entry in enumerate(entries, start=1):
        where = f"`{name}` lever {number}"
        refuse_unknown(entry, ("name", "values"), where)
        values = _values(entry.get("values", []), f"{where}: `values`")
        if not values:
            raise ToolkitError(f"{where} has no `values`", EXAMPLE)
        levers.append(Lever(name=_named(entry, where), values=values))
    return tuple(levers)


def _values(entries: object, where: str) -> tuple[Value, ...]:
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ToolkitError(f"{where} is no list of tables", EXAMPLE)
    values = []
    for number, entry in enumerate(entries, start=1):
        here = f"{where} {number}"
        change = {key: value for key, value in entry.items() if key != "name"}
        values.append(Value(name=_named(entry, here), serving=_serving(change, here)))
    return tuple(values)


def _named(entry: Mapping[str, Any], where: str) -> str:
    name = word(entry.get("name", ""), f"{where}: `name`")
    if not name or "/" in name:
        raise ToolkitError(f"{where} needs a `name`, without a slash", EXAMPLE)
    return name


def _serving(table: Mapping[str, Any], where: str) -> Serving:
    refuse_unknown(table, SERVING_KEYS, where)
    asked: Any = None
    if "asked" in table:
        asked = choice(table["asked"], f"{where}: `asked`", ASKED)
    words = {
        key: word(table[key], f"{where}: `{key}`")
        for key in SERVING_KEYS
        if key not in ("settings", "flags", "env", "tiny", "asked") and key in table
    }
    tiny = None if "tiny" not in table else switch(table["tiny"], f"{where}: `tiny`")
    return Serving(
        settings=_texts(table.get("settings", {}), f"{where}: `settings`"),
        flags=_flags(table.get("flags", {}), f"{where}: `flags`"),
        env=_texts(table.get("env", {}), f"{where}: `env`"),
        tiny=tiny,
        asked=asked,
        **words,
    )


def _flags(table: object, where: str) -> tuple[tuple[str, str | bool], ...]:
    if not isinstance(table, dict):
        raise ToolkitError(f"{where} is no table", "Write, e.g., `flags = {max-model-len = 512}`")
    return tuple(
        (
            key.removeprefix("--"),
            value if isinstance(value, bool) else _text(value, f"{where}: `{shown(key)}`"),
        )
        for key, value in table.items()
    )


def _texts(table: object, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(table, dict):
        raise ToolkitError(f"{where} is no table", "Write, e.g., `settings = {time_scale = 0.1}`")
    return tuple((key, _text(value, f"{where}: `{shown(key)}`")) for key, value in table.items())


def _text(value: object, where: str) -> str:
    """A number, truth or word as a command line has it; a table is a flag's JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    raise ToolkitError(f"{where} is no word and no number", EXAMPLE)


def _plan(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    refuse_unknown(table, PLAN_KEYS, f"`{name}`: `plan`")
    words = {
        key: word(table[key], f"`{name}`: `plan`: `{key}`")
        for key in ("gpu", "model")
        if key in table
    }
    return {
        **words,
        "gpus": whole(table.get("gpus", 1), f"`{name}`: `plan`: `gpus`", 1, MOST),
    }


def _asking(table: object, name: str) -> Asking | None:
    if table is None:
        return None
    where = f"`{name}`: `asking`"
    if not isinstance(table, dict):
        raise ToolkitError(f"{where} is no table", EXAMPLE)
    refuse_unknown(table, ASKING_KEYS, where)
    schema = str(table.get("schema", ""))
    try:
        json.loads(schema)
    except ValueError as error:
        raise ToolkitError(f"{where}: `schema` is not JSON", EXAMPLE) from error
    return Asking(
        requests=whole(table.get("requests", 40), f"{where}: `requests`", 1, MOST),
        concurrency=whole(table.get("concurrency", 4), f"{where}: `concurrency`", 1, MOST),
        max_tokens=whole(table.get("max_tokens", 300), f"{where}: `max_tokens`", 1, MOST),
        prompts=_words(table.get("prompts", []), f"{where}: `prompts`"),
        schema=schema,
    )


# --- single values --------------------------------------------------------------------------------


def _words(value: object, where: str) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(one, str) and one.strip() for one in value)
    ):
        raise ToolkitError(f"{where} is no list of words", EXAMPLE)
    return tuple(value)


def _number(value: object, where: str, *, least: float = 1e-6) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= float(value) <= 1e9:  # type: ignore[arg-type]
        raise ToolkitError(f"{where} is no number from {least:g} on", EXAMPLE)
    return float(value)  # type: ignore[arg-type]


def _seconds(value: object, where: str) -> float:
    seconds = seconds_of(value) if isinstance(value, str) else None
    if not seconds:
        raise ToolkitError(f"{where} is no duration", "Write, e.g., `60s` or `5m`")
    return seconds


# --- TOML, written --------------------------------------------------------------------------------


def as_toml(table: Mapping[str, Any]) -> str:
    """A table of words, numbers, lists and tables as TOML text that reads back equal."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in table.items())


def _value(value: object) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {_value(one)}" for key, one in value.items())
        return f"{{{inside}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_value(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON's strings are TOML's, but for DEL, which JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
