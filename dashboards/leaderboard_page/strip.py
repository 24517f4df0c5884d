"""The first two lines of the page: how the blast stands and how old its figures are, and the few that matter most.

It judges no host. The data's age counts on in the browser (live.js), so it turns red even when the server is gone.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leaderboard_page.icons import icon
from leaderboard_page.standings_table import WORDS
from toolkit.board.ranking import may_lead
from toolkit.board.standings import Board, RankBy, Standing
from toolkit.records import Event, Run
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN, day, milliseconds, rate, share, span, stopwatch, time_of_day

LATE_S = 5
"""Older figures than this are amber: a tick or two was missed."""
STALE_S = 15
"""And older than this red: nobody should point at them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripState:
    """What the strip tells beside the board."""

    run: Run
    now: float
    """Wall clock of the serving machine."""
    events: Sequence[Event] = ()
    viewers: int = 0
    replayed: bool = False
    """A past moment is shown, chosen by the viewer."""
    trouble: str | None = None
    """Why the figures do not follow the database, in one sentence."""
    revealing: bool = False
    """Places are being uncovered one by one, and the other figures are those of the freeze."""
    titled: bool = False
    """The page's title stands here, for want of a toolbar."""


def strip(board: Board, moment: StripState) -> Markup:
    """How the blast stands: phase, clock, window, age of the data, and what limits their worth."""
    return tag(
        "header",
        title(moment.run) if moment.titled else None,
        tag(
            "ul",
            _item("phase", "phase", _phase(board, moment)),
            _item("clock", "clock", _clock(board, moment)),
            _item("window", f"window, {span(board.window_s)}", _window(board)),
            _age(board, moment),
            _limited(board),
            _frozen(board, moment),
            _item("viewers", "viewers", moment.viewers) if moment.viewers else None,
            class_="facts",
        ),
        tag("p", icon("warning"), moment.trouble, class_="trouble", role="status")
        if moment.trouble
        else None,
        class_="strip",
    )


def title(run: Run | None) -> Markup:
    """The page's name, and the day and moment of the blast it shows."""
    told = f"{day(run.started_at)}, {time_of_day(run.started_at, seconds=False)}" if run else ""
    return tag("h1", "Leaderboard", tag("small", told), class_="title")


def _item(
    key: str, title: object, *told: object, tone: str = "", hint: str | None = None
) -> Markup:
    return tag(
        "li",
        tag("span", title, class_="what"),
        tag("b", told, class_="told"),
        class_=f"{key} {tone}".strip(),
        title=hint,
    )


def _phase(board: Board, moment: StripState) -> str:
    if moment.replayed:
        return "replay"
    phases = [
        event.text for event in moment.events if event.kind == "phase" and _is_past(event, board)
    ]
    if board.ended:
        return "over"
    return phases[-1] if phases else "running"


def _is_past(event: Event, board: Board) -> bool:
    return board.at_s is None or event.at <= board.at_s + 1


def setting(run: Run, name: str) -> object:
    """One of a run's settings; None: it does not tell."""
    try:
        return json.loads(run.settings).get(name)
    except (ValueError, AttributeError):
        return None


def planned_s(run: Run) -> float | None:
    """How long the run was meant to be; None: nobody said."""
    told = setting(run, "duration_s")
    return float(told) if isinstance(told, int | float) and told > 0 else None


def _clock(board: Board, moment: StripState) -> list[object]:
    run = moment.run
    end = board.at_s + 1 if board.at_s is not None else run.started_at
    told: list[object] = [stopwatch(end - run.started_at)]
    whole = planned_s(run)
    if whole and not board.ended and not moment.replayed:
        left = run.started_at + whole - end
        told.append(tag("small", f" {stopwatch(left)} left") if left >= 1 else None)
    return told


def _window(board: Board) -> str:
    if board.at_s is None:
        return UNKNOWN
    begin = board.at_s + 1 - min(board.window_s, board.elapsed_s)
    return f"{time_of_day(begin)}-{time_of_day(board.at_s + 1)}"


def age_state(age_s: float) -> str:
    """`fresh`, `late` or `stale`."""
    if age_s > STALE_S:
        return "stale"
    return "late" if age_s > LATE_S else "fresh"


def _age(board: Board, moment: StripState) -> Markup:
    """The data's age while a blast is on; when it is over, its end is what counts."""
    if moment.replayed or moment.revealing or board.frozen_at_s is not None:
        return _item("as-of", "as of", time_of_day(board.at_s))
    if board.ended or board.data_end_s is None:
        told = f"final, {time_of_day(board.at_s)}" if board.ended else "no data yet"
        return _item("as-of", "figures", told)
    # a second is over, and may be told, at its end
    age_s = max(0.0, moment.now - (board.data_end_s + 1))
    return tag(
        "li",
        tag("span", "data age", class_="what"),
        tag(
            "b",
            f"{age_s:.0f} s" if age_s < 120 else span(age_s),
            class_="told age",
            data_state=age_state(age_s),
            data_age=f"{age_s:.1f}",
            data_late=LATE_S,
            data_stale=STALE_S,
        ),
        class_="data",
        title="Now minus the last second that every live worker has reported",
    )


