"""What requests ask for beside the prompt: streaming, limits, sampling, models, options. Counts of values, no judgement."""

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from toolkit.workload.columns import Mask, RequestColumns

LISTED = 8
"""Values of one parameter that are named; the others are counted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterValue:
    """One value of a parameter."""

    value: str | float | bool | None
    """None: not set, or not told."""
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter's values, the most frequent first."""

    name: str
    values: tuple[ParameterValue, ...]
    different: int
    """Values there are, not set included."""
    rest: int
    """Requests with a value that is not among those named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of the body beside the well-known ones, e.g., `tools`."""

    name: str
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is asked for, in shares of requests."""

    stream_share: float | None
    """Share that asked for a stream; None where no request tells, as in a trace without bodies."""
    declared_share: float | None
    """Share that is declared repeatable: temperature 0, or a seed. None: bodies are not known."""
    images_share: float | None
    """Share with parts that are not text."""
    parameters: tuple[Parameter, ...] = ()
    """`model` `stream` `max_tokens` `temperature` `top_p` `n` `seed` `messages`, those that anybody set."""
    options: tuple[Option, ...] = ()


PARAMETERS = ("model", "stream", "max_tokens", "temperature", "top_p", "n", "seed", "messages")


def mix(columns: RequestColumns, *, bodies: bool = True) -> Mix:
    """Count what is asked for; without `bodies` a field that nobody told may have been set."""
    total = len(columns)
    if not total:
        return Mix(stream_share=None, declared_share=None, images_share=None)
    kinds = _kinds(columns)
    found = (_parameter(place, kinds, total) for place in range(len(PARAMETERS)))
    streams = columns.per_request("stream")
    # a body that leaves `stream` out asks for none
    told = bodies or not np.isnan(streams).all()
    return Mix(
        stream_share=float((streams == 1).mean()) if told else None,
        declared_share=float(declared(columns).mean()) if bodies else None,
        images_share=float((columns.per_request("images") > 0).mean()) if bodies else None,
        parameters=tuple(one for one in found if one is not None),
        options=_options(kinds, total),
    )


def _kinds(columns: RequestColumns) -> Counter[tuple[Any, ...]]:
    """How often each combination of parameters and options was asked: many bodies, few combinations."""
    sent = np.bincount(columns.exact, minlength=len(columns.asked)).tolist()
    kinds: Counter[tuple[Any, ...]] = Counter()
    for kind, times in zip(
        map(attrgetter(*PARAMETERS, "options"), columns.asked), sent, strict=True
    ):
        kinds[kind] += times
    return +kinds  # without those that a part of the columns does not have


def declared(columns: RequestColumns) -> Mask:
    """For each request: whether it says that its answer may be given again, by temperature 0 or a seed."""
    said = [one.temperature == 0 or one.seed is not None for one in columns.asked]
    return np.array(said, dtype=bool)[columns.exact]


def _parameter(place: int, kinds: Counter[tuple[Any, ...]], total: int) -> Parameter | None:
    tally: Counter[str | float | bool | None] = Counter()
    for kind, times in kinds.items():
        tally[kind[place]] += times
    if set(tally) <= {None}:
        return None
    top = tally.most_common(LISTED)
    return Parameter(
        name=PARAMETERS[place],
        values=tuple(
            ParameterValue(value=value, requests=times, share=times / total) for value, times in top
        ),
        different=len(tally),
        rest=total - sum(times for _, times in top),
    )


def _options(kinds: Counter[tuple[Any, ...]], total: int) -> tuple[Option, ...]:
    tally: Counter[str] = Counter()
    for kind, times in kinds.items():
        for name in kind[-1]:
            tally[name] += times
    return tuple(
        Option(name=name, requests=times, share=times / total)
        for name, times in tally.most_common(LISTED)
    )
