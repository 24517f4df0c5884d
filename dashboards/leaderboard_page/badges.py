"""What explains a host's figures, in a word: the badge of each verdict, its tone, and the list of their evidence."""

from collections.abc import Iterable, Sequence

from leaderboard_page.icons import icon
from toolkit.board.standings import AffectedInterval, Standing
from toolkit.records import Verdict
from toolkit.report.html import Markup, tag
from toolkit.units import span, time_of_day

# code -> (word, tone, sign). `foul`: the figures are not what they seem; `warn`: something happened or is wrong;
# `info`: an honest reason to be fast, or nothing to blame.
_BADGES = {
    "response_cache": ("cached", "info", "bolt"),
    "truncated_output": ("truncated", "foul", "scissors"),
    "inflated_usage": ("inflated usage", "foul", "scissors"),
    "hidden_backend": ("hidden backend", "foul", "mask"),
    "model_mismatch": ("other model", "foul", "mask"),
    "fast_failures": ("fast failures", "warn", "warning"),
    "foreign_traffic": ("others' traffic", "warn", "warning"),
    "restarted": ("restarted", "warn", "restart"),
    "config_drift": ("config drift", "warn", "sliders"),
    "saturated": ("saturated", "warn", "warning"),
    "cold": ("cold", "info", "snow"),
    "same_engine": ("same engine", "quiet", "info"),
    "not_judged": ("not judged", "quiet", "info"),
}
MOST_OPEN = 5
"""Lines of evidence that are shown without being asked for."""
UNSPOKEN = frozenset({"clean"})
"""A badge for everybody without a fault would say nothing."""


def badge(verdict: Verdict) -> Markup:
    """One verdict in a word; its evidence stands in the tooltip and in the list below the table."""
    word, tone, sign = _BADGES.get(
        verdict.code, (verdict.code.replace("_", " "), "warn", "warning")
    )
    return tag(
        "span",
        icon(sign),
        word,
        class_=f"badge {tone}",
        data_code=verdict.code,
        title=f"{verdict.evidence} (confidence: {verdict.confidence})",
    )


def badges(standing: Standing) -> Markup | None:
    """All of a host's badges, its trouble first."""
    spoken = [badge(verdict) for verdict in standing.verdicts if verdict.code not in UNSPOKEN]
    if standing.trouble:
        told = f"{standing.errors:,} of {standing.ok + standing.errors:,} requests failed"
        sign = icon("warning")
        shown = tag(
            "span",
            sign,
            standing.trouble,
            class_="badge foul",
            data_code=standing.trouble,
            title=told,
        )
        spoken.insert(0, shown)
    return tag("span", spoken, class_="badges") if spoken else None


def taint_note(taints: Sequence[AffectedInterval]) -> Markup | None:
    """`still in the window: 4 min 10 s of the 14:32 restart`; of an outage that lasts, how long it does."""
    if not taints:
        return None
    *_, last = taints
    if last.to_s is None:
        told = f"not answering since {time_of_day(last.from_s)}"
        return tag("span", told, class_="note", title=f"{last.errors:,} requests failed")
    whole_s = sum(taint.in_window_s for taint in taints)
    when = time_of_day(last.from_s, seconds=False)
    what = f"the {when} {_kind(last)}" if len(taints) == 1 else f"{len(taints)} outages"
    return tag(
        "span",
        f"still in the window: {span(whole_s)} of {what}",
        class_="note",
        title=None if last.clean_in_s is None else f"Out of the window in {span(last.clean_in_s)}",
    )


def _kind(taint: AffectedInterval) -> str:
    return "restart" if taint.restarted else "outage"


def evidence(standings: Iterable[Standing], *, key: str = "evidence") -> Markup | None:
    """Every badge's evidence, host by host, for who cannot hover, prints, or listens."""
    rows = [
        tag(
            "li",
            tag("b", standing.name, class_="name"),
            badge(verdict),
            tag("span", verdict.evidence, class_="because"),
            tag("span", f"confidence: {verdict.confidence}", class_="sure"),
            data_key=f"{standing.name}/{verdict.code}/{number}",
        )
        for standing in standings
        for number, verdict in enumerate(standing.verdicts)
        if verdict.code not in UNSPOKEN
    ]
    if not rows:
        return None
    return tag(
        "details",
        tag("summary", "What the badges rest on"),
        tag("ul", rows),
        id=key,
        class_="evidence",
        # a long list starts closed: it would push the charts off the screen
        open=len(rows) <= MOST_OPEN,
    )
