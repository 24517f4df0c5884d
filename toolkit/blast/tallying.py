"""One worker's answers, folded into one tally per host, second and kind, and sent to the master. No clock: the caller says when.

`add` is called once for every request of a blast. Measured on a shared core: 1.0 us for a whole answer, 1.4 us for a
stream (two sketches), 0.6 us for a failure.

What no header tells is inferred: a ranked answer that repeats an earlier request exactly came from memory if it took
less than a tenth of what unique requests of the same prompt take at this host, and less than an engine takes to write
so many tokens; of what is in between nobody can tell. Whole answers and streams are held against the same median, for
E2E ends with the last token of both.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from statistics import median
from typing import Any, Literal

from toolkit.protocol.cache_status import says_hit
from toolkit.records import ErrorCount, LoaderSecond, RequestRecord, Tally, TallyKind
from toolkit.stats import Sketch

Kind = Literal["ranked", "unique", "twin"]

MESSAGE_FORMAT = 2
"""Of what a master and its workers send each other; they must agree on it. 2: a plan has endpoint, lengths and a tokenizer's words."""

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


class _Host:
    """What is open of one host: its cells, and how long its unique canaries took."""

    def __init__(self) -> None:
        self.cells: dict[TallyKind, dict[int, _Cell]] = {"ranked": {}, "canary": {}}
        self.known: dict[str, deque[float]] = {}
        self.limits: dict[str, float] = {}
        """Prompt -> milliseconds below which a repeat came from memory."""

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
    """One worker's tallies of one run, and what else it reports to its master."""

    def __init__(self, run: str, worker: str, send: Callable[[Mapping[str, Any]], None]) -> None:
        """`send` takes a message of plain values and may raise; then its content goes with the next one."""
        self._run, self._worker, self._send = run, worker, send
        self._hosts: dict[tuple[str, str], _Host] = {}
        self._unsent: dict[str, list[dict[str, Any]]] = {"tallies": [], "seconds": [], "shots": []}

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
        cells = here.cells["ranked" if kind == "ranked" else "canary"]
        at_s = int(at)
        cell = cells.get(at_s)
        if cell is None:
            cell = cells[at_s] = _Cell()
        if not ok:
            cell.errors[error_kind or "garbage"] += 1
            return
        cell.ok += 1
        if prompt_tokens is not None:
            cell.prompt_tokens += prompt_tokens
        if output_tokens is not None:
            cell.output_tokens += output_tokens
            if output_tokens_estimated:
                cell.output_tokens_estimated += output_tokens
        if streamed:
            cell.streamed += 1
            if ttft_ms is not None:
                cell.ttft.add(ttft_ms)
        says_hit = cache_status is not None and _says_hit(cache_status)
        if cache_status is not None:
            cell.cache_told += 1
            cell.cache_hits += says_hit
        if e2e_ms is None:
            return
        cell.e2e.add(e2e_ms)
        if kind == "unique":
            if not says_hit:
                here.learn(prompt, e2e_ms)
        elif repeats and kind == "ranked" and cache_status is None and prompt in here.limits:
            if output_tokens is not None and output_tokens < LEAST_TOKENS:
                return
            if e2e_ms >= here.limits[prompt]:
                cell.cache_judged += 1
            elif output_tokens is None or e2e_ms < WRITING_MS * output_tokens:
                cell.cache_judged += 1
                cell.cache_inferred += 1

    def add_second(self, second: LoaderSecond) -> None:
        """Say how this worker fared in a second that is over."""
        self._unsent["seconds"].append(plain(second))

    def add_shot(self, shot: RequestRecord) -> None:
        """Have a canary's shot stored."""
        self._unsent["shots"].append(plain(shot))

    def report(self, sent_at: float, *, before_s: int | None, final: bool = False) -> None:
        """Send all seconds before `before_s`, None for all; `final`: this worker has no more of this run."""
        self._unsent["tallies"] += map(plain, self.take(before_s))
        about = {"run": self._run, "worker": self._worker, "sent_at": sent_at, "final": final}
        self._send(about | self._unsent)
        self._unsent = {kind: [] for kind in self._unsent}

    def take(self, before_s: int | None = None) -> list[Tally]:
        """Hand out the seconds before `before_s`, or all: each count once, by second, then by host.

        What ends later in a second that was handed out becomes a tally of its own.
        """
        taken = []
        for (name, url), here in self._hosts.items():
            for kind, cells in here.cells.items():
                for at_s in [at_s for at_s in cells if before_s is None or at_s < before_s]:
                    cell = cells.pop(at_s)
                    errors = sorted(cell.errors.items())
                    tally = Tally(
                        run=self._run,
                        name=name,
                        url=url,
                        at_s=at_s,
                        worker=self._worker,
                        kind=kind,
                        errors=cell.errors.total(),
                        error_kinds=tuple(ErrorCount(kind=word, count=n) for word, n in errors),
                        e2e=cell.e2e.to_bytes(),
                        ttft=cell.ttft.to_bytes(),
                        **{each: getattr(cell, each) for each in _COUNTS},
                    )
                    taken.append(tally)
        return sorted(taken, key=lambda tally: (tally.at_s, tally.name, tally.url))


_COUNTS = [each.name for each in fields(_Cell) if each.default == 0]


def plain(record: Tally | LoaderSecond | RequestRecord) -> dict[str, Any]:
    """The fields that say something, in values that any message carries."""
    values = {
        each.name: value
        for each in fields(record)
        if (value := getattr(record, each.name)) != each.default or each.default is MISSING
    }
    if isinstance(record, Tally):
        values["error_kinds"] = [[error.kind, error.count] for error in record.error_kinds]
    return values
