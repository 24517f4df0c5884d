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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema

from toolkit.config_file import (
    DECLARED,
    FieldError,
    Line,
    Number,
    OrNone,
    Seconds,
    Switch,
    Text,
    Whole,
    record,
    toml_tables,
    toml_text,
)
from toolkit.errors import ToolkitError
from toolkit.profiles import read_profile
from toolkit.safe_text import printable
from toolkit.tuning.figures import METRICS, known_metric
from toolkit.units import counted

Flag = str | bool
Kind = Literal["sim", "serve", "url"]
How = Literal["one at a time", "grid"]

BASE = "base"
"""What the configuration is called from which the levers move, where no models were tried before."""
EXAMPLE = (
    'A lever is, e.g., `[[levers]]` and below it `name = "batch"` and `values = [{name = "16", flags = '
    "{max-num-seqs = 16}}]`; the head of toolkit/tuning/sweep_file.py holds a whole sweep"
)
KEY_VARIABLE = "VLLM_API_KEY"
"""In which vLLM looks for its key; `toolkit serve` fills it from `key_env`, and refuses it in `env`."""
LOOK_AT = ("output_tokens_per_s", "rps", "ttft_p95_ms", "e2e_p95_ms", "error_rate")
Many = Annotated[Whole, Field(ge=1, le=1_000_000)]
"""Beyond any that one machine could send."""
Texts = Annotated[tuple[Text, ...], Field(min_length=1)]


# --- how one is served ---------------------------------------------------------------------------------


def _pairs(value: object, *, keeps_truth: bool) -> tuple[tuple[str, Flag], ...]:
    """A table of numbers, truths and words as a command line has them; a table in it is a flag's JSON."""
    if not isinstance(value, Mapping):
        raise FieldError("is no table", "Write, e.g., `{ max-model-len = 512 }`")
    found: list[tuple[str, Flag]] = []
    for key, each in value.items():
        if isinstance(each, bool):
            found.append((key, each if keeps_truth else str(each).lower()))
        elif isinstance(each, str | int | float):
            found.append((key, str(each)))
        else:
            try:
                found.append((key, json.dumps(each)))
            except TypeError:  # a date
                raise FieldError(
                    f"`{printable(key)}` is no word and no number", 'Texts stand in quotes: `"..."`'
                ) from None
    return tuple(found)


def _flags(value: object) -> tuple[tuple[str, Flag], ...]:
    return tuple((key.removeprefix("--"), each) for key, each in _pairs(value, keeps_truth=True))


def _env(value: object) -> tuple[tuple[str, Flag], ...]:
    env = _pairs(value, keeps_truth=False)
    if KEY_VARIABLE in dict(env):
        raise FieldError(
            "holds a key, which stands in no file",
            f'`export {KEY_VARIABLE}=...`, and `key_env = "{KEY_VARIABLE}"` here',
        )
    return env


def _name(word: str) -> str:
    if "/" in word:
        raise FieldError("holds a slash", 'Write, e.g., `name = "16"`')
    return word


