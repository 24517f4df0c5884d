"""Which configurations a sweep tries, and in which order: the models first, then one lever at a time, or a grid.

It knows how a configuration is to be served, and starts nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from toolkit.config_file import DECLARED, FieldError, OrNone, Switch, Text
from toolkit.safe_text import printable

Flag = str | bool
Kind = Literal["sim", "serve", "url"]
How = Literal["one at a time", "grid"]

BASE = "base"
"""What the configuration is called from which the levers move, where no models were tried before."""


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


def _name(word: str) -> str:
    if "/" in word:
        raise FieldError("holds a slash", 'Write, e.g., `name = "16"`')
    return word


Flags = Annotated[
    tuple[tuple[str, Flag], ...],
    BeforeValidator(_flags),
    WithJsonSchema({"type": "object", "x-allowed": "a table of flags and their values"}),
]
Texts = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(lambda value: _pairs(value, keeps_truth=False)),
    WithJsonSchema({"type": "object", "x-allowed": "a table of names and their values"}),
]
Name = Annotated[Text, AfterValidator(_name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a configuration is served and asked; each changes what it names of `base`."""

    __pydantic_config__ = DECLARED

    sim: OrNone[Text] = None
    """The simulator's personality that stands for it."""
    settings: Texts = ()
    """Of the simulator, as `toolkit sim serve --set` takes them."""
    model: OrNone[Text] = None
    """A name at Hugging Face, or a directory: `toolkit serve` starts it."""
    tiny: OrNone[Switch] = None
    """A tiny random model on the CPU instead."""
    flags: Flags = ()
    """Of vLLM, without dashes."""
    env: Texts = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    told: dict[str, Any] = {}
    for field in fields(Serving):
        ours, theirs = getattr(base, field.name), getattr(change, field.name)
        if field.name in ("settings", "flags", "env"):
            told[field.name] = tuple({**dict(ours), **dict(theirs)}.items())
        else:
            told[field.name] = ours if theirs is None else theirs
    return replace(base, **told)


def models(base: Serving, values: Sequence[LeverValue], lever: str) -> tuple[Configuration, ...]:
    """The first stage: each model once; the first is what the others are compared with."""
    return tuple(
        Configuration(
            name=value.name,
            stage=1,
            lever=lever,
            value=value.name,
            serving=changed(base, value),
        )
        for value in values
    )


def around(
    base: Serving, levers: Sequence[SweepLever], how: How, name: str = BASE
) -> tuple[Configuration, ...]:
    """The second stage: the base, then what each lever makes of it; a position that changes nothing is the base."""
    origin = Configuration(name=name, stage=2, lever=None, value=None, serving=base)
    moved = _grid(base, levers) if how == "grid" else _one_at_a_time(base, levers)
    return (origin, *(one for one in moved if one.serving != base))


def _one_at_a_time(base: Serving, levers: Sequence[SweepLever]) -> Iterator[Configuration]:
    for lever in levers:
        for value in lever.values:
            yield Configuration(
                name=f"{lever.name} {value.name}",
                stage=2,
                lever=lever.name,
                value=value.name,
                serving=changed(base, value),
            )


def _grid(base: Serving, levers: Sequence[SweepLever]) -> Iterator[Configuration]:
    for chosen in product(*(lever.values for lever in levers)):
        serving = base
        for value in chosen:
            serving = changed(serving, value)
        named = [f"{lever.name} {value.name}" for lever, value in zip(levers, chosen, strict=True)]
        yield Configuration(
            name=", ".join(named),
            stage=2,
            lever=" x ".join(lever.name for lever in levers),
            value=", ".join(value.name for value in chosen),
            serving=serving,
        )


def in_turn(
    configurations: Sequence[Configuration], blocks: int
) -> Iterator[tuple[int, Configuration]]:
    """A B C, A B C ...: each block holds all of them, so what drifts meanwhile meets all alike. Blocks count from 1."""
    for block in range(1, blocks + 1):
        for one in configurations:
            yield block, one


def best(
    figures: Mapping[str, float | None], *, more_is_better: bool, names: Sequence[str]
) -> str | None:
    """Whose figure is the best, the first of equals; None: nobody has one."""
    known = [(name, figures[name]) for name in names if figures.get(name) is not None]
    if not known:
        return None
    pick = max if more_is_better else min
    return pick(known, key=lambda pair: pair[1] or 0.0)[0]
