"""What explains the hosts' figures in a window of a blast: judged when read, from what is stored, so any past moment has it.

The rules are bench's. What they need and a blast has: canary shots (unique prompts and their twins, a few of each host
in a minute), the other hosts' canaries as peers, and what scout saw meanwhile. What a blast has not: counters read at
quiet moments (counter_deltas.py compares them where that is sure), and a beginning, so nobody is called cold. No network, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from toolkit.bench.evidence import ended_at
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import COUNTERS, NEEDED_FOR_CLEAN, Gap, judgement, not_judged
from toolkit.bench.verdicts.replays import LEAST_REPLAYS
from toolkit.bench.verdicts.same_engine import same_engine
from toolkit.board.counter_deltas import CounterDeltas
from toolkit.board.scrapes import Scrape
from toolkit.records import Event, Host, Ledger, RequestRecord, ServedModel, Verdict
from toolkit.units import spoken, whole

NOT_OF_A_WINDOW = frozenset({"cold", "saturated"})
"""Rules about a run's beginning, and about levels of load that a blast does not climb."""
NOT_BEGUN = Verdict(
    code="not_judged", confidence="high", evidence="most codes: the run has only just begun"
)
NO_BOOKS: Mapping[str, CounterDeltas] = {}
NO_ENGINES: Mapping[str, tuple[str, ...]] = {}
UNSEEN = CounterDeltas(gap="nobody has looked at its counters")
TWIN_SLOTS = 1_000_000_000
"""Slots of twins begin here, so that they are never a unique one's."""
SETTINGS = ("config", "model")


def judged(
    shots: Iterable[RequestRecord],
    looks: Mapping[str, Sequence[Scrape]],
    changes: Sequence[Event],
    *,
    hosts: Sequence[Host],
    run: str,
    at_s: int,
    counted: Mapping[str, CounterDeltas] = NO_BOOKS,
    engines: Mapping[str, tuple[str, ...]] = NO_ENGINES,
) -> dict[str, tuple[Verdict, ...]]:
    """Judge each host by the canaries that ended in or before second `at_s`.

    `looks` and `changes` are those of the window, `counted` what the hosts' counters say, `engines` the other addresses of
    a host's engine.
    """
    ended = [shot for shot in shots if ended_by(shot, at_s)]
    of_host = {
        host.name: [s for s in ended if (s.name, s.url) == (host.name, host.url)] for host in hosts
    }
    canaries = aligned(of_host)
    ledgers = {host.name: _ledger(host, run, looks.get(host.name, ()), changes) for host in hosts}
    told = {}
    for host in hosts:
        name, addresses = host.name, engines.get(host.name, ())
        rivals = {
            other: ledger.models_after
            for other, ledger in ledgers.items()
            if other != name and other not in addresses
        }
        books = counted.get(name, UNSEEN)
        case = Case(
            records=canaries[name],
            ledger=ledgers[name],
            host=host,
            peers={other: theirs for other, theirs in canaries.items() if other != name},
            rivals=rivals,
            is_shared=bool(addresses),
        )
        found = judgement(case)
        accused = [each for each in found.accusations if each.code not in NOT_OF_A_WINDOW]
        codes = {each.code for each in accused}
        # a response cache explains what the counters lack
        accused += [
            each
            for each in books.accusations
            if each.code not in codes
            and not (each.code == "hidden_backend" and "response_cache" in codes)
        ]
        codes = {each.code for each in accused}
        changed = _of_changes(host, changes, at_s)
        if gaps := _gaps(canaries[name], found.gaps, books, codes):
            accused.append(not_judged(gaps))
        elif not accused:
            answers = whole(found.account.answers)
            evidence = f"nothing speaks against its {answers} canary answers, and its counters hold what it answered"
            accused.append(Verdict(code="clean", confidence="medium", evidence=evidence))
        if addresses:
            of_engine = {each: canaries[each] for each in (name, *addresses)}
            accused.append(same_engine(name, of_engine))
        told[name] = (*accused, *changed)
    return told


