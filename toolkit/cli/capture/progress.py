"""The line that moves while `toolkit capture` runs: how much arrives, how much of it repeats, what is lost."""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.capture.records import Losses
from toolkit.capture.summary import LOSS_CLASSES, RequestCounter
from toolkit.cli.output import to_stderr
from toolkit.cli.waiting import EVERY_S, PIPE_EVERY_S, fitted
from toolkit.safe_text import drawing_on, moving_line
from toolkit.units import counted, rate, share

QUIET_S = 3.0
"""Nothing arrived for so long since the beginning: say so, and what else there is."""
SHORT_LOSSES = {
    "kernel_drops": "dropped by the kernel",
    "app_drops": "dropped by us",
    "gaps": "gaps",
    "truncated": "truncated",
    "encrypted": "encrypted",
    "unparsed": "unparsed",
}
TOP = 2
KEY_DIGITS = 8
LISTED = 5


class CaptureProgress:
    """One line: on a terminal it moves, into a pipe it goes every ten seconds, and once as soon as nothing seems to arrive.

    `is_endless`: there is no end to wait for, so silence has to be told; `is_here`: packets are this machine's own;
    `with_answers`: a request is told with its answer, not before.
    """

    def __init__(
        self,
        counter: RequestCounter,
        losses: Losses,
        ports: Sequence[int],
        *,
        is_endless: bool = True,
        is_here: bool = True,
        with_answers: bool = False,
        note: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._counter, self._losses, self._ports, self._note = counter, losses, ports, note
        self._is_endless, self._is_here = is_endless, is_here
        self._with_answers = with_answers
        self._began_s = self._drawn_s = time.monotonic()
        self._drawn_requests = 0
        self._said_quiet = False
        self._can_draw = sys.stderr is not None and sys.stderr.isatty()
        self._printed_s = self._began_s

    def show(self) -> None:
        """To be called often; draws when a second has passed."""
        now_s = time.monotonic()
        passed_s = now_s - self._drawn_s
        if passed_s < EVERY_S:
            return
        requests = self._counter.requests
        rate_per_s = (requests - self._drawn_requests) / passed_s
        self._drawn_s, self._drawn_requests = now_s, requests
        is_quiet = self._is_endless and not requests and now_s - self._began_s >= QUIET_S
        if self._can_draw:
            text = self.quiet_line() if is_quiet else self.line(rate_per_s)
            width = shutil.get_terminal_size().columns - 1
            moving_line.draw(drawing_on(sys.stderr), fitted(text, width))
        elif (is_quiet and not self._said_quiet) or now_s - self._printed_s >= PIPE_EVERY_S:
            self._said_quiet |= is_quiet
            self._printed_s = now_s
            to_stderr(self.quiet_line() if is_quiet else self.line(rate_per_s))

    def line(self, rate_per_s: float) -> str:
        """What happens, in words."""
        counter = self._counter
        parts = [
            f"{rate(rate_per_s)} requests/s",
            f"{counter.requests:,} requests",
            f"{counter.prompts.unique:,} unique",
        ]
        if counter.with_prompt:
            parts.append(f"{share(counter.repeat_share)} repeats")
        # the classes of which there is any; all six are behind `nothing lost`
        lost = [
            f"{getattr(self._losses, name):,} {SHORT_LOSSES[name]}"
            for name, _ in LOSS_CLASSES
            if getattr(self._losses, name)
        ]
        parts.append(f"lost: {', '.join(lost)}" if lost else "nothing lost")
        if counter.with_prompt:
            top = [f"{one.prompt_key[:KEY_DIGITS]} {share(one.share)}" for one in counter.top(TOP)]
            parts.append(f"top: {', '.join(top)}")
        note = self._note()
        return ", ".join(parts) + (f" ({note})" if note else "")

    def quiet_line(self) -> str:
        """A sign of life while nothing arrives, and where else to look."""
        ports = " or ".join(map(str, self._ports))
        if self._losses.encrypted:
            return f"port {ports} speaks TLS, which cannot be read here; Ctrl-C shows what to do"
        if self._losses.segments:
            what = "request with its answer" if self._with_answers else "request"
            return f"packets arrive on port {ports}, but no {what} has come whole yet"
        note = self._note()
        line = f"no packets on port {ports} yet" + (f" ({note})" if note else "")
        servers = servers_here() if self._is_here else []
        others = [
            f"{port} ({counted(talks, 'connection')})" if talks else f"{port}"
            for port, talks in servers
            if port not in self._ports
        ][:LISTED]
        return f"{line}; servers here listen on: {', '.join(others)}" if others else line


TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENING, ESTABLISHED = "0A", "01"


def servers_here(tables: Sequence[Path] = TABLES) -> list[tuple[int, int]]:
    """(port, established connections) of each TCP port that is listened on here, the busiest first."""
    listening: dict[int, int] = {}
    talks: list[int] = []
    for table in tables:
        try:
            rows = [row.split() for row in table.read_text().splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            port = int(row[1].rpartition(":")[2], 16)
            if row[3] == LISTENING:
                listening.setdefault(port, 0)
            elif row[3] == ESTABLISHED:
                talks.append(port)
    for port in talks:
        if port in listening:
            listening[port] += 1
    return sorted(listening.items(), key=lambda item: (-item[1], item[0]))