Flags = Annotated[
    tuple[tuple[str, Flag], ...],
    BeforeValidator(_flags),
    WithJsonSchema({"type": "object", "x-allowed": "a table of flags and their values"}),
]
Pairs = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(lambda value: _pairs(value, keeps_truth=False)),
    WithJsonSchema({"type": "object", "x-allowed": "a table of names and their values"}),
]
Env = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_env),
    WithJsonSchema({"type": "object", "x-allowed": "a table of names and their values"}),
]
Name = Annotated[Text, AfterValidator(_name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a configuration is served and asked; each changes what it names of `base`."""

    __pydantic_config__ = DECLARED

    sim: OrNone[Text] = None
    """The simulator's personality that stands for it."""
    settings: Pairs = ()
    """Of the simulator, as `toolkit sim serve --set` takes them."""
    model: OrNone[Text] = None
    """A name at Hugging Face, or a directory: `toolkit serve` starts it."""
    tiny: OrNone[Switch] = None
    """A tiny random model on the CPU instead."""
    flags: Flags = ()
    """Of vLLM, without dashes."""
    env: Env = ()
    """Further variables of the engine's environment."""
    gpus: OrNone[Text] = None
    """CUDA_VISIBLE_DEVICES."""
    vllm: OrNone[Text] = None
    """The command that starts it."""
    url: OrNone[Text] = None
    """Somebody else runs it; nothing is started, nothing is ended."""
    key_env: OrNone[Text] = None
    """The environment variable that holds the key."""
    served_name: OrNone[Text] = None
    """What it is called when it is asked."""
    quantization: OrNone[Text] = None
    """For the planner, which tells what cannot fit."""
    profile: OrNone[Text] = None
    """Another one than the sweep's."""
    asked: OrNone[Literal["schema", "json", "words"]] = None
    """How structured output is asked for: held to the schema, to any JSON, or only told."""

    def kind(self, *, sim: bool = False) -> Kind | None:
        """Who serves it; None: it does not say. `sim` wants the simulator, whatever else is said."""
        if sim:
            return "sim" if self.sim else None
        if self.url:
            return "url"
        return "serve" if self.model or self.tiny else "sim" if self.sim else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverValue(Serving):
    """One position of a lever, or one model: a name, and the keys of `[base]` that it changes."""

    name: Name
    """In tables and pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLever:
    """One thing that can be set in several ways; tried around the best of `configurations`."""

    __pydantic_config__ = DECLARED

    name: Name
    """In tables and pictures."""
    values: Annotated[tuple[LeverValue, ...], Field(min_length=1)]
    """Its positions."""


# --- the file --------------------------------------------------------------------------------------------


def _is_json(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:
        raise FieldError(
            "is not JSON", """Write, e.g., `schema = '{"type": "object"}'`"""
        ) from None
    return text


def _profiles(value: object) -> tuple[tuple[str, str], ...]:
    """Each as the text of a profile's file."""
    if not isinstance(value, Mapping):
        raise FieldError("is no table", EXAMPLE)
    found = []
    for key, each in value.items():
        if not isinstance(each, Mapping) or "/" in key:
            raise FieldError(f"`{printable(key)}` is no profile", EXAMPLE)
        try:
            found.append((key, toml_text(each)))
        except TypeError:
            raise FieldError(f"`{printable(key)}` holds a date", "Texts stand in quotes") from None
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLoad:
    """The evaluator's own load, as `toolkit blast` has it."""

    __pydantic_config__ = DECLARED

    duration_s: Seconds = 60.0
    """Of each load."""
    settle_s: Seconds = 0.0
    """Its first seconds, in which users come evenly; they do not count. By default a fifth of `duration`, 10 s at most."""
    users: Many = 32
    """At once."""
    rate: OrNone[Annotated[Number, Field(ge=1e-6, le=1e9)]] = None
    """Requests a second, whatever answers take."""
    mix: OrNone[Annotated[Whole, Field(ge=0, le=100)]] = None
    """Of 100 requests so many are streamed."""
    max_tokens: OrNone[Many] = None
    """Of each answer."""
    canaries: Annotated[Number, Field(ge=0, le=1e9)] = 0.0
    """Per cent. None are needed: who serves is known."""
    timeout_s: Seconds = 60.0
    """Of a request."""
    processes: Annotated[Whole, Field(ge=1, le=256)] = 1
    """Of the loader."""
    start_s: OrNone[Seconds] = None
    """How long a start takes, for `--dry-run`."""

    def __post_init__(self) -> None:
        if not self.settle_s:
            object.__setattr__(self, "settle_s", min(10.0, self.duration_s / 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRequests:
    """Requests for JSON, sent after the load, whose answers are parsed."""

    __pydantic_config__ = DECLARED

    requests: Many = 40
    """How many."""
    concurrency: Many = 4
    """At once."""
    max_tokens: Many = 300
    """Of each answer."""
    prompts: Texts
    """In turn."""
    schema: Annotated[str, Strict(), AfterValidator(_is_json)]
    """JSON Schema, as JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it would run: what cannot fit is skipped."""

    __pydantic_config__ = DECLARED

    gpu: OrNone[Text] = None
    """A GPU of `toolkit plan --list`, or its memory."""
    gpus: Many = 1
    """How many."""
    model: OrNone[Text] = None
    """The planner's name for the model, where the configurations' own names are none that it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """`toolkit sweep FILE`."""

    __pydantic_config__ = DECLARED

    summary: Line = ""
    """In one line, for its report."""
    look_at: Texts = LOOK_AT
    """Figures; the first decides which configuration is best."""
    blocks: Annotated[Whole, Field(ge=1, le=100)] = 3
    """A B C A B C ...: how often each is measured. What drifts meets all of them alike."""
    how: How = "one at a time"
    """One lever at a time, or `grid`: every lever with every other."""
    profile: Text = "contest"
    """Prompts: one of `profiles`, else the catalog's name or a file."""
    profiles: Annotated[
        tuple[tuple[str, str], ...],
        BeforeValidator(_profiles),
        WithJsonSchema({"type": "object", "x-allowed": "tables as in a profile's file"}),
    ] = ()
    """Prompts of its own: `[profiles.NAME]` with the keys of a profile's file."""
    stage: Text = "configuration"
    """How the lever is called that `configurations` are values of."""
    warm: Switch = True
    """Each is warmed up before its load."""
    load: SweepLoad = field(default_factory=SweepLoad)
    base: Serving = field(default_factory=Serving)
    configurations: tuple[LeverValue, ...] = ()
    levers: tuple[SweepLever, ...] = ()
    machine: Annotated[Machine, Field(validation_alias="plan")] = field(default_factory=Machine)
    asking: OrNone[JsonRequests] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan(SweepFile):
    """All that a sweep's file says, and its name."""

    name: str

    @property
    def blocks_in_words(self) -> str:
        """`3 interleaved blocks`, or `one block`."""
        return f"{self.blocks} interleaved blocks" if self.blocks > 1 else "one block"

    @property
    def users_in_words(self) -> str:
        """`32 users at 5 requests a second`."""
        rate = self.load.rate
        at_rate = f" at {rate:g} request{'s' * (rate != 1)} a second" if rate else ""
        return f"{counted(self.load.users, 'user')}{at_rate}"


def read_sweep(
    text: str,
    name: str,
    *,
    blocks: int | None = None,
    duration_s: float | None = None,
    users: int | None = None,
    profile: str | None = None,
) -> SweepPlan:
    """Read a sweep's text, of which the command line may change something.

    Raises ToolkitError naming the line and the key at fault.
    """
    file = record(SweepFile, toml_tables(text, name, EXAMPLE), f"`{name}`", text=text)
    plan = SweepPlan(name=name, **{each.name: getattr(file, each.name) for each in fields(file)})
    for key, prompts in plan.profiles:
        read_profile(prompts, f"{name}: profiles.{printable(key)}", "toml")
    if not plan.configurations and not plan.levers:
        raise ToolkitError(f"`{name}` names no configuration and no lever", EXAMPLE)
    names = [value.name for value in plan.configurations] + [
        f"{lever.name} {value.name}" for lever in plan.levers for value in lever.values
    ]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise ToolkitError(f"`{name}`: `{twice}` stands twice", "Give each its own name")
    for figure in plan.look_at:
        if known_metric(figure) is None:
            hint = f"Figures are {', '.join(METRICS)}"
            raise ToolkitError(f"`{name}`: `look_at` names no figure: `{figure}`", hint)
    load = plan.load
    if load.settle_s >= load.duration_s:
        raise ToolkitError(
            f"`{name}`: `load`: `settle` leaves nothing of `duration`", "Make one longer"
        )
    if duration_s is not None:
        load = replace(load, duration_s=duration_s, settle_s=min(load.settle_s, duration_s / 5))
    return replace(
        plan,
        load=replace(load, users=users or load.users),
        blocks=blocks or plan.blocks,
        profile=profile or plan.profile,
    )


# --- what is tried, in which order -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of the sweep."""

    name: str
    stage: int
    """1: the models; 2: the levers, around the best of these. Only rows of one stage are compared."""
    lever: str | None
    """Which it moves; None: it is what the others are compared with."""
    value: str | None
    serving: Serving

    @property
    def key(self) -> str:
        """Names it among all stages: the base of the levers was a model before."""
        return f"{self.stage}/{self.name}"


def changed(base: Serving, change: Serving) -> Serving:
    """The base with all that the change says; of flags, settings and variables only those that it names."""
    changes: dict[str, Any] = {}
    for name in (each.name for each in fields(Serving)):
        ours, theirs = getattr(base, name), getattr(change, name)
        if isinstance(theirs, tuple):
            changes[name] = tuple({**dict(ours), **dict(theirs)}.items())
        elif theirs is not None:
            changes[name] = theirs
    return replace(base, **changes)


def models(plan: SweepPlan) -> tuple[Configuration, ...]:
    """The first stage, if there is one: the first model is what the others are compared with."""
    return tuple(
        Configuration(value.name, 1, plan.stage, value.name, changed(plan.base, value))
        for value in plan.configurations
    )


def around(plan: SweepPlan, best: Configuration | None) -> tuple[Configuration, ...]:
    """The stage of the levers: the best of the models, or the base where there are none, and what moves from there."""
    origin = best.serving if best else plan.base
    found = [Configuration(best.name if best else BASE, 2, None, None, origin)]
    # one lever at a time is a grid of that lever alone
    for levers in [plan.levers] if plan.how == "grid" else [(lever,) for lever in plan.levers]:
        for chosen in product(*(lever.values for lever in levers)):
            serving = reduce(changed, chosen, origin)
            if serving == origin:  # a position that changes nothing is the base
                continue
            named = zip(levers, chosen, strict=True)
            name = ", ".join(f"{lever.name} {value.name}" for lever, value in named)
            lever = " x ".join(lever.name for lever in levers)
            value = ", ".join(value.name for value in chosen)
            found.append(Configuration(name, 2, lever, value, serving))
    return tuple(found)


def foreseen(plan: SweepPlan) -> list[tuple[Configuration, ...]]:
    """The stages before anything is measured: the first model stands for the best one."""
    found = [first] if (first := models(plan)) else []
    return [*found, around(plan, first[0] if first else None)] if plan.levers else found