def _gaps(
    canaries: Sequence[RequestRecord], found: Iterable[Gap], books: CounterDeltas, accused: set[str]
) -> list[Gap]:
    """What must be judged before a host is called clean, and was not."""
    answers = [shot for shot in canaries if shot.ok]
    if not answers:
        why = "no canary was answered" if canaries else "no canary was sent"
        return [("most codes", why)]
    # what canaries alone leave open is settled where the counters hold what was answered
    settled = {"response_cache", "inflated_usage"} if books.holds else set()
    gaps = [
        (code, why)
        for code, why in found
        if code in NEEDED_FOR_CLEAN - COUNTERS and code not in settled
    ]
    twins = sum(shot.kind == "twin" for shot in answers)
    if twins < LEAST_REPLAYS and "response_cache" not in accused:
        gaps = [(code, why) for code, why in gaps if code != "response_cache"]
        gaps.append(("response_cache", f"fewer than {LEAST_REPLAYS} requests were answered twice"))
    if books.gap and not (books.lacks and "response_cache" in accused):
        gaps += [(code, books.gap) for code in sorted(COUNTERS - accused)]
    return gaps


def ended_by(shot: RequestRecord, at_s: int) -> bool:
    """Whether a board of that second could know it: a look at the past must tell what was told then."""
    ended = ended_at(shot)
    return ended is not None and ended < at_s + 1


def _ledger(host: Host, run: str, looks: Sequence[Scrape], changes: Sequence[Event]) -> Ledger:
    """What the looks say, as a bench's ledger would; without counters, which only a quiet moment makes comparable.

    What it served at any time counts as served, the newest first: who swaps between two looks is told of by what
    changed, and serves no other model than it says.
    """
    up = [look for look in looks if not look.is_down and look.models]
    served = dict.fromkeys(model for look in reversed(up) for model in _served(look))
    return Ledger(
        run=run,
        name=host.name,
        url=host.url,
        error="a blast never stands still for its counters to be compared",
        restarted=any(_is_of(each, host) and each.kind == "restart" for each in changes),
        models_after=tuple(served),
    )


def _served(look: Scrape) -> tuple[ServedModel, ...]:
    return tuple(ServedModel(id=name, max_model_len=look.max_model_len) for name in look.models)


def _is_of(event: Event, host: Host) -> bool:
    return event.name == host.name


def _of_changes(host: Host, changes: Sequence[Event], at_s: int) -> list[Verdict]:
    """A process or settings that are not those of the window's beginning: its figures are of two servers."""
    own = [each for each in changes if _is_of(each, host)]
    told = []
    if restarts := [each for each in own if each.kind == "restart"]:
        times = "" if len(restarts) == 1 else f", the last of {whole(len(restarts))} times"
        ago = _ago(restarts[-1], at_s)
        told.append(("restarted", f"its process started anew {ago}{times}"))
    if drifts := [each for each in own if each.kind in SETTINGS]:
        evidence = "; ".join(f"{each.kind}: {each.text}, {_ago(each, at_s)}" for each in drifts)
        told.append(("config_drift", evidence))
    return [Verdict(code=code, confidence="high", evidence=said) for code, said in told]


def _ago(event: Event, at_s: int) -> str:
    return f"{spoken(max(0.0, round(at_s + 1 - event.at)))} before the end of the window"


# --- equal slots ----------------------------------------------------------------------------------------


def aligned(of_host: Mapping[str, Sequence[RequestRecord]]) -> dict[str, list[RequestRecord]]:
    """Number each host's canaries anew, so that equal slots are the same question at every host.

    A fast host sends more of them, so that in one window its slots are far ahead of a slow host's: the n-th question
    of a kind is held against the others' n-th. Twins follow their unique; one whose unique left before the
    window is left out, for nobody could tell whether it was replayed.
    """
    slots: dict[tuple[object, ...], int] = {}
    return {name: _aligned(shots, slots) for name, shots in of_host.items()}


def _aligned(
    shots: Sequence[RequestRecord], slots: dict[tuple[object, ...], int]
) -> list[RequestRecord]:
    in_order = sorted(shots, key=lambda shot: shot.sent_at or shot.planned_at)
    seen: dict[tuple[object, ...], int] = {}
    slot_of: dict[int | None, int] = {}
    for shot in in_order:
        if shot.kind == "unique":
            question = (shot.prompt, shot.stream, shot.max_tokens)
            seen[question] = number = seen.get(question, 0) + 1
            slot_of[shot.slot] = slots.setdefault((*question, number), len(slots))
    told = []
    for shot in in_order:
        if shot.kind == "unique":
            told.append(replace(shot, slot=slot_of[shot.slot]))
        elif shot.kind == "twin" and (pair := slot_of.get(shot.pair)) is not None:
            told.append(replace(shot, slot=TWIN_SLOTS + pair, pair=pair))
    return told
