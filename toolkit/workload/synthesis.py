"""A workload -> a blast profile that asks the same: which prompts how often, how long, how much of them begins alike.

The most frequent prompts come with their own weight; all others, the tail, become requests that bear a mark and so are
like no other. Where a prompt's text was not kept, words stand in for it: as many, the same for equal beginnings. It
says what the profile cannot tell, and by how much it differs. It writes no file; toolkit/profiles.py reads the text.

A profile marks requests whatever their prompt. In front, where no prefix cache knows what follows; or, behind a prefix
that all share, at the end, where it knows nearly all: the one that is nearer to the workload is taken. And a profile
that lists prompts of the tail, for their lengths, repeats some of them; one that does not gives the tail the others'
lengths. With r, the share of listed prompts' requests, and D, how far the two lengths are apart (the largest difference
of their distributions), listed prompts get the share a of all weights that makes D (a - r) + r (1 - a) / a, wrong
lengths and wrong repeats, the least: a = sqrt(r / D), from r to 1. Where losing all repeats is less, none is listed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, isnan, sqrt

import numpy as np

from toolkit.profiles import MOST_WEIGHT
from toolkit.records import Asked
from toolkit.units import share as percent
from toolkit.workload.columns import Numbers, RequestColumns
from toolkit.workload.synthetic_text import Written, chain, written

MOST_PROMPTS = 200
"""Listed with a weight of their own, and as many of the tail for their lengths."""
MOST_CHARS = 4_000_000
"""Of all texts together: a file that an editor opens."""
DECK = 10_000
"""Cards from which a blast deals prompts: one that should come more rarely would come too often."""
UNKNOWN_CHARS = 200
"""Of a prompt whose length nobody told."""
MOST_COMPARED = 20_000
"""Prompts of which it is looked at how they begin."""
MANY_MARKS = 0.05
"""So many marked requests change what a prefix cache can do for all."""
MARKS_BEHIND = 0.5
"""From so large a share of equal beginnings on, marks that leave them alone are nearer than marks that part all."""
LOST_WEIGHS = 2.0
"""A repeat that the profile loses, against a request of a wrong length: repeats are what caches live on."""
WORD_CHARS = 5
"""A word that stands for a token, with its space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """A profile, and how near it comes."""

    toml: str
    prompts: int
    """With a weight of their own."""
    tail_prompts: int
    """Listed for the lengths of the tail."""
    real: int
    """Of both: those with the text that was captured."""
    unique_share: float
    notes: tuple[str, ...]
    """What the profile cannot tell, and where its statistics differ from the workload's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One prompt, and how it was asked."""

    count: int
    asked: Asked
    max_tokens: int | None
    is_guessed: bool = False
    """`max_tokens` is how long answers were, for want of a limit."""
    weight: float = 0.0
    in_tail: bool = False

    @property
    def length(self) -> tuple[int, bool]:
        """How long, and whether in characters; else in tokens."""
        if self.asked.prompt_chars:
            return self.asked.prompt_chars, True
        if self.asked.prompt_tokens:
            return self.asked.prompt_tokens, False
        return UNKNOWN_CHARS, True


def synthesis(
    columns: RequestColumns,
    *,
    source: str,
    identities: bool = True,
    most_prompts: int = MOST_PROMPTS,
    most_chars: int = MOST_CHARS,
) -> Synthesis:
    """Make a profile of a workload's requests. `identities`: whether it is known which prompts are alike.

    `source` says in a few words where the requests come from. Raises ValueError where there is none.
    """
    if not len(columns):
        raise ValueError("no request asks a model for anything")
    prompts = _prompts(columns)
    listed, tail = _listed(prompts, most_prompts, most_chars)
    weighted, unique_share = _weighted(listed, tail, most_prompts, most_chars)
    alike = _alike(prompts)
    text = written(weighted, marks=unique_share >= MANY_MARKS, share_prefix=alike >= MARKS_BEHIND)
    tail_prompts = sum(one.in_tail for one in weighted)
    made = Synthesis(
        toml="",
        prompts=len(weighted) - tail_prompts,
        tail_prompts=tail_prompts,
        real=text.real,
        unique_share=unique_share,
        notes=(),
    )
    notes = _notes(made, weighted, prompts, text, alike, identities=identities)
    return replace(made, toml=_toml(columns, made, weighted, text, source), notes=notes)


