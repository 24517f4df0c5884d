"""Does a request log tell all that a lab asks for? And who was turned away, and who was served meanwhile.

It takes lines of the proxy's log as objects, one after the other, and holds counts and moments only. Another tool's log is read
alike where it uses the same words.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NEAR_S = 30.0
"""A request is beside a rejection when it came within so long of one."""
TURNED_AWAY = (413, 429, 503)
MOST_MOMENTS = 200_000
"""Of rejections and of served requests; later ones are counted, but not placed."""
LAST_MOMENT_S = 1e12
"""A `ts` beyond it is no moment of anybody's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """One log."""

    name: str
    requests: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)
    """What requests do not tell, and how many of them."""
    turned_away: int = 0
    rejected: int = 0
    """With their reason."""
    unlogged_rejections: int = 0
    """Answered 413, 429 or 503 without a reason."""
    own_rejections: int = 0
    """By the queue of a team."""
    nameless_rejections: int = 0
    """By a queue, of a request that is no team's."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    rejected_teams: tuple[str, ...] = ()
    served_beside: tuple[str, ...] = ()
    """Teams that were not rejected, and asked while others were."""
    beside_ok_share: float | None = None
    """Of their requests then, those that were served."""


def log_facts(name: str, lines: Iterable[Mapping[str, Any]]) -> LogFacts:
    """Count a log's lines; events of their own, without a `request_id`, are no requests, and pages that ask no model neither."""
    counted = _Counted()
    for line in lines:
        if ("request_id" in line or "event" not in line) and _asks_a_model(line):
            counted.add(line)
    return counted.facts(name)


def _asks_a_model(line: Mapping[str, Any]) -> bool:
    """A `GET` of /v1/models or /metrics has no tokens to tell; who logs no method logs what was asked of the model."""
    return line.get("method") in (None, "POST")


class _Counted:
    def __init__(self) -> None:
        self.requests = self.turned_away = self.unlogged = self.own = self.nameless = 0
        self.missing: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.rejected_teams: set[str] = set()
        self.rejected_at: list[float] = []
        self.others: list[tuple[str, float, bool]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """Take one request."""
        self.requests += 1
        status, reason = line.get("status"), line.get("rejected")
        is_ok = isinstance(status, int) and status < 400
        self.missing.update(_missing(line, is_ok=is_ok))
        team, at = line.get("team"), _moment(line)
        if reason:
            self._reject(str(reason), team, at)
            return
        if status in TURNED_AWAY:
            self.turned_away += 1
            self.unlogged += 1
        if team and at is not None and len(self.others) < MOST_MOMENTS:
            self.others.append((str(team), at, is_ok))

    def _reject(self, reason: str, team: Any, at: float | None) -> None:
        self.turned_away += 1
        self.reasons[reason] += 1
        if reason.startswith("team_"):
            self.own += 1
        elif reason in ("queue_full", "too_slow", "expired") and not team:
            self.nameless += 1
        if team and at is not None:
            self.rejected_teams.add(str(team))
            if len(self.rejected_at) < MOST_MOMENTS:
                self.rejected_at.append(at)

    def facts(self, name: str) -> LogFacts:
        """All of it."""
        moments = sorted(self.rejected_at)
        beside = [
            (team, ok)
            for team, at, ok in self.others
            if team not in self.rejected_teams and _is_near(at, moments)
        ]
        return LogFacts(
            name=name,
            requests=self.requests,
            missing=dict(sorted(self.missing.items())),
            turned_away=self.turned_away,
            rejected=sum(self.reasons.values()),
            unlogged_rejections=self.unlogged,
            own_rejections=self.own,
            nameless_rejections=self.nameless,
            reasons=dict(self.reasons.most_common()),
            rejected_teams=tuple(sorted(self.rejected_teams)),
            served_beside=tuple(sorted({team for team, ok in beside if ok})),
            beside_ok_share=sum(ok for _, ok in beside) / len(beside) if beside else None,
        )


def _moment(line: Mapping[str, Any]) -> float | None:
    """When it came; None where it does not tell."""
    ts = line.get("ts")
    return float(ts) if isinstance(ts, int | float) and abs(ts) < LAST_MOMENT_S else None


def _is_near(at: float, moments: Sequence[float]) -> bool:
    """Whether any of these moments, which are in order, is close."""
    place = bisect_left(moments, at - NEAR_S)
    return place < len(moments) and moments[place] <= at + NEAR_S


def _missing(line: Mapping[str, Any], *, is_ok: bool) -> list[str]:
    """What a request does not tell. Only an answered one can tell tokens and a model."""
    lacking = [
        name for name in ("request_id", "latency_ms") if line.get(name) is None and _counts(line)
    ]
    if is_ok and not line.get("left"):
        lacking += [] if line.get("model") else ["model"]
        tokens = (
            line.get("prompt_tokens"),
            line.get("completion_tokens", line.get("output_tokens")),
        )
        lacking += [] if None not in tokens else ["tokens"]
    return lacking


def _counts(line: Mapping[str, Any]) -> bool:
    """A client that left has no latency to be told."""
    return not line.get("left")
