"""The end of a freeze, place by place from the last to the first: every viewer sees the same step at the same time.

A `reveal` event says by which ranking and at which pace: a place every few seconds, or one for each press of the
presenter's key, which is an event of its own (`uncover`). All of it stands in the database, so that a page opened late, or
served by another process, is in step.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import floor

from toolkit.board.standings import RankBy
from toolkit.records import Event

EVERY_S = 4.0
"""Between two places, where the organizer chose nothing else: long enough to read a row aloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the organizer chose for a reveal; the text of its event."""

    every_s: float | None = EVERY_S
    """Between two places; None: the presenter's key alone uncovers them."""
    rank_by: RankBy = "rps"
    honest: bool = False
    skip_limited: bool = False
    window_s: int | None = None
    """None: as long as the page's usual one."""
    top: int | None = None
    """Places that are covered: all others are seen at once. None: all."""
    presenter: str | None = None
    """What the presenter's secret hashes to: whoever reads the database cannot press the key with it."""

    def written(self) -> str:
        """For the event's text."""
        return json.dumps(asdict(self))


def terms_of(text: str) -> Terms:
    """Of a reveal's event; as usual where it says nothing, as those of earlier releases."""
    known = json.loads(text) if text.startswith("{") else {}
    return Terms(**{key: value for key, value in known.items() if key in Terms.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reveal:
    """A reveal that has begun."""

    frozen_s: int
    """The last second that the frozen board showed."""
    revealed_at: float
    terms: Terms = field(default_factory=Terms)
    uncovered: int = 0
    """Places that the presenter uncovered."""

    def covered(self, now: float, places: int) -> range:
        """The places, from 1, that are still covered: the first one is uncovered at the very end.

        By the clock the last one is uncovered at once, by the key none is until it is pressed.
        """
        steps = self.uncovered
        if self.terms.every_s is not None:
            steps += 1 + floor(max(0.0, now - self.revealed_at) / self.terms.every_s)
        return range(1, max(0, min(places, self.terms.top or places) - steps) + 1)

    def is_presenter(self, secret: str) -> bool:
        """Whether this is the secret that was printed for this reveal."""
        known = self.terms.presenter
        return known is not None and hmac.compare_digest(known, hashed(secret))


def reveal_of(events: Iterable[Event]) -> Reveal | None:
    """The reveal that followed the last freeze, from a run's events in the order of their writing; None: there was none."""
    frozen_s: int | None = None
    found: Reveal | None = None
    for event in events:
        if event.kind == "freeze":
            at_s = floor(event.at)
            frozen_s = at_s if frozen_s is None else min(frozen_s, at_s)
            found = None
        elif event.kind == "reveal" and frozen_s is not None:
            found = Reveal(frozen_s=frozen_s, revealed_at=event.at, terms=terms_of(event.text))
            frozen_s = None
        elif event.kind == "uncover" and found is not None:
            found = replace(found, uncovered=found.uncovered + 1)
    return found


def without_steps(events: Iterable[Event]) -> Iterator[Event]:
    """What readers are shown of a run's events: that there was a reveal, and neither its terms nor its steps."""
    for event in events:
        if event.kind != "uncover":
            yield replace(event, text="") if event.kind == "reveal" else event


def new_secret() -> str:
    """The presenter's: too long to be guessed."""
    return secrets.token_urlsafe(16)


def hashed(secret: str) -> str:
    """For the database."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
