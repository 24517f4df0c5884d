"""What requests ask for beside the prompt: streaming, limits, sampling, models, options. Counts of values, no judgement."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.records import Asked
from toolkit.workload.columns import Columns

LISTED = 8
"""Values of one parameter that are named; the others are counted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of a parameter."""

    value: str | float | bool | None
    """None: not set, or not told."""
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter's values, the most frequent first."""

    name: str
    values: tuple[Value, ...]
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
    """Share that is declared repeatable: temperature 0, or a seed."""
    images_share: float | None
    """Share with parts that are not text."""
    parameters: tuple[Parameter, ...] = ()
    """`model` `stream` `max_tokens` `temperature` `top_p` `n` `seed` `messages`, those that anybody set."""
    options: tuple[Option, ...] = ()


PARAMETERS = ("model", "stream", "max_tokens", "temperature", "top_p", "n", "seed", "messages")


def mix(columns: Columns) -> Mix:
    """Count what is asked for."""
    if not len(columns):
        return Mix(stream_share=None, declared_share=None, images_share=None)
    # bodies are counted once each, by how often they were sent: two prompts in a blast of 200,000 are two steps
    sent = np.bincount(columns.exact, minlength=len(columns.asked))
    counted = [(one, int(times)) for one, times in zip(columns.asked, sent, strict=True) if times]
    total = len(columns)
    found = (_parameter(name, counted, total) for name in PARAMETERS)
    return Mix(
        stream_share=_stream_share(counted, total),
        declared_share=float(declared(columns).mean()),
        images_share=sum(times for one, times in counted if one.images) / total,
        parameters=tuple(one for one in found if one is not None),
        options=_options(counted, total),
    )


def declared(columns: Columns) -> NDArray[np.bool_]:
    """For each request: whether it says that its answer may be given again, by temperature 0 or a seed."""
    said = [one.temperature == 0 or one.seed is not None for one in columns.asked]
    return np.array(said, dtype=bool)[columns.exact]


def _stream_share(counted: list[tuple[Asked, int]], total: int) -> float | None:
    # a body that leaves `stream` out asks for none; a trace's row has no body
    told = any(one.stream is not None or one.body_bytes for one, _ in counted)
    return sum(times for one, times in counted if one.stream) / total if told else None


def _parameter(name: str, counted: list[tuple[Asked, int]], total: int) -> Parameter | None:
    tally: Counter[str | float | bool | None] = Counter()
    for one, times in counted:
        tally[getattr(one, name)] += times
    if set(tally) <= {None}:
        return None
    top = tally.most_common(LISTED)
    return Parameter(
        name=name,
        values=tuple(
            Value(value=value, requests=times, share=times / total) for value, times in top
        ),
        different=len(tally),
        rest=total - sum(times for _, times in top),
    )


def _options(counted: list[tuple[Asked, int]], total: int) -> tuple[Option, ...]:
    tally: Counter[str] = Counter()
    for one, times in counted:
        for name in one.options:
            tally[name] += times
    return tuple(
        Option(name=name, requests=times, share=times / total)
        for name, times in tally.most_common(LISTED)
    )
