"""Whether a server that says it is well still makes tokens: signs of life, silence, and when to ask it for one token.

/health stays 200 while decoding hangs, so it is no sign. Signs are bytes of ours from it, and any change of what its
engine counts: prompt and output tokens, steps, the share of KV blocks in use. Where work is under way and no sign came for
`stuck_s`, it is suspect: it is asked for one token. A probe that is answered clears it; one that is not, while no other
sign came either, says that it is stuck. It reads no clock and sends nothing.

Seen on vLLM 0.32 (CPU, 256 tokens a step): through a prefill of 34 s prompt tokens, output tokens and steps stood still and a
probe sent after 4 s waited 29 s, so that only the KV blocks told it from a hang; they moved at least each 3.2 s. With its
engine's processes stopped all four stood still, also when requests came and left, while /metrics and /health answered 200.

With looks and questions each second: 1 s until the last sign is seen, 4 s of silence, 1 s to the next question, 3 s for
the probe. So a stuck server is known after 9 s at the latest.
"""

from dataclasses import dataclass

Signs = tuple[float | None, ...]
"""What an engine counts, in a fixed order; None where it does not tell."""


@dataclass(slots=True, kw_only=True, eq=False)
class Pulse:
    """One server's signs of life. All times are seconds of the caller's one clock."""

    stuck_s: float
    probe_s: float
    alive_s: float = 0.0
    """When it last gave a sign, or got its first work."""
    ours: int = 0
    """Requests of ours that are under way there."""
    theirs: bool = False
    """It says that requests run or wait, whosever they are; or it does not answer at all."""
    probe_began_s: float | None = None
    signs: Signs = ()

    @property
    def has_work(self) -> bool:
        """Whether it has anything to make tokens for."""
        return self.ours > 0 or self.theirs

    def began(self, now: float) -> None:
        """A request of ours was sent there."""
        if not self.has_work:
            self.alive_s = now
        self.ours += 1

    def ended(self) -> None:
        """One of ours is over, however it ended."""
        self.ours = max(0, self.ours - 1)

    def moved(self, now: float) -> None:
        """Bytes of an answer came."""
        self.alive_s = now

    def looked(self, signs: Signs, *, busy: bool, now: float) -> bool:
        """What its /metrics said; True: its engine has moved since the last look."""
        moved = any(
            old is not None and new is not None and old != new
            for old, new in zip(self.signs, signs, strict=False)
        )
        if moved or not self.has_work:
            self.alive_s = now
        self.signs, self.theirs = signs, busy
        return moved

    def missed_look(self, now: float) -> None:
        """It took the connection and did not answer in time: busy, or it hangs. Not idle, at any rate."""
        if not self.has_work:
            self.alive_s = now
        self.theirs = True

    def wants_probe(self, now: float) -> bool:
        """Whether to ask it for a token now; once asked, not again until `probed`, or until that is overdue."""
        if self.probe_began_s is not None and now - self.probe_began_s < 2 * self.probe_s:
            return False
        return self.has_work and now - self.alive_s >= self.stuck_s

    def probed(self, ok: bool | None, now: float) -> bool:
        """How the probe went; None: it could not be asked. True: it is stuck."""
        began_s, self.probe_began_s = self.probe_began_s, None
        quiet = began_s is not None and self.alive_s <= began_s
        stuck = ok is False and quiet
        if not stuck:
            self.alive_s = now
        return stuck
