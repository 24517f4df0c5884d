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


def story(
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
        return ["Nobody has answered in this window."]
    tricks = {each.name: trick(each, (bench or {}).get(each.name, ())) for each in ranked}
    return [
        _lead(ranked, tricks, board.rank_by),
        _best(ranked, tricks, board.rank_by),
        _fall(board, outages or {}, events, clock),
    ]


def trick(standing: Standing, bench: Sequence[Verdict] = ()) -> Verdict | None:
    """What explains a host's figures without a faster model; a hint of low confidence explains nothing."""
    told = [each for each in (*standing.verdicts, *bench) if each.confidence != "low"]
    # the surer word first; of equals the blast's own
    told.sort(key=lambda each: each.confidence != "high")
    return next((each for code in TRICKS for each in told if each.code == code), None)


# --- who leads --------------------------------------------------------------------------------------


def _lead(ranked: Sequence[Standing], tricks: Mapping[str, Verdict | None], rank_by: RankBy) -> str:
    first = ranked[0]
    found, told = tricks[first.name], figure(first, rank_by)
    beside = _level(ranked)
    if found is None and first.trouble:
        return f"{first.name} leads{beside} with {told}, though {first.error_rate or 0:.0%} of its requests failed."
    if found is None and (unjudged := _unjudged(first)):
        return f"{first.name} leads{beside} with {told}, but it was not judged ({first_clause(unjudged.evidence)})."
    if found is None:
        return f"{first.name} leads{beside} with {told}, and nothing speaks against it."
    where = ", but not on the honest board" if reasons(first.verdicts) else ""
    why = f"it {TRICKS[found.code]} ({first_clause(found.evidence)})"
    return f"{first.name} leads{beside} with {told}{where}: {why}."


def _best(ranked: Sequence[Standing], tricks: Mapping[str, Verdict | None], rank_by: RankBy) -> str:
    first, others = ranked[0], ranked[1:]
    plain = [
        each
        for each in ranked
        if tricks[each.name] is None and not each.trouble and not _unjudged(each)
    ]
    shown = [
        f"{each.name} (rank {each.rank}) {TRICKS[found.code]}"
        for each in others
        if (found := tricks[each.name])
    ]
    if not plain:
        lines = ["Nobody is left of whom it is known that its own model explains what it shows"]
    elif plain[0] is first:
        follows = plain[1:2]
        lines = [f"{each.name} comes next with {figure(each, rank_by)}" for each in follows]
    else:
        best, beside = plain[0], _level(plain)
        told = figure(best, rank_by)
        lines = [
            f"The best whose own model does the work is {best.name}{beside} with {told}, rank {best.rank}"
        ]
    return "; ".join([*lines, *shown] or ["Nobody else has answered"]) + "."


def _unjudged(standing: Standing) -> Verdict | None:
    """Why nobody knows whether a host's figures are its model's."""
    return next((each for each in reasons(standing.verdicts) if each.code in UNJUDGED), None)


def _level(ranked: Sequence[Standing]) -> str:
    """Who shares the first one's rank."""
    names = [each.name for each in ranked[1:] if each.rank == ranked[0].rank]
    return f", level with {', '.join(names)}," if names else ""


def first_clause(evidence: str) -> str:
    """What stands before the first comma that no brackets hold: the tables tell the rest."""
    depth = 0
    for place, sign in enumerate(evidence):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth == 0 and evidence[place : place + 2] in (", ", "; "):
            return evidence[:place]
    return evidence.strip().rstrip(".")


def figure(standing: Standing, rank_by: RankBy) -> str:
    """What a host is ranked by, with its unit."""
    value, words = {
        "rps": (standing.rps, "{} RPS"),
        "output_tokens_per_s": (standing.output_tokens_per_s, "{} tokens a second"),
        "error_rate": (_hundredfold(standing.error_rate), "{}% errors"),
        "score": (standing.score, "a score of {}"),
        "ttft_p50": (standing.ttft_p50_ms, "a TTFT p50 of {} ms"),
        "ttft_p95": (standing.ttft_p95_ms, "a TTFT p95 of {} ms"),
        "p50": (standing.p50_ms, "a p50 of {} ms"),
        "p95": (standing.p95_ms, "a p95 of {} ms"),
    }[rank_by]
    return "nothing measured" if value is None else words.format(short(value))


def _hundredfold(share: float | None) -> float | None:
    return None if share is None else share * 100


# --- who fell ---------------------------------------------------------------------------------------


def _fall(board: Board, outages: OutagesByName, events: Sequence[Event], clock: Clock) -> str:
    """The longest downtime, else a restart that cost nothing."""
    falls = [(name, each) for name, found in outages.items() for each in found]
    if not falls:
        names = sorted({event.name for event in events if event.kind == "restart" and event.name})
        if not names:
            return "Nobody restarted or went down."
        return f"{', '.join(names)} restarted, and no second went by without an answer."
    name, worst = max(falls, key=lambda fall: (fall[1].to_s - fall[1].from_s, fall[0]))
    told = _told(board, name, worst, clock)
    rest = sorted({other for other, _ in falls if other != name})
    return f"{told} Also down for a while: {', '.join(rest)}." if rest else told


def _told(board: Board, name: str, outage: Outage, clock: Clock) -> str:
    length, began = spoken(outage.to_s - outage.from_s), clock(outage.from_s)
    rate = _error_words(board, name)
    if not outage.is_over:
        return f"{name} went down at {began} and has not come back: {rate} in the window."
    verb = "restarted" if outage.restarted else "went down"
    how = " with other settings" if _has_changed(board, name) else ""
    told = f"{name} {verb} at {began}{how} and was down for {length}"
    # the window ends with the end of the board's second
    if board.at_s is None or not outage.to_s <= board.at_s + 1 < outage.to_s + board.window_s:
        return f"{told}; nothing of it is left in the window."
    return (
        f"{told}: {rate} in the window, which holds it until {clock(outage.to_s + board.window_s)}."
    )


def _has_changed(board: Board, name: str) -> bool:
    """Whether it came back as another."""
    return any(
        verdict.code == "config_drift"
        for each in (*board.standings, *board.left_out)
        if each.name == name
        for verdict in each.verdicts
    )


def _error_words(board: Board, name: str) -> str:
    rates = {each.name: each.error_rate for each in (*board.standings, *board.left_out)}
    rate = rates.get(name)
    return "no request" if rate is None else f"{rate:.0%} errors"
