"""What explains the hosts' figures in a window of a blast: judged when read, from what is stored, so any past moment has it.

The rules are bench's. What they need and a blast has: canary requests (unique prompts and their duplicates, a few of each host
in a minute), the other hosts' canaries as peers, and what scout saw meanwhile. What a blast has not: counters read at
quiet moments (counters.py compares them where that is sure), and a beginning, so nobody is called cold. Verdicts are kept, for
they cost 0.15 s of CPU at 20 hosts of 200 canaries. It reads through what the feed follows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np

from toolkit.bench.evidence import ended_at
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import COUNTERS, NEEDED_FOR_CLEAN, judgement, not_judged
from toolkit.bench.verdicts.replays import LEAST_REPLAYS
from toolkit.bench.verdicts.same_engine import same_engine
from toolkit.board.counters import Comparison, Sent, are_one_engine, compared, longest_rise
from toolkit.board.follow import Follow, keep
from toolkit.board.window import COUNTS
from toolkit.records import Event, Ledger, RequestRecord, ServedModel, Verdict
from toolkit.units import spoken, whole

JUDGED_EVERY_S = 10
"""Verdicts are those of the last moment on this grid: they rest on a few canaries a minute, and judging costs more
than counting."""
MANY_HOSTS = 50
"""From twice as many hosts on the grid is coarser: 100 of 200 canaries each take 1.5 s of CPU, every 40 s."""
MOST_PEERS = 20
"""How many others a host is compared with: a median of 20 others is as sure as that of 99, which took 100 hosts 3.5 s of CPU."""
LEAST_JUDGED_S = 120
"""A shorter window holds too few canaries and scrapes to show anything: answers and counters of the last two minutes are
judged with it, though no failures, which are the window's own."""
NOT_OF_A_WINDOW = frozenset({"cold", "saturated"})
"""Rules about a run's beginning or its course, and about levels of load that a blast does not climb."""
NOT_BEGUN = Verdict(
    code="not_judged", confidence="high", evidence="most codes: the run has only just begun"
)
DUPLICATE_SLOTS = 1_000_000_000
"""Slots of duplicates begin here, so that they are never a unique one's."""
KEPT_VERDICTS = 64

Verdicts = Mapping[str, tuple[Verdict, ...]]
"""By host name."""


