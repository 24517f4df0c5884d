"""One worker's answers, folded into one tally per host, second and kind. No clock: the caller says when each ended.

`add` is called once for every request of a blast. Measured on a shared core: 1.0 us for a whole answer, 1.4 us for a
stream (two sketches), 0.6 us for a failure.

What no header tells is inferred: a ranked answer that repeats an earlier request exactly came from memory if it took
less than a tenth of what unique requests of the same prompt take at this host, and less than an engine takes to write
so many tokens; of what is in between nobody can tell. Whole answers and streams are held against the same median, for
E2E ends with the last token of both.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Literal

from toolkit.protocol.cache_status import says_hit
from toolkit.records import ErrorCount, Tally, TallyKind
from toolkit.stats import Sketch

Kind = Literal["ranked", "unique", "twin"]

HIT_SHARE = 0.1
"""Of the unique canaries' median E2E: a repeat that took less may have come from memory."""
WRITING_MS = 4.0
"""A token, of a whole answer's E2E: what took longer may have been written. A prefix cache that saves a long prompt's
reading, or a queue that has gone since the canaries, makes an honest answer ten times as fast, but does not write for
its engine. The contest's servers took 14 ms or more, its cache 5 ms for 256 tokens."""
LEAST_TOKENS = 8
"""Of a repeat: to write fewer takes an engine as long as a busy cache's answer takes."""
LEAST_KNOWN = 3
"""Unique canaries of a prompt; with fewer nothing is inferred for it."""
MOST_KNOWN = 15
"""Of the newest ones the median is taken: at 10 requests a second, two prompts and 1 % canaries, 10 minutes."""
MOST_PROMPTS = 1_000
"""A host's prompts whose canaries are remembered, the newest ones: at most 0.5 MiB."""

# a header's variants, e.g. by time to live, are few beside the answers that bear them
_says_hit: Callable[[str], bool] = lru_cache(maxsize=4096)(says_hit)


@dataclass(slots=True)
class _Cell:
    """One host's second and kind while it is counted."""

    ok: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    streamed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    output_tokens_estimated: int = 0
    cache_told: int = 0
    cache_hits: int = 0
    cache_judged: int = 0
    cache_inferred: int = 0
    e2e: Sketch = field(default_factory=Sketch)
    ttft: Sketch = field(default_factory=Sketch)

    def count_tokens(self, prompt: int | None, output: int | None, estimated: bool) -> None:
        if prompt is not None:
            self.prompt_tokens += prompt
        if output is not None:
            self.output_tokens += output
            if estimated:
                self.output_tokens_estimated += output

    def count_header(self, header: str) -> bool:
        """Whether it told of a hit."""
        hit = _says_hit(header)
        self.cache_told += 1
        self.cache_hits += hit
        return hit

    def infer(self, e2e_ms: float, limit_ms: float, output_tokens: int | None) -> None:
        """Count whether a repeat came from memory, unless nobody can tell."""
        if output_tokens is not None and output_tokens < LEAST_TOKENS:
            return
        if e2e_ms >= limit_ms:
            self.cache_judged += 1
        elif output_tokens is None or e2e_ms < WRITING_MS * output_tokens:
            self.cache_judged += 1
            self.cache_inferred += 1


class _Host:
    """What is open of one host: its cells, and how long its unique canaries took."""

    __slots__ = ("canary", "known", "limits", "ranked")

    def __init__(self) -> None:
        self.ranked: dict[int, _Cell] = {}
        self.canary: dict[int, _Cell] = {}
        self.known: dict[str, deque[float]] = {}
        self.limits: dict[str, float] = {}
        """Prompt -> milliseconds below which a repeat came from memory."""

    def cells(self) -> tuple[tuple[TallyKind, dict[int, _Cell]], ...]:
        """All that is open, by kind."""
        return ("ranked", self.ranked), ("canary", self.canary)

    def learn(self, prompt: str, e2e_ms: float) -> None:
        """Remember what a unique canary took."""
        known = self.known.pop(prompt, None) or deque(maxlen=MOST_KNOWN)
        known.append(e2e_ms)
        self.known[prompt] = known
        if len(known) >= LEAST_KNOWN:
            self.limits[prompt] = HIT_SHARE * median(known)
        if len(self.known) > MOST_PROMPTS:
            oldest = next(iter(self.known))
            del self.known[oldest]
            self.limits.pop(oldest, None)


class Tallying:
    """One worker's tallies of one run."""

    def __init__(self, run: str, worker: str) -> None:
        self._run = run
        self._worker = worker
        self._hosts: dict[tuple[str, str], _Host] = {}

    def add(
        self,
        host: tuple[str, str],
        at: float,
        *,
        kind: Kind,
        prompt: str,
        repeats: bool,
        ok: bool,
        error_kind: str | None = None,
        streamed: bool = False,
        ttft_ms: float | None = None,
        e2e_ms: float | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        output_tokens_estimated: bool = False,
        cache_status: str | None = None,
    ) -> None:
        """Count a request of a host (name, URL) that ended at `at`, wall clock.

        `kind`, `prompt` and `repeats` are the order's; the rest is how it ended.
        """
        here = self._hosts.get(host)
        if here is None:
            here = self._hosts[host] = _Host()
        cells = here.ranked if kind == "ranked" else here.canary
        at_s = int(at)
        cell = cells.get(at_s)
        if cell is None:
            cell = cells[at_s] = _Cell()
        if not ok:
            cell.errors[error_kind or "garbage"] += 1
            return
        cell.ok += 1
        cell.count_tokens(prompt_tokens, output_tokens, output_tokens_estimated)
        if streamed:
            cell.streamed += 1
            if ttft_ms is not None:
                cell.ttft.add(ttft_ms)
        told_hit = cache_status is not None and cell.count_header(cache_status)
        if e2e_ms is None:
            return
        cell.e2e.add(e2e_ms)
        if kind == "unique":
            if not told_hit:
                here.learn(prompt, e2e_ms)
        elif repeats and kind == "ranked" and cache_status is None and prompt in here.limits:
            cell.infer(e2e_ms, here.limits[prompt], output_tokens)

    def take(self, before_s: int | None = None) -> list[Tally]:
        """Hand out the seconds before `before_s`, or all: each count once, by second, then by host.

        What ends later in a second that was handed out becomes a tally of its own.
        """
        taken = [
            self._tally(host, at_s, kind, cells.pop(at_s))
            for host, here in self._hosts.items()
            for kind, cells in here.cells()
            for at_s in [at_s for at_s in cells if before_s is None or at_s < before_s]
        ]
        return sorted(taken, key=lambda tally: (tally.at_s, tally.name, tally.url))

    def _tally(self, host: tuple[str, str], at_s: int, kind: TallyKind, cell: _Cell) -> Tally:
        name, url = host
        return Tally(
            run=self._run,
            name=name,
            url=url,
            at_s=at_s,
            worker=self._worker,
            kind=kind,
            ok=cell.ok,
            errors=cell.errors.total(),
            error_kinds=tuple(
                ErrorCount(kind=word, count=count) for word, count in sorted(cell.errors.items())
            ),
            streamed=cell.streamed,
            prompt_tokens=cell.prompt_tokens,
            output_tokens=cell.output_tokens,
            output_tokens_estimated=cell.output_tokens_estimated,
            cache_told=cell.cache_told,
            cache_hits=cell.cache_hits,
            cache_judged=cell.cache_judged,
            cache_inferred=cell.cache_inferred,
            e2e=cell.e2e.to_bytes(),
            ttft=cell.ttft.to_bytes(),
        )
