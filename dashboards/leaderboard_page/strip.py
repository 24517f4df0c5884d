"""The first two lines of the page: how the blast stands and how old its figures are, and the few that matter most.

It judges no host. The data's age counts on in the browser (live.js), so it turns red even when the server is gone.
"""

from collections.abc import Sequence

from leaderboard_page.badges import icon
from leaderboard_page.standings_table import RANKINGS
from toolkit.board.ranking import may_lead
from toolkit.board.standings import Board, RankBy, Standing
from toolkit.records import Event, Run
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN, day, milliseconds, rate, share, span, stopwatch, time_of_day

LATE_S = 5
"""Older figures than this are amber: a tick or two was missed."""
STALE_S = 15
"""And older than this red: nobody should point at them."""


def strip(
    board: Board,
    run: Run,
    *,
    now: float,
    measured_s: int | None,
    events: Sequence[Event] = (),
    viewers: int = 0,
    replayed: bool = False,
    trouble: str | None = None,
    revealing: int = 0,
    heading: Markup | None = None,
) -> Markup:
    """How the blast stands: phase, clock, window, age of the data, and what limits their worth.

    `now` is the serving machine's wall clock, `measured_s` the last second that was measured, which a frozen board does
    not show. `replayed`: a past moment is shown, chosen by the viewer. `trouble` says why the figures do not follow the
    database. `revealing`: so many places are still covered, and the other figures are those of the freeze.
    `heading`: the page's title, where no toolbar holds it.
    """
    at_s, end = board.at_s, run.started_at if board.at_s is None else board.at_s + 1.0
    phase = "over" if board.ended else "running"
    if replayed:
        phase = "replay"
    elif not board.ended:
        for event in events:
            if event.kind == "phase" and (at_s is None or event.at <= end):
                phase = event.text

    # The event's clock runs on behind a freeze, and between two ticks by itself (live.js). Where no more seconds are measured
    # it stands still, as the load has.
    if replayed:
        clock = _running(run, end - run.started_at, None, runs=False)
    else:
        measured = run.started_at if measured_s is None else measured_s + 1.0
        runs = not board.ended and now - measured <= STALE_S
        passed_s = (max(now, measured) if runs else measured) - run.started_at
        clock = _running(run, passed_s, None if board.ended else planned_s(run), runs=runs)
    begin_s = end - min(board.window_s, board.elapsed_s)
    window = UNKNOWN if at_s is None else f"{time_of_day(begin_s)}-{time_of_day(end)}"

    # while a blast is on, the data's age counts; when it is over, its end
    if replayed or revealing or board.frozen_at_s is not None:
        age = fact("as-of", "as of", time_of_day(at_s))
    elif board.ended:
        age = fact("as-of", "figures", f"final, {time_of_day(at_s)}")
    elif board.data_end_s is None:
        age = fact("as-of", "figures", "no data yet")
    else:
        # a second is over, and may be shown, at its end
        age_s = max(0.0, now - (board.data_end_s + 1))
        counting = tag(
            "b",
            f"{age_s:.0f} s" if age_s < 120 else span(age_s),
            class_="value age",
            data_state="stale" if age_s > STALE_S else "late" if age_s > LATE_S else "fresh",
            data_age=f"{age_s:.1f}",
            data_late=LATE_S,
            data_stale=STALE_S,
        )
        hint = "Now minus the last second that every live worker has reported"
        age = tag("li", tag("span", "data age", class_="what"), counting, class_="data", title=hint)

    frozen = None
    if revealing:
        hint = (
            "The organizer's ranking is uncovered from the last place to the first;"
            " all else is as at the freeze"
        )
        value = (icon("snow"), "reveal", tag("small", f" {revealing} left"))
        frozen = fact("reveal", "board", value, tone=" info", hint=hint)
    elif board.frozen_at_s is not None:
        value = (icon("snow"), f"frozen at {time_of_day(board.frozen_at_s)}")
        hint = "The blast goes on; the public board stands still until the reveal"
        frozen = fact("frozen", "board", value, tone=" info", hint=hint)
    facts = (
        fact("phase", "phase", phase),
        fact("clock", "clock", clock),
        fact("window", f"window, {span(board.window_s)}", window),
        age,
        frozen,
        fact("viewers", "viewers", viewers) if viewers else None,
    )
    return tag(
        "header",
        heading,
        tag("ul", facts, class_="facts"),
        tag("p", icon("warning"), trouble, class_="trouble", role="status") if trouble else None,
        class_="strip",
    )


def title(run: Run, name: str) -> Markup:
    """The page's name, and the day and moment of the blast it shows."""
    text = f"{day(run.started_at)}, {time_of_day(run.started_at, seconds=False)}"
    return tag("h1", name, tag("small", text), class_="title")


