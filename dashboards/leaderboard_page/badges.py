"""What explains a host's figures, in a word: the badge of each verdict, its tone and sign, and the list of their evidence."""

from collections.abc import Iterable

from toolkit.bench.summary import HostSummary
from toolkit.board.standings import Standing
from toolkit.records import Verdict
from toolkit.report.html import Markup, tag

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
# Signs as inline SVG: nothing is loaded, and no font is asked for a glyph it may lack.
_PATHS = {
    "up": "M8 3 L13.5 11 H2.5 Z",
    "down": "M8 13 L2.5 5 H13.5 Z",
    "same": "M3 8 H13",
    "warning": "M8 2 L15 14 H1 Z M8 6.5 V10 M8 11.6 V12.4",
    "scissors": "M4 3 L12 13 M12 3 L4 13 M3.2 13.5 h1.6 M11.2 13.5 h1.6",
    "bolt": "M9 1.5 L3.5 9 H7.5 L6.5 14.5 L12.5 6.5 H8.5 Z",
    "restart": "M13 8 A5 5 0 1 1 10.8 3.9 M11 1.2 V4.2 H8",
    "sliders": "M2 5 H14 M2 11 H14 M5.5 3 V7 M10.5 9 V13",
    "mask": "M2 5 Q8 2 14 5 Q14 12 8 14 Q2 12 2 5 Z M5.2 8 h1.6 M9.2 8 h1.6",
    "info": "M8 7 V12 M8 3.8 V4.6",
    "snow": "M8 1.5 V14.5 M2.4 4.8 L13.6 11.2 M13.6 4.8 L2.4 11.2",
}
_FILLED = frozenset({"up", "down", "bolt"})
ERROR_LEVELS = ((0.1, "over10"), (0.05, "over5"), (0.01, "over1"))
"""An error rate above the share has this class of page.css: red, a strong amber, amber."""


def icon(name: str) -> Markup:
    """One sign, as high as the text beside it; the text says what it means, so readers skip it."""
    path = tag("path", d=_PATHS[name])
    kind = "fill" if name in _FILLED else "stroke"
    return tag("svg", path, class_=f"icon {kind}", viewBox="0 0 16 16", aria_hidden="true")


def error_level(error_rate: float | None) -> str | None:
    """How bad an error rate is; None: nothing to show."""
    return next((level for above, level in ERROR_LEVELS if (error_rate or 0.0) > above), None)


def badge(verdict: Verdict) -> Markup:
    """One verdict in a word; its evidence stands in the tooltip and in the list below the table."""
    unknown = (verdict.code.replace("_", " "), "warn", "warning")
    word, tone, sign = _BADGES.get(verdict.code, unknown)
    title = verdict.because
    if verdict.shown_confidence:
        title += f" (confidence: {verdict.confidence})"
    return tag(
        "span", icon(sign), word, class_=f"badge {tone}", data_code=verdict.code, title=title
    )


def confidence(verdict: Verdict) -> Markup | None:
    """How sure an accusation is, behind its evidence."""
    if verdict.shown_confidence is None:
        return None
    return tag("span", f"confidence: {verdict.confidence}", class_="sure")


def shown_verdicts(one: Standing | HostSummary) -> list[Verdict]:
    """The verdicts that are shown: a badge for everybody without a fault would say nothing."""
    return [verdict for verdict in one.verdicts if verdict.code != "clean"]


def evidence(
    standings: Iterable[Standing | HostSummary], *, key: str = "evidence"
) -> Markup | None:
    """Every badge's evidence, host by host, for who cannot hover, prints, or listens."""
    rows = [
        tag(
            "li",
            tag("b", one.name, class_="name", data_host=one.name),
            badge(verdict),
            tag("span", verdict.because, class_="because"),
            confidence(verdict),
            data_key=f"{one.name}/{verdict.code}/{number}",
        )
        for one in standings
        for number, verdict in enumerate(shown_verdicts(one))
    ]
    if not rows:
        return None
    summary = tag("summary", "Evidence of all badges")
    # a long list starts closed: it would push the charts off the screen
    is_open = len(rows) <= MOST_OPEN
    return tag("details", summary, tag("ul", rows), id=key, class_="evidence", open=is_open)