def _prompts(columns: RequestColumns) -> list[AskedPrompt]:
    """Every prompt, the most frequent first, of equal ones the first that came."""
    times = np.bincount(columns.exact, minlength=len(columns.asked))
    _, firsts = np.unique(columns.exact, return_index=True)
    bodies: dict[int, list[int]] = {}
    for body, prompt in enumerate(columns.prompt[firsts].tolist()):
        bodies.setdefault(prompt, []).append(body)
    read, said = _means(columns, columns.prompt_tokens), _means(columns, columns.output_tokens)
    found = [
        _asking(
            [(columns.asked[body], int(times[body])) for body in each], read[prompt], said[prompt]
        )
        for prompt, each in bodies.items()
    ]
    return sorted(found, key=lambda one: -one.count)


def _means(columns: RequestColumns, values: Numbers) -> list[float]:
    """By prompt: the mean of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    prompts, count = columns.prompt[known], int(columns.prompt.max()) + 1
    times = np.bincount(prompts, minlength=count)
    sums = np.bincount(prompts, weights=values[known], minlength=count)
    means = np.divide(sums, times, out=np.full(count, np.nan), where=times > 0)
    return [float(mean) for mean in means]


def _asking(bodies: Sequence[tuple[Asked, int]], read: float, said: float) -> AskedPrompt:
    """One prompt, from all bodies that ask it: the text of whichever has one, the limit that most requests set.

    `read` and `said` are the tokens of it and of its answers. A blast limits every request: where nobody set a limit,
    the length that answers had comes nearest.
    """
    limits: Counter[int | None] = Counter()
    for body, times in bodies:
        limits[body.max_tokens] += times
    limit = limits.most_common(1)[0][0]
    told = next((body for body, _ in bodies if body.prompt_text), bodies[0][0])
    if told.prompt_tokens is None and not isnan(read):
        told = replace(told, prompt_tokens=round(read))
    is_guessed = limit is None and not isnan(said)
    return AskedPrompt(
        count=sum(times for _, times in bodies),
        asked=told,
        max_tokens=max(1, round(said)) if is_guessed else limit,
        is_guessed=is_guessed,
    )


def _listed(
    prompts: Sequence[AskedPrompt], most_prompts: int, most_chars: int
) -> tuple[list[AskedPrompt], list[AskedPrompt]]:
    """The prompts that repeat, as many as there is room for, and the tail."""
    room = most_chars
    listed: list[AskedPrompt] = []
    least = max(2, sum(one.count for one in prompts) / DECK)
    for place, one in enumerate(prompts):
        room -= _chars(one)
        if len(listed) == most_prompts or one.count < least or (room < 0 and listed):
            return listed, list(prompts[place:])
        listed.append(one)
    return listed, []


def _chars(one: AskedPrompt) -> int:
    length, in_chars = one.length
    return length if in_chars else WORD_CHARS * length


def _weighted(
    listed: Sequence[AskedPrompt], tail: Sequence[AskedPrompt], most_prompts: int, most_chars: int
) -> tuple[list[AskedPrompt], float]:
    """Prompts with weights, and the share of requests that bear a mark."""
    of_listed = _share_of_listed(listed, tail)
    if not of_listed:
        listed, tail = [], [*listed, *tail]
    repeated, rest = sum(one.count for one in listed), sum(one.count for one in tail)
    if not rest and listed[0].count <= MOST_WEIGHT:
        return [replace(one, weight=float(one.count)) for one in listed], 0.0
    kept = [replace(one, weight=_shown(of_listed * one.count / repeated)) for one in listed]
    if of_listed < 1:
        room = max(most_chars - sum(map(_chars, listed)), most_chars // 4)
        picked = _spread(tail, most_prompts, room)
        weight = _shown((1 - of_listed) / len(picked))
        kept += [replace(one, weight=weight, in_tail=True) for one in picked]
    share = repeated / (repeated + rest)
    return kept, round(1 - share / of_listed, 4) if of_listed else 1.0


def _share_of_listed(listed: Sequence[AskedPrompt], tail: Sequence[AskedPrompt]) -> float:
    """What share of all weights the prompts have that are listed for their repeats; 0: they are not worth it."""
    repeated, rest = sum(one.count for one in listed), sum(one.count for one in tail)
    if not repeated or not rest:
        return float(bool(repeated))
    share, apart = repeated / (repeated + rest), _apart(listed, tail)
    best = min(1.0, max(share, sqrt(share / apart))) if apart else 1.0
    wrong = apart * (best - share) + share * (1 - best) / best
    # of repeats, if each of them were like no other
    lost = (repeated - len(listed)) / (repeated + rest)
    return best if wrong < LOST_WEIGHS * lost else 0.0


def _shown(weight: float) -> float:
    """Of a thousand, with as many digits as a deck of 10,000 cards tells apart."""
    return max(0.01, round(weight * 1000, 2))


def _spread(tail: Sequence[AskedPrompt], most_prompts: int, most_chars: int) -> list[AskedPrompt]:
    """Some of the tail, evenly from the shortest to the longest: their lengths are distributed as all of them are."""
    requests = sorted(
        (place for place, one in enumerate(tail) for _ in range(one.count)),
        key=lambda place: _chars(tail[place]),
    )
    mean = max(1, sum(_chars(tail[place]) for place in requests) // len(requests))
    wanted = max(1, min(most_prompts, len(tail), most_chars // mean))
    # the middle of each of `wanted` equal stretches
    places = [requests[(2 * k + 1) * len(requests) // (2 * wanted)] for k in range(wanted)]
    return [tail[place] for place in dict.fromkeys(places)]


def _apart(listed: Sequence[AskedPrompt], tail: Sequence[AskedPrompt]) -> float:
    """The largest difference between the two distributions of lengths (Kolmogorov and Smirnov's)."""
    if not listed or not tail:
        return 0.0
    values = np.array([_chars(one) for one in (*listed, *tail)], dtype=float)
    counts = np.array([one.count for one in (*listed, *tail)], dtype=float)
    order = np.argsort(values, kind="stable")
    is_tail = order >= len(listed)
    up = np.cumsum(np.where(is_tail, counts[order], 0.0)) / counts[len(listed) :].sum()
    down = np.cumsum(np.where(is_tail, 0.0, counts[order])) / counts[: len(listed)].sum()
    last = np.append(np.diff(values[order]) > 0, [True])  # after the last of equal lengths
    return float(np.abs(up - down)[last].max())


def _alike(prompts: Sequence[AskedPrompt]) -> float:
    """The share of all blocks of different prompts that another one begins with, too."""
    met: set[bytes] = set()
    blocks = shared = 0
    for one in prompts[:MOST_COMPARED]:
        mine = chain(one.asked)
        blocks += len(mine)
        shared += sum(block in met for block in mine)
        met.update(mine)
    return shared / blocks if blocks else 0.0


# --- What is said of it -------------------------------------------------------------------------


def _notes(
    made: Synthesis,
    weighted: Sequence[AskedPrompt],
    prompts: Sequence[AskedPrompt],
    text: Written,
    alike: float,
    *,
    identities: bool,
) -> tuple[str, ...]:
    notes = list(text.notes)
    if made.unique_share >= MANY_MARKS and alike:
        known = "nearly all of its own" if text.shared_prefix else "none"
        notes.append(
            f"Beginnings: different prompts share {percent(alike)} of their blocks, a marked request of the profile {known}"
        )
    if not identities:
        notes.append("Which requests were alike is unknown: all of them bear a mark")
    elif made.unique_share:
        notes.append(_of_repeats(made, weighted, prompts))
    return (*notes, *_of_lengths(weighted, prompts), *_of_limits(weighted, prompts))


def _of_repeats(
    made: Synthesis, weighted: Sequence[AskedPrompt], prompts: Sequence[AskedPrompt]
) -> str:
    requests = sum(one.count for one in prompts)
    before = 1 - len(prompts) / requests
    after = repeats(weighted, made.unique_share, requests)
    return f"Repeats: {percent(before)} of the {requests:,} requests, {percent(after)} of as many by the profile"


def _of_lengths(weighted: Sequence[AskedPrompt], prompts: Sequence[AskedPrompt]) -> Iterator[str]:
    in_chars = any(one.length[1] for one in prompts)
    each = 1 if in_chars else WORD_CHARS
    before = _mean(prompts, [one.count for one in prompts]) / each
    after = _mean(weighted, [one.weight for one in weighted]) / each
    if abs(after - before) > 0.005 * before:
        unit = "characters" if in_chars else "tokens"
        yield f"Prompt length: {before:,.0f} {unit} on average, {after:,.0f} by the profile"


def _of_limits(weighted: Sequence[AskedPrompt], prompts: Sequence[AskedPrompt]) -> Iterator[str]:
    guessed = sum(one.is_guessed for one in weighted)
    if guessed:
        yield f"{guessed:,} of {len(weighted):,} prompts were asked without `max_tokens`; it is the length that answers had"
    if all(one.max_tokens is None for one in prompts):
        yield "No request set `max_tokens`; without it a blast takes its own default"


def repeats(weighted: Sequence[AskedPrompt], unique_share: float, requests: int) -> float:
    """The share of so many requests by a profile that were asked before, as it is to be expected."""
    cards = [round(one.weight * 100) for one in weighted]
    deck = sum(cards) // gcd(*cards)
    if deck > max(DECK, len(cards)):
        deck = DECK
    plain = (1 - unique_share) * requests
    new = unique_share * requests
    for one in cards:
        times = one / sum(cards) * deck  # it is dealt in a round
        if requests <= deck:
            missed = (1 - plain / deck) ** times
        else:
            missed = unique_share ** (times * requests / deck)
        new += 1 - missed
    return 1 - new / requests


def _mean(prompts: Sequence[AskedPrompt], weights: Sequence[float]) -> float:
    total = sum(_chars(one) * weight for one, weight in zip(prompts, weights, strict=True))
    return total / sum(weights)


def _toml(
    columns: RequestColumns,
    made: Synthesis,
    weighted: Sequence[AskedPrompt],
    text: Written,
    source: str,
) -> str:
    head = {
        "summary": _summary(made, len(weighted), len(columns), source),
        "stream_share": _stream_share(columns),
        "max_tokens": max(0, *(one.max_tokens or 0 for one in weighted)) or None,
        "unique_share": made.unique_share or None,
        "shared_prefix": text.shared_prefix,
    }
    lines = [f"{key} = {_value(value)}" for key, value in head.items() if value is not None]
    if text.passages:
        lines += ["", "[passages]"]
        lines += [f"{name} = {_value(passage)}" for name, passage in text.passages.items()]
    for one, prompt in zip(weighted, text.prompts, strict=True):
        lines += ["", "[[prompts]]", f"weight = {_value(one.weight)}"]
        if one.max_tokens is not None and one.max_tokens > 0:
            lines.append(f"max_tokens = {one.max_tokens}")
        lines += [f"{key} = {_value(value)}" for key, value in prompt.items()]
    return "\n".join([*lines, ""])


def _summary(made: Synthesis, listed: int, requests: int, source: str) -> str:
    kinds = {
        listed: "with the texts that were captured",
        0: "in words that only have the same lengths and beginnings",
    }
    kind = kinds.get(made.real, f"{made.real:,} of them with the text that was captured")
    said = f"Made of {requests:,} requests ({source}): {listed:,} prompts, {kind}"
    return "".join(c if c.isprintable() else "?" for c in said)


def _stream_share(columns: RequestColumns) -> float | None:
    told = columns.per_request("stream")
    told = told[~np.isnan(told)]
    return round(float(told.mean()), 4) if len(told) else None


def _value(value: object) -> str:
    """A value as TOML writes it: like JSON, but for tables in a line."""
    if isinstance(value, str):
        # half a surrogate pair has no place in a file
        whole = value.encode("utf-8", "replace").decode()
        return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_value(one)}' for key, one in value.items())}}}"
    return json.dumps(value)