class Judge:
    """The verdicts on one run's windows. Not for several threads at once: the feed has the lock."""

    def __init__(self, follow: Follow) -> None:
        """Know nothing yet."""
        self._follow = follow
        self._verdicts: dict[tuple[int, int], Verdicts] = {}

    def verdicts(self, window_s: int, at_s: int) -> Verdicts:
        """Verdicts on the window at the last moment of the grid, kept."""
        follow = self._follow
        is_last = follow.run.ended_at is not None and at_s == follow.end_s()
        if not is_last:
            every_s = JUDGED_EVERY_S * max(1, (len(follow.hosts) // MANY_HOSTS) ** 2)
            at_s -= (at_s + 1 - follow.start_s) % every_s
        if at_s < follow.start_s:
            return {host.name: (NOT_BEGUN,) for host in follow.hosts.values()}
        key = (window_s, at_s)
        found = self._verdicts.get(key) or self._judged(window_s, at_s)
        keep(self._verdicts, key, found, KEPT_VERDICTS)
        return found

    def _judged(self, window_s: int, at_s: int) -> Verdicts:
        """Judge each host by the canaries that ended in or before second `at_s`, as a look at that moment would have."""
        follow, run = self._follow, self._follow.run.id
        from_s = max(follow.start_s, at_s - window_s + 1)
        read_from_s = min(from_s, max(follow.start_s, at_s - LEAST_JUDGED_S + 1))
        hosts = {host.name: host for host in follow.hosts.values()}
        shots: dict[str, list[RequestRecord]] = {name: [] for name in hosts}
        for shot in follow.reader.shots_between(run, read_from_s, at_s + 1):
            host, ended = hosts.get(shot.name), ended_at(shot)
            if host is None or host.url != shot.url or ended is None or ended >= at_s + 1:
                continue
            if shot.ok or (shot.sent_at or 0.0) >= from_s:
                shots[shot.name].append(shot)
        canaries = aligned(shots)
        comparisons, engines = self._compared(max(window_s, LEAST_JUDGED_S), at_s, shots)
        scrapes = follow.scrapes(from_s, at_s + 1)
        # What it served at any time counts as served, the newest first: who swaps between two scrapes is accused for what
        # changed, and serves no other model than it says.
        served = {
            name: tuple(
                dict.fromkeys(
                    ServedModel(id=model, max_model_len=scrape.max_model_len)
                    for scrape in reversed(scrapes[name])
                    if not scrape.is_down
                    for model in scrape.models
                )
            )
            for name in hosts
        }
        happened = follow.happened(from_s, at_s + 1)

        verdicts = {}
        for name, host in hosts.items():
            addresses = engines.get(name, ())
            changes = [event for event in happened if event.name == name]
            # as a bench's, without counters, which only a quiet moment makes comparable
            ledger = Ledger(
                run=run,
                name=name,
                url=host.url,
                error="a blast never stands still for its counters to be compared",
                restarted=any(change.kind == "restart" for change in changes),
                models_after=served[name],
            )
            case = Case(
                records=canaries[name],
                ledger=ledger,
                host=host,
                peers={other: canaries[other] for other in _peers_of(list(hosts), name)},
                rivals={
                    other: models
                    for other, models in served.items()
                    if other != name and other not in addresses
                },
                is_shared=bool(addresses),
            )
            found = _verdicts_on(case, comparisons[name])
            if addresses:
                found.append(
                    same_engine(name, {each: canaries[each] for each in (name, *addresses)})
                )
            verdicts[name] = (*found, *_of_changes(changes, at_s))
        return verdicts

    def _compared(
        self, window_s: int, at_s: int, canaries: Mapping[str, Sequence[RequestRecord]]
    ) -> tuple[dict[str, Comparison], dict[str, tuple[str, ...]]]:
        """What each host's counters say of its answers, and which hosts are addresses of one engine."""
        follow = self._follow
        from_s = max(follow.start_s, at_s - window_s + 1)
        to_end = follow.run.ended_at is not None and at_s == follow.end_s()
        scrapes = follow.scrapes(from_s, at_s + 1)
        users = follow.most_users(from_s, at_s) if any(canaries.values()) else None
        rises, comparisons = {}, {}
        for name, of_host in scrapes.items():
            rise = longest_rise(
                of_host, from_s, at_s, from_start=from_s == follow.start_s, to_end=to_end
            )
            if rise and users is not None:
                rises[name] = rise
            elif all(each.is_down for each in of_host):
                comparisons[name] = Comparison(gap="nobody has looked at its counters")
            elif all(None in (each.requests, each.generation_tokens) for each in of_host):
                comparisons[name] = Comparison(gap="its `/metrics` counts no requests and tokens")
            elif users is None:
                comparisons[name] = Comparison(gap="nobody noted who sent how much")
            else:
                comparisons[name] = Comparison(gap="too few looks at its counters")
        if not rises:
            return comparisons, {}

        totals = follow.totals(window_s, at_s)
        count = dict(zip(COUNTS, totals.counts.T, strict=True))
        ok, errors, tokens, estimated = totals.seconds(from_s, at_s).swapaxes(0, 1)
        sent = Sent(
            from_s=from_s,
            seconds=np.stack((ok, errors, tokens - estimated), axis=1),
            cache_known=count["cache_told"] + count["cache_judged"],
            cache_hits=count["cache_hits"] + count["cache_inferred"],
            in_flight=-(-(users or 0) // len(follow.hosts)),
            max_tokens=max(shot.max_tokens for shots in canaries.values() for shot in shots),
        )
        rows = {host.name: row for row, host in enumerate(follow.hosts.values())}
        # two engines may be set and started alike, so one's counters must also move by more than was sent to it
        moved = [name for name, rise in rises.items() if rise.surplus(sent.to([rows[name]])) > 0]
        engines: dict[str, tuple[str, ...]] = dict.fromkeys(moved, ())
        for one, other in permutations(moved, 2):
            if are_one_engine(scrapes[one], scrapes[other]):
                engines[one] += (other,)
        for name, rise in rises.items():
            addresses = (name, *engines.get(name, ()))
            comparisons[name] = compared(
                rise,
                sent.to([rows[each] for each in addresses]),
                [shot for each in addresses for shot in canaries[each]],
                partial(self._canaries_ended, addresses, *rise.around),
            )
        return comparisons, engines

    def _canaries_ended(self, names: Sequence[str], from_s: int, to_s: int) -> int:
        """How many canaries ended at some hosts in a stretch, by their tallies."""
        follow, found = self._follow, 0
        for name in names:
            for tally in follow.reader.tallies(
                follow.run.id, name=name, kind="canary", from_s=from_s, to_s=to_s
            ):
                found += tally.ok + tally.errors
        return found


def _peers_of(names: Sequence[str], name: str) -> list[str]:
    """The MOST_PEERS hosts that follow one in the plan, which goes on at its start."""
    place = names.index(name)
    return [*names[place + 1 :], *names[:place]][:MOST_PEERS]


def _verdicts_on(case: Case, comparison: Comparison) -> list[Verdict]:
    """What the rules and the counters say of one host, or why it is not judged, or that it is clean."""
    found = judgement(case)
    verdicts = [each for each in found.accusations if each.code not in NOT_OF_A_WINDOW]
    codes = {each.code for each in verdicts}
    # a response cache explains what the counters lack
    explained = codes | ({"hidden_backend"} if "response_cache" in codes else set())
    verdicts += [each for each in comparison.accusations if each.code not in explained]
    codes = {each.code for each in verdicts}

    # what must be judged before a host is called clean, and was not
    answers = [shot for shot in case.records if shot.ok]
    if not answers:
        gaps = [("most codes", f"no canary was {'answered' if case.records else 'sent'}")]
    else:
        judged = set(COUNTERS)
        if comparison == Comparison():
            # what canaries alone leave open is settled where the counters hold what was answered
            judged |= {"response_cache", "inflated_usage"}
        gaps = [
            (code, why)
            for code, why in found.gaps
            if code in NEEDED_FOR_CLEAN and code not in judged
        ]
        duplicates = sum(shot.kind == "twin" for shot in answers)
        if duplicates < LEAST_REPLAYS and "response_cache" not in codes:
            gaps = [gap for gap in gaps if gap[0] != "response_cache"]
            why = f"fewer than {LEAST_REPLAYS} requests were answered twice"
            gaps.append(("response_cache", why))
        if comparison.gap and not (comparison.lacks and "response_cache" in codes):
            gaps += [(code, comparison.gap) for code in sorted(COUNTERS - codes)]
    if gaps:
        verdicts.append(not_judged(gaps))
    elif not verdicts:
        evidence = (
            f"no anomaly found in its {whole(found.account.answers)} canary answers, and its counters"
            " hold what it answered"
        )
        verdicts.append(Verdict(code="clean", confidence="medium", evidence=evidence))
    return verdicts


def _of_changes(changes: Sequence[Event], at_s: int) -> list[Verdict]:
    """A process or settings that are not those of the window's beginning: its figures are of two servers."""
    restarts, drifts = [], []
    for change in changes:
        ago = spoken(max(0.0, round(at_s + 1 - change.at)))
        if change.kind == "restart":
            restarts.append(f"{ago} before the end of the window")
        elif change.kind in ("config", "model"):
            drifts.append(f"{change.kind}: {change.text}, {ago} before the end of the window")
    verdicts = []
    if restarts:
        times = "" if len(restarts) == 1 else f", the last of {whole(len(restarts))} times"
        evidence = f"its process started anew {restarts[-1]}{times}"
        verdicts.append(Verdict(code="restarted", confidence="high", evidence=evidence))
    if drifts:
        evidence = "; ".join(drifts)
        verdicts.append(Verdict(code="config_drift", confidence="high", evidence=evidence))
    return verdicts


def aligned(of_host: Mapping[str, Sequence[RequestRecord]]) -> dict[str, list[RequestRecord]]:
    """Number each host's canaries anew, so that equal slots are the same question at every host.

    A fast host sends more of them, so that in one window its slots are far ahead of a slow host's: the n-th question
    of a kind is held against the others' n-th. Duplicates follow their unique; one whose unique left before the
    window is left out, for nobody could say whether it was replayed.
    """
    slots: dict[tuple[object, ...], int] = {}
    found: dict[str, list[RequestRecord]] = {}
    for name, shots in of_host.items():
        in_order = sorted(shots, key=lambda shot: shot.sent_at or shot.planned_at)
        seen: Counter[tuple[object, ...]] = Counter()
        slot_of: dict[int | None, int] = {}
        for shot in in_order:
            if shot.kind == "unique":
                question = (shot.prompt, shot.stream, shot.max_tokens)
                seen[question] += 1
                slot_of[shot.slot] = slots.setdefault((*question, seen[question]), len(slots))
        found[name] = []
        for shot in in_order:
            if shot.kind == "unique":
                found[name].append(replace(shot, slot=slot_of[shot.slot]))
            elif shot.kind == "twin" and (pair := slot_of.get(shot.pair)) is not None:
                found[name].append(replace(shot, slot=DUPLICATE_SLOTS + pair, pair=pair))
    return found
