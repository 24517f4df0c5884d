"""Does an engine still make progress? What was seen of it -> the trouble that it is in, if any. It reads no clock and asks nobody.

/health answers 200 while decoding hangs, so it is believed only where it says that the engine is dead. The rule for a hang is the
proxy's (proxy/stuck.py): work is under way, nothing that the engine counts has moved for `stuck_s`, and a token that it is then
asked for does not come within `answer_s` while still nothing moves. A busy server is in no trouble, however slow: its counters move,
and through a long prefill, which moves no counter of tokens, its KV blocks fill up step by step. A page that comes too late is no
refused connection. An engine without /metrics can't be told from a busy one: of such only its end, and refused connections, count.
"""

from dataclasses import dataclass
from typing import Literal

from toolkit.proxy.upstreams.stuck import Pulse, Signs

Answer = Literal["came", "late", "refused", "ill"]
"""Of a look. `came`: the pages. `late`: a connection, but no page in time. `refused`: nobody listens. `ill`: /health says 5xx."""
TroubleKind = Literal["exited", "refused", "ill", "stuck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at an engine saw."""

    answer: Answer
    signs: Signs = ()
    """What it counts: prompt tokens, output tokens, steps, share of KV blocks; None where it does not tell."""
    under_way: float | None = None
    """Requests that run or wait there, as it says."""
    code: int | None = None
    """Of its process, once that has ended; minus a signal's number as Python tells it. None: it runs, or is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why it must be restarted."""

    kind: TroubleKind
    text: str


class Progress:
    """One engine's. All times are seconds of the caller's one clock."""

    def __init__(self, *, stuck_s: float, answer_s: float, refused_s: float, ask_s: float) -> None:
        self._pulse = Pulse(stuck_s=stuck_s, probe_s=answer_s)
        self._refused_s, self._ask_s = refused_s, ask_s
        self._down_s: float | None = None
        self._asked_s: float | None = None
        """When a token was asked for last, or anything moved."""
        self._tells = False
        """It has a /metrics page that counts, or no page of it came so far."""
        self._is_late = False
        self._under_way: float | None = None

    def look(self, now: float, seen: Look) -> Trouble | None:
        """Take a look; what it proves by itself."""
        if self._asked_s is None:
            self._asked_s = now
        if seen.code is not None:
            return Trouble(kind="exited", text=ended(seen.code))
        if seen.answer in ("refused", "ill"):
            return self._looked_down(now, seen.answer)
        self._down_s = None
        self._is_late = seen.answer == "late"
        if self._is_late:
            self._pulse.missed_look(now)
            return None
        self._tells = any(sign is not None for sign in seen.signs)
        self._under_way = seen.under_way
        if self._pulse.looked(seen.signs, busy=bool(seen.under_way), now=now):
            self._asked_s = now
        return None

    def _looked_down(self, now: float, answer: Answer) -> Trouble | None:
        # one clock for both: vLLM's /health says 503 for half a second before its port closes
        if self._down_s is None:
            self._down_s = now
        down_s = now - self._down_s
        if down_s < self._refused_s:
            return None
        if answer == "ill":
            return Trouble(kind="ill", text=f"/health said 5xx for {down_s:.1f} s")
        return Trouble(kind="refused", text=f"connections were refused for {down_s:.1f} s")

    def wants_token(self, now: float) -> bool:
        """Whether to ask it for one token now; then tell `token`. Not again before that."""
        pulse = self._pulse
        if self._down_s is not None or pulse.probe_began_s is not None:
            return False
        idle_s = now - (now if self._asked_s is None else self._asked_s)
        idle_too_long = not pulse.has_work and idle_s >= self._ask_s
        if not (idle_too_long or pulse.wants_probe(now)):
            return False
        if idle_too_long:
            # the question is all the work that it has: silence counts from now
            pulse.began(now)
        pulse.probe_began_s = self._asked_s = now
        return True

    def token(self, now: float, made: bool | None) -> Trouble | None:
        """How that went: True, it came; False, it did not in time; None, it could not be asked for."""
        pulse = self._pulse
        silent_s = now - pulse.alive_s
        stuck = pulse.probed(made, now)
        pulse.ended()
        self._asked_s = now
        if not stuck or not (self._tells or self._is_late):
            return None
        return Trouble(kind="stuck", text=self._stuck(silent_s))

    def _stuck(self, silent_s: float) -> str:
        if self._is_late:
            return f"no page for {silent_s:.1f} s, and no token when it was asked for one"
        what = f"{self._under_way:.0f} requests under way" if self._under_way else "idle, it says"
        return f"{what}, and no token for {silent_s:.1f} s, nor one when it was asked"


def ended(code: int) -> str:
    """What an exit code says."""
    if code < 0:
        return f"its process was ended by signal {-code}"
    return f"its process ended by itself with exit code {code}"