def _limited(board: Board) -> Markup | None:
    """How much of the window says more about the load generator than about any host."""
    if not board.limited_s or not board.elapsed_s:
        return None
    part = board.limited_s / board.elapsed_s
    told = [share(part), tag("small", f" {span(board.limited_s)}")]
    hint = "Seconds of the window in which the load generator was the limit: they count against no host"
    return _item("limited", "loader-limited", told, tone="warn", hint=hint)


def _frozen(board: Board, moment: StripState) -> Markup | None:
    if moment.revealing:
        hint = (
            "The standings are uncovered from the last to the first; all else is as at the freeze"
        )
        return _item("reveal", "board", icon("snow"), "reveal", tone="info", hint=hint)
    if board.frozen_at_s is None:
        return None
    told = (icon("snow"), f"frozen at {time_of_day(board.frozen_at_s)}")
    hint = "The blast goes on; the public board stands still until the reveal"
    return _item("frozen", "board", told, tone="info", hint=hint)


# --- the few figures that matter most -------------------------------------------------------------


def kpis(board: Board, *, covered: bool = False) -> Markup:
    """Who leads by how much, how much there is in all, and the best latencies."""
    standings = [one for one in board.standings if one.ok or one.errors]
    cards = [_covered()] if covered else [_leader(board, standings)]
    if not covered:
        cards += [
            _card("total", "all hosts", rate(sum(one.rps for one in standings)), "requests/s"),
            _best("best TTFT p95", standings, "ttft_p95"),
            _best("best latency p95", standings, "p95"),
            _errors(standings),
        ]
    return tag("ul", cards, class_="kpis")


def _card(key: str, title: str, told: object, below: object) -> Markup:
    return tag(
        "li",
        tag("span", title, class_="what"),
        tag("b", told, class_="told"),
        tag("span", below, class_="below"),
        class_=key,
    )


def _covered() -> Markup:
    return _card("leader", "leader", "?", "place by place, from the last to the first")


def _leader(board: Board, standings: Sequence[Standing]) -> Markup:
    ranked = [one for one in standings if one.rank is not None]
    sure = [one for one in ranked if may_lead(one, board.rank_by)]
    if not sure:
        told = (
            "too few good answers yet"
            if any(one.ok for one in ranked)
            else "nobody has answered yet"
        )
        return _card("leader", "leader", UNKNOWN, told)
    first, *others = sure
    tied = [one.name for one in others if one.rank == first.rank]
    if tied:
        below = f"tied with {', '.join(tied[:2])}" + (" and others" if len(tied) > 2 else "")
    else:
        below = margin(first, others[0], board.rank_by) if others else "no rival"
    ahead = [one for one in ranked[: ranked.index(first)] if one.rank != first.rank]
    if ahead:
        more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
        below += f"; not counted: {ahead[0].name}{more}, {ahead[0].trouble or 'too few answers'}"
    return _card(
        "leader", f"leads by {WORDS[board.rank_by]}", tag("span", first.name, class_="name"), below
    )


_VALUE: dict[RankBy, Callable[[Standing], float | None]] = {
    "rps": lambda one: one.rps,
    "ttft_p50": lambda one: one.ttft_p50_ms,
    "ttft_p95": lambda one: one.ttft_p95_ms,
    "p50": lambda one: one.p50_ms,
    "p95": lambda one: one.p95_ms,
    "error_rate": lambda one: one.error_rate,
    "output_tokens_per_s": lambda one: one.output_tokens_per_s,
    "score": lambda one: one.score,
}


def margin(first: Standing, second: Standing, rank_by: RankBy) -> str:
    """How far the first is ahead, in the ranking's own terms."""
    mine, theirs = _VALUE[rank_by](first), _VALUE[rank_by](second)
    if mine is None or theirs is None:
        return f"ahead of {second.name}"
    if rank_by == "error_rate":
        return f"{100 * (theirs - mine):.1f} points under {second.name}"
    more, less = (
        (theirs, mine) if rank_by in {"ttft_p50", "ttft_p95", "p50", "p95"} else (mine, theirs)
    )
    if less <= 0:
        return f"ahead of {second.name}"
    ratio = more / less
    word = "faster than" if more is theirs else "ahead of"
    told = f"{ratio:.1f} times" if ratio >= 2 else f"{100 * (ratio - 1):.1f} %"
    return f"{told} {word} {second.name}"


def _best(title: str, standings: Sequence[Standing], rank_by: RankBy) -> Markup:
    """The least of the hosts whose quantile is sure, and who are in no trouble."""
    told = [(_VALUE[rank_by](one), one) for one in standings if may_lead(one, rank_by)]
    known = [(value, one.name) for value, one in told if value is not None]
    if not known:
        answered = any(_VALUE[rank_by](one) is not None for one in standings)
        return _card("best", title, UNKNOWN, "too few answers yet" if answered else "no answer yet")
    least, name = min(known)
    return _card("best", title, milliseconds(least), tag("span", name, class_="name"))


def _errors(standings: Sequence[Standing]) -> Markup:
    ok, errors = sum(one.ok for one in standings), sum(one.errors for one in standings)
    told = share(errors / (ok + errors)) if ok + errors else UNKNOWN
    return _card("errors", "errors", told, f"{errors:,} of {ok + errors:,}")
