"""Where the figures come from, in one line: run, load generator, users, profile, start; and whether they may be ranked at all.

Pure: what the run's settings do not say is said to be unknown.
"""

import re
from collections.abc import Iterable

from leaderboard_page.address import link
from leaderboard_page.badges import icon
from toolkit.board.standings import Board, why_not_valid
from toolkit.records import Event, Run
from toolkit.report.html import Markup, tag
from toolkit.units import counted, day, share, span, spoken_list, time_of_day

NAMED = 3
"""Of more machines than these only the first are named."""


def provenance(
    board: Board, run: Run, events: Iterable[Event], *, can_switch: bool = True
) -> Markup:
    """The line, and above it a banner where the command line calls the run not valid for ranking.

    `can_switch`: whether the viewer may choose if seconds in which the load generator was the limit count, and look elsewhere.
    """
    plan = run.plan
    machines = plan.get("load_generator")
    names = [str(name) for name in machines] if isinstance(machines, list) else []
    loader = spoken_list(names, NAMED)
    processes = plan.get("workers")
    if isinstance(processes, int) and processes > 1:
        loader = f"{loader or 'unknown machine'}, {processes} processes"

    reason = why_not_valid(events)
    words, is_beside = re.subn(" (is|are) on this machine$", "", (reason or "").replace("`", ""))
    if is_beside or plan.get("non_neutral"):
        placed = "on the same machine as the hosts"
    elif names:
        placed = "not on the hosts' machines"
    else:
        placed = "unknown whether on a host's machine"

    limit: list[object] = ["never in the window"]
    if board.limited_s:
        of = f" of {span(board.elapsed_s)} ({share(board.limited_s / max(1, board.elapsed_s))})"
        limit = [span(board.limited_s), of]
    if board.limited_s or board.skip_limited:
        limit.append(", left out" if board.skip_limited else ", counted")
        switch = tag(
            "a",
            "Leave them out",
            href=link(skip_limited="" if board.skip_limited else 1),
            class_="switch",
            role="switch",
            aria_checked="true" if board.skip_limited else "false",
            title="The seconds in which the load generator was the limit, for all hosts",
        )
        limit += [switch] if can_switch else []

    users = plan.get("users")
    sent = f"{counted(users, 'user')}" if isinstance(users, int) else "unknown"
    if isinstance(plan.get("users_per_host"), int):
        sent += f", {plan['users_per_host']:,} a host"
    if plan.get("rate"):
        sent += f", {plan['rate']:g} requests/s a host"

    facts: list[tuple[str, str, object]] = [
        ("run", "run", tag("a", run.id, href=link(run=run.id))),
        ("loader", "load generator", f"{loader or 'unknown machine'}, {placed}"),
        ("limited", "at its limit", limit),
        ("users", "load", sent),
        ("profile", "profile", plan.get("profile") or "unknown"),
        ("since", "since", f"{day(run.started_at)}, {time_of_day(run.started_at, seconds=False)}"),
    ]
    if can_switch:
        also = tag("a", "hosts, bench, workload", href=link(view="hosts"))
        facts.append(("known", "see also", also))
    tones = {
        "loader": " warn" if is_beside or plan.get("non_neutral") else "",
        "limited": " warn" if board.limited_s or run.client_ok is False else "",
    }
    line = [
        tag(
            "li",
            tag("span", what, class_="what"),
            tag("span", value, class_="value"),
            class_=key + tones.get(key, ""),
        )
        for key, what, value in facts
    ]
    banner = None
    if reason:
        if is_beside:
            words = f"Load generator on the same machine as the hosts: {words}."
        banner = tag(
            "p",
            icon("warning"),
            tag("b", "Not valid for ranking. "),
            words,
            class_="banner",
            role="status",
        )
    return Markup.joined((banner, tag("ul", line, class_="provenance")))
