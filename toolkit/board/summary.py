"""What a board means, in three sentences: who leads and why, who is the best without a trick, what became of who restarted.

Plain values in, sentences out: clock times come from a function, since a time zone is the reader's.
"""

from collections.abc import Callable, Mapping, Sequence

from toolkit.board.outages import Outage
from toolkit.board.standings import UNJUDGED, Board, RankBy, Standing, reasons
from toolkit.records import Event, Verdict
from toolkit.units import short, spoken

TRICKS = {
    "response_cache": "answers from a response cache",
    "truncated_output": "cuts its answers short",
    "hidden_backend": "has answers that its own engine did not make",
    "inflated_usage": "claims tokens that it did not send",
}
"""Verdicts that explain a lead without a faster model, the more telling first."""

Clock = Callable[[float], str]
VerdictsByName = Mapping[str, Sequence[Verdict]]
OutagesByName = Mapping[str, Sequence[Outage]]


def summary(
    board: Board,
    *,
    clock: Clock,
    bench: VerdictsByName | None = None,
    outages: OutagesByName | None = None,
    events: Sequence[Event] = (),
) -> list[str]:
    """Three sentences; `bench` are verdicts of an earlier bench, which speak where the blast's own are silent."""
    ranked = [each for each in board.standings if each.rank is not None and each.ok]
    if not ranked:
        return ["No host answered in this window."]
    tricks = {each.name: _trick(each, (bench or {}).get(each.name, ())) for each in ranked}

    first, rank_by = ranked[0], board.rank_by
    lead = f"{first.name} leads{_level(ranked)} with {figure(first, rank_by)}"
    trick, unjudged = tricks[first.name], _unjudged(first)
    if trick:
        where = ", but not on the honest board" if reasons(first.verdicts) else ""
        lead += f"{where}: it {TRICKS[trick.code]} ({first_clause(trick.evidence)})."
    elif first.trouble:
        lead += f", though {first.error_rate or 0:.0%} of its requests failed."
    elif unjudged:
        lead += f", but it was not judged ({first_clause(unjudged.because)})."
    else:
        lead += ", and no anomaly was found."

    plain = [
        each
        for each in ranked
        if tricks[each.name] is None and not each.trouble and not _unjudged(each)
    ]
    others = []
    if not plain:
        others = ["No host is left whose figures are known to come from its own model"]
    elif plain[0] is not first:
        best = f"{plain[0].name}{_level(plain)} with {figure(plain[0], rank_by)}"
        others = [f"The best host whose own model does the work is {best}, rank {plain[0].rank}"]
    elif len(plain) > 1:
        others = [f"{plain[1].name} comes next with {figure(plain[1], rank_by)}"]
    others += [
        f"{each.name} (rank {each.rank}) {TRICKS[found.code]}"
        for each in ranked[1:]
        if (found := tricks[each.name])
    ]
    best_of_others = "; ".join(others or ["No other host answered"]) + "."
    return [lead, best_of_others, _fall(board, outages or {}, events, clock)]


def _trick(standing: Standing, bench: Sequence[Verdict]) -> Verdict | None:
    """What explains a host's figures without a faster model; a hint of low confidence explains nothing."""
    found = [each for each in (*standing.verdicts, *bench) if each.confidence != "low"]
    # the surer word first; of equals the blast's own
    found.sort(key=lambda each: each.confidence != "high")
    return next((each for code in TRICKS for each in found if each.code == code), None)


def _unjudged(standing: Standing) -> Verdict | None:
    """Why nobody knows whether a host's figures are its model's."""
    return next((each for each in reasons(standing.verdicts) if each.code in UNJUDGED), None)


def _level(ranked: Sequence[Standing]) -> str:
    """Who shares the first one's rank."""
    names = [each.name for each in ranked[1:] if each.rank == ranked[0].rank]
    return f", level with {', '.join(names)}," if names else ""


def first_clause(evidence: str) -> str:
    """What stands before the first comma that no brackets hold: the tables say the rest."""
    depth = 0
    for place, sign in enumerate(evidence):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth == 0 and evidence[place : place + 2] in (", ", "; "):
            return evidence[:place]
    return evidence.strip().rstrip(".")


def figure(standing: Standing, rank_by: RankBy) -> str:
    """What a host is ranked by, with its unit."""
    rate = standing.error_rate
    value, words = {
        "rps": (standing.rps, "{} RPS"),
        "output_tokens_per_s": (standing.output_tokens_per_s, "{} tokens a second"),
        "error_rate": (None if rate is None else 100 * rate, "{}% errors"),
        "score": (standing.score, "a score of {}"),
        "ttft_p50": (standing.ttft_p50_ms, "a TTFT p50 of {} ms"),
        "ttft_p95": (standing.ttft_p95_ms, "a TTFT p95 of {} ms"),
        "p50": (standing.p50_ms, "a p50 of {} ms"),
        "p95": (standing.p95_ms, "a p95 of {} ms"),
    }[rank_by]
    return "nothing measured" if value is None else words.format(short(value))


def _fall(board: Board, outages: OutagesByName, events: Sequence[Event], clock: Clock) -> str:
    """The longest downtime, else a restart that cost nothing."""
    falls = [(name, each) for name, found in outages.items() for each in found]
    if not falls:
        names = sorted({event.name for event in events if event.kind == "restart" and event.name})
        if not names:
            return "No host restarted or went down."
        return f"{', '.join(names)} restarted without a second of downtime."

    name, worst = max(falls, key=lambda fall: (fall[1].to_s - fall[1].from_s, fall[0]))
    shown = next((s for s in (*board.standings, *board.left_out) if s.name == name), None)
    rate = "no request"
    if shown and shown.error_rate is not None:
        rate = f"{shown.error_rate:.0%} errors"

    began = clock(worst.from_s)
    if not worst.is_over:
        fall = f"{name} went down at {began} and has not come back: {rate} in the window."
    else:
        verb = "restarted" if worst.restarted else "went down"
        has_changed = shown and any(each.code == "config_drift" for each in shown.verdicts)
        how = " with other settings" if has_changed else ""
        length = spoken(worst.to_s - worst.from_s)
        fall = f"{name} {verb} at {began}{how} and was down for {length}"
        # the window ends with the end of the board's second
        clean_s = worst.to_s + board.window_s
        if board.at_s is None or not worst.to_s <= board.at_s + 1 < clean_s:
            fall += "; the window no longer holds any of it."
        else:
            fall += f": {rate} in the window, which holds it until {clock(clean_s)}."
    rest = sorted({other for other, _ in falls if other != name})
    return f"{fall} Also down for a while: {', '.join(rest)}." if rest else fall