def _running(run: Run, passed_s: float, planned_s: float | None, *, runs: bool) -> Markup:
    """How long the event has been on, and how long it will be."""
    class_ = "runs" if runs else None
    from_s = f"{passed_s:.1f}"
    left = None
    if planned_s is not None and planned_s - passed_s >= 1:
        counting = tag(
            "span",
            stopwatch(planned_s - passed_s),
            class_=class_,
            data_from=from_s,
            data_of=planned_s,
            data_run=run.id,
        )
        left = tag("small", " ", counting, " left")
    return Markup.joined(
        (tag("span", stopwatch(passed_s), class_=class_, data_from=from_s, data_run=run.id), left)
    )


def fact(
    key: str,
    what: object,
    value: object,
    below: object = None,
    *,
    tone: str = "",
    hint: str | None = None,
) -> Markup:
    """A fact of the strip, or a card."""
    name, figure = tag("span", what, class_="what"), tag("b", value, class_="value")
    more = None if below is None else tag("span", below, class_="below")
    return tag("li", name, figure, more, class_=key + tone, title=hint)


def planned_s(run: Run) -> float | None:
    """How long the run was meant to be; None: nobody said."""
    planned = run.plan.get("duration_s")
    return float(planned) if isinstance(planned, int | float) and planned > 0 else None


# --- the few figures that matter most -------------------------------------------------------------


def kpis(board: Board, *, covered: bool = False) -> Markup:
    """Who leads by how much, how much there is in all, and the best latencies."""
    if covered:
        below = "place by place, from the last to the first"
        return tag("ul", fact("leader", "leader", "?", below=below), class_="kpis")
    standings = [one for one in board.standings if one.ok or one.errors]
    ranked = [one for one in standings if one.rank is not None]
    sure = [one for one in ranked if may_lead(one, board.rank_by)]
    if sure:
        first, *others = sure
        tied = [one.name for one in others if one.rank == first.rank]
        below = margin(first, others[0], board.rank_by) if others else "no rival"
        if tied:
            below = f"tied with {', '.join(tied[:2])}" + (" and others" if len(tied) > 2 else "")
        ahead = [one for one in ranked[: ranked.index(first)] if one.rank != first.rank]
        if ahead:
            more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
            why = ahead[0].trouble or "too few answers"
            below += f"; not counted: {ahead[0].name}{more}, {why}"
        heading = f"leads by {RANKINGS[board.rank_by].name}"
        leader = fact("leader", heading, _name(first.name), below=below)
    else:
        answered = any(one.ok for one in ranked)
        why = "too few good answers yet" if answered else "nobody has answered yet"
        leader = fact("leader", "leader", UNKNOWN, below=why)

    bests = []
    for rank_by in ("ttft_p95", "p95"):
        # the least of the hosts whose quantile is sure, and who are in no trouble
        known = [(value, one) for one in standings if (value := _value(one, rank_by)) is not None]
        may = [(value, one.name) for value, one in known if may_lead(one, rank_by)]
        best, whose = UNKNOWN, "too few answers yet" if known else "no answer yet"
        if may:
            best, whose = milliseconds(min(may)[0]), _name(min(may)[1])
        bests.append(fact("best", f"best {RANKINGS[rank_by].name}", best, below=whose))
    ok, errors = sum(one.ok for one in standings), sum(one.errors for one in standings)
    failed = share(errors / (ok + errors)) if ok + errors else UNKNOWN
    rps = rate(sum(one.rps for one in standings))
    total = fact("total", "all hosts", rps, below="requests/s")
    lost = fact("errors", "errors", failed, below=f"{errors:,} of {ok + errors:,}")
    return tag("ul", leader, total, bests, lost, class_="kpis")


def _name(host: str) -> Markup:
    """A host's name, which opens it."""
    return tag("span", host, class_="name", data_host=host)


def _value(one: Standing, rank_by: RankBy) -> float | None:
    value: float | None = getattr(one, RANKINGS[rank_by].field)
    return value


def margin(first: Standing, second: Standing, rank_by: RankBy) -> str:
    """How far the first is ahead, in the ranking's own terms."""
    mine, theirs = _value(first, rank_by), _value(second, rank_by)
    if mine is None or theirs is None:
        return f"ahead of {second.name}"
    if rank_by == "error_rate":
        return f"{100 * (theirs - mine):.1f} points under {second.name}"
    is_latency = rank_by in {"ttft_p50", "ttft_p95", "p50", "p95"}
    more, less = (theirs, mine) if is_latency else (mine, theirs)
    if less <= 0:
        return f"ahead of {second.name}"
    text = f"{more / less:.1f} times" if more / less >= 2 else f"{100 * (more / less - 1):.1f} %"
    return f"{text} {'faster than' if is_latency else 'ahead of'} {second.name}"
