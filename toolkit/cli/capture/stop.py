"""When a capture ends: a signal, a time, or a reader of its output that left."""

import signal
import time
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Says whether to stop. The first Ctrl-C (or SIGTERM) asks for it, a second one raises KeyboardInterrupt.

    A Ctrl-C in `tcpdump | toolkit capture -` reaches both, and what tcpdump writes at its end is still to be read:
    `grace_s` is how long that may take.
    """

    def __init__(self, duration_s: float | None = None, *, grace_s: float = 0.0) -> None:
        self._ends_s = None if duration_s is None else time.monotonic() + duration_s
        self._grace_s = grace_s
        self.was_asked = False
        """By a person or another process, not by the clock."""
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            # who started us deaf to it (nohup, a shell's `&`) meant it
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *details: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.was_asked:
            raise KeyboardInterrupt
        self.was_asked = True
        asked_end_s = time.monotonic() + self._grace_s
        self._ends_s = asked_end_s if self._ends_s is None else min(self._ends_s, asked_end_s)

    def __call__(self) -> bool:
        """Whether it is time."""
        return self._ends_s is not None and time.monotonic() >= self._ends_s
