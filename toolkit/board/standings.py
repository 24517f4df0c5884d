"""The board's facts: a host's standing in one window, the board that lists them, who is left out of the honest one, what a freeze hides."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import floor
from typing import Any, Literal, get_args

from toolkit.records import MOST_ERRORS, NOT_VALID, Event, Run, Verdict
from toolkit.safe_text import spreadsheet_cell

RankBy = Literal[
    "rps",
    "ttft_p50",
    "ttft_p95",
    "p50",
    "p95",
    "error_rate",
    "output_tokens_per_s",
    "score",
]
RANK_BY: tuple[RankBy, ...] = get_args(RankBy)
WINDOW_S = 900
"""The usual window: 15 minutes."""
DISHONEST = frozenset({"truncated_output", "inflated_usage", "hidden_backend"})
"""Verdicts on figures that are not the engine's own: a response cache is allowed, and shown."""
UNJUDGED = frozenset({"not_judged"})
"""Nobody knows whether these figures are the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectedInterval:
    """An outage that still lies in the window: seconds in which most of a host's requests failed."""

    restarted: bool
    """The host is known to have started anew in it."""
    from_s: int
    """Its first second."""
    to_s: int | None
    """The first second after it; None: it still lasts."""
    in_window_s: int
    """As much of it as lies in the window."""
    clean_in_s: int | None
    """Until nothing of it is left in the window; None: it still lasts."""
    errors: int
    """Requests that failed in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One host in one window. The first fields are keys of `toolkit board --json`; unknown is None."""

    rank: int | None
    """From 1; tied hosts share the best of their places. None: left out of the honest board."""
    name: str
    url: str
    score: float | None
    """0 to 1, see ranking.FORMULA; None: no host answered anything."""
    rps: float
    """Ok requests that ended in the window / `counted_s`."""
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    p50_ms: float | None
    """Of E2E; `p95_ms` too."""
    p95_ms: float | None
    error_rate: float | None
    """errors / (ok + errors); None: nothing ended."""
    ok: int
    """Also the number of samples behind `p50_ms` and `p95_ms`."""
    errors: int
    streamed: int
    """Of `ok`, the answers with a TTFT: the samples behind `ttft_p50_ms` and `ttft_p95_ms`."""
    hit_share: float | None
    """Response-cache hits / ok answers that say whether they are one; None: no answer says."""
    hit_share_inferred: bool
    """Some of these were judged by their time, as the host sends no `Cache-Status`."""
    output_tokens_estimated: bool
    """Some tokens were counted from chunks, for want of a usage."""
    tied: bool
    rank_change: int | None
    """Against a minute ago; +2: climbed two places. None: there was no board yet."""
    rank_change_5m: int | None
    verdicts: tuple[Verdict, ...]
    left_out: bool
    """From the honest board, because of one of the verdicts."""
    tainted_s: int | None
    """Seconds of outages that are still in the window; None: none."""
    taints: tuple[AffectedInterval, ...]
    """The same one by one, oldest first."""
    window_s: int
    at: int
    """The window's last second, wall clock of the load generator, since 1970."""

    @property
    def trouble(self) -> Literal["down", "failing"] | None:
        """`down`: it answers nothing, now or in all of the window. `failing`: more than MOST_ERRORS of its requests fail."""
        is_down_now = bool(self.taints) and self.taints[-1].to_s is None
        if is_down_now or (self.errors and not self.ok):
            return "down"
        return "failing" if (self.error_rate or 0.0) > MOST_ERRORS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """All hosts in one window: the last `window_s` seconds up to and with `at_s`."""

    run: str
    at_s: int | None
    """None: the run has no data yet, and every host stands at zero."""
    window_s: int
    elapsed_s: int
    """Seconds of the window that the run has lived through: less than `window_s` while it is younger."""
    counted_s: int
    """What rates are divided by: `elapsed_s`, less the limited seconds where they are skipped."""
    rank_by: RankBy
    honest: bool
    skip_limited: bool
    standings: tuple[Standing, ...]
    """By rank, tied hosts by name."""
    left_out: tuple[Standing, ...]
    """Without rank, for the reason that their verdicts give; only on an honest board."""
    limited_s: int
    """Seconds of the window in which the load generator was the limit, for all hosts."""
    frozen_at_s: int | None
    """The last second that the public may see, if the board is frozen."""
    ended: bool
    data_end_s: int | None
    """The last second that may be seen and that every live worker has reported."""


def usual_window_s(run: Run) -> int:
    """The window a run asks to be ranked by (`window_s` of its settings), else 15 minutes."""
    written = str(run.plan.get("window_s") or "")
    return int(written) if written.isdecimal() and int(written) > 0 else WINDOW_S


def reasons(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts for which a host is left out; a hint alone (low confidence) leaves out nobody."""
    return [
        each for each in verdicts if each.code in DISHONEST | UNJUDGED and each.confidence != "low"
    ]


def frozen_at_s(events: Iterable[Event]) -> int | None:
    """The last second that may be seen, from a run's events in the order of their writing; None: all of them.

    Applied where facts are read, so that no view can leak. A second freeze cannot lift a first one: only a reveal does.
    """
    at_s: int | None = None
    for event in events:
        if event.kind == "reveal":
            at_s = None
        elif event.kind == "freeze":
            at_s = floor(event.at) if at_s is None else min(at_s, floor(event.at))
    return at_s


def why_not_valid(events: Iterable[Event]) -> str | None:
    """Why a run's figures rank nobody, as its marks say; None: they may."""
    for event in events:
        begins, _, reason = event.text.partition(": ")
        # the second is how it was written until 0.1
        if event.kind == "mark" and not event.name and begins in (NOT_VALID, "not neutral"):
            return reason
    return None


def json_rows(board: Board) -> Iterator[dict[str, Any]]:
    """What `toolkit board --json` prints of each host; those left out come last, without rank."""
    about = {
        "run": board.run,
        "rank_by": board.rank_by,
        "honest": board.honest,
        "elapsed_s": board.elapsed_s,
        "counted_s": board.counted_s,
        "limited_s": board.limited_s,
        "frozen_at_s": board.frozen_at_s,
        "ended": board.ended,
    }
    for standing in (*board.standings, *board.left_out):
        yield asdict(standing) | about


def csv_of(board: Board, columns: Sequence[str]) -> str:
    """Fields of Standing as a spreadsheet reads them, a line a host, those left out last; unknown is empty, verdicts are codes."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(columns)
    for one in (*board.standings, *board.left_out):
        values = {name: getattr(one, name) for name in columns}
        if "verdicts" in values:
            values["verdicts"] = " ".join(verdict.code for verdict in one.verdicts)
        lines.writerow([spreadsheet_cell(value) for value in values.values()])
    return written.getvalue()
