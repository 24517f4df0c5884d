"""Where captured requests go: the database, a JSONL file, standard output. None of them ends a capture by failing."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.capture.jsonl import NumberedRequest, RotatedFile, line
from toolkit.cli.output import give_up_output, json_for_a_screen
from toolkit.errors import ToolkitError
from toolkit.records import Run, Seen
from toolkit.safe_text import moving_line

if TYPE_CHECKING:
    from toolkit.store import Store

COMMIT_S = 0.25
"""Between two transactions, so one with every other batch: a request waits 0.05 + 0.2 + 0.4 s at most (0.45 s were lost in
20 kills), and the rest of the promised second is for a busy machine. One without requests took 0.35 ms of CPU."""
COMMIT_REQUESTS = 5_000
RETRY_S = 2.0
"""After a refusal: a locked file must not hold up the screen and the other sinks all the time."""
BUSY_S = 0.5
"""How long a transaction waits for another process."""
WAITING_BYTES = 64 * 1024 * 1024
"""Of requests that the database does not take; further ones are not stored, and counted."""
SEEN_BYTES = 500
"""What one takes in memory beside its path and what is kept of its prompt."""

Summary = Callable[[int], Mapping[str, object]]
"""What the capture says of itself by now; the argument is how many requests were not stored."""


class StoreSink:
    """Keeps requests in the database, a few transactions a second; the run begins with the first of them."""

    def __init__(
        self, store: "Store", run: Run, summary: Summary, warn: Callable[[str], object]
    ) -> None:
        self._store, self._run, self._summary, self._warn = store, run, summary, warn
        self._waiting: list[Seen] = []
        self._waiting_bytes = 0
        self._due_s = 0.0
        self._has_warned = False
        self._stored_summary: Mapping[str, object] = {}
        self.has_begun = False
        """Whether the run is in the database."""
        self.lost = 0
        """Requests that found no room while the database took nothing."""

    def take(self, batch: Sequence[NumberedRequest]) -> None:
        """Keep them, or let them wait for the next transaction."""
        now_s = time.monotonic()
        # what a database refused goes first, before more is lost for want of room
        if self._has_warned and now_s >= self._due_s and self._commit(now_s):
            self._due_s = now_s
        for seen, *_ in batch:
            size = SEEN_BYTES + len(seen.path or "")
            if seen.asked:
                size += len(seen.asked.prompt_text or "") + len(seen.asked.prompt_blocks)
            if self._waiting_bytes + size > WAITING_BYTES:
                self.lost += 1
            else:
                self._waiting.append(seen)
                self._waiting_bytes += size
        if now_s >= self._due_s or (len(self._waiting) >= COMMIT_REQUESTS and not self._has_warned):
            self._commit(now_s)

    def _commit(self, now_s: float) -> bool:
        """Write what waits; tell whether the database took it."""
        self._due_s = now_s + COMMIT_S
        if not self._waiting and not self.has_begun:
            return True
        try:
            if not self.has_begun:
                self._store.add_run(self._run)
                self.has_begun = True
            while self._waiting:
                self._store.add_seen(self._run.id, self._waiting[:COMMIT_REQUESTS])
                del self._waiting[:COMMIT_REQUESTS]
            self._waiting_bytes = 0
            summary = self._summary(self.lost)
            if summary != self._stored_summary:
                self._store.set_capture(self._run.id, summary)
                self._stored_summary = summary
        except ToolkitError as error:
            self._due_s = time.monotonic() + RETRY_S
            if not self._has_warned:
                self._warn(f"Warning: {error.message}; the capture continues and tries again")
            self._has_warned = True
            return False
        self._has_warned = False
        return True

    def close(self) -> None:
        """Write what waits; what the database still refuses is lost, and counted."""
        self._commit(time.monotonic())
        self.lost += len(self._waiting)
        self._waiting.clear()

    def end(self, *, client_ok: bool) -> None:
        """Say in the database how the run ended. Raises ToolkitError."""
        if self.has_begun:
            self._store.set_capture(self._run.id, self._summary(self.lost))
            self._store.end_run(self._run.id, ended_at=time.time(), client_ok=client_ok)


class JsonlSink:
    """Writes a line of JSON for each request to a rotated file, at once."""

    def __init__(self, file: RotatedFile) -> None:
        self.file = file

    def take(self, batch: Sequence[NumberedRequest]) -> None:
        """Write them."""
        self.file.write([line(arrived) for arrived in batch])

    def close(self) -> None:
        """Write what waits."""
        self.file.close()


class OutputSink:
    """Prints a line of JSON for each request, a batch at a time. A reader that leaves (`| head`) is no error."""

    def __init__(self, *, with_bodies: bool) -> None:
        self._with_bodies = with_bodies
        self.is_closed = False
        self.error: OSError | None = None
        """Why nothing can be printed any more; None while all is well, and where the reader left."""

    def take(self, batch: Sequence[NumberedRequest]) -> None:
        """Print them."""
        if batch:
            with_body = self._with_bodies
            self.print(b"".join([line(arrived, with_body=with_body) for arrived in batch]))

    def print(self, data: bytes) -> None:
        """Write whole lines and flush."""
        if self.is_closed or sys.stdout is None:
            return
        try:
            moving_line.wipe()
            sys.stdout.flush()
            sys.stdout.buffer.write(json_for_a_screen(data))
            sys.stdout.buffer.flush()
        except OSError as error:
            self.is_closed = True
            self.error = None if isinstance(error, BrokenPipeError) else error
            give_up_output()

    def close(self) -> None:
        """Nothing waits here."""
