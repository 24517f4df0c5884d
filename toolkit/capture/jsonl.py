"""Captured requests as lines of JSON: what `--json` prints, and what `--jsonl` writes into a file that is rotated.

The first keys are promised, in this order; unknown is null. A body stands in a line only where it is handed in. FILE is the
newest file, FILE.1 the one before it; lines go to it whole and at once. What a full disk refuses waits, and is tried again with the
next lines; what then has no room is counted, never passed over. The only file here that writes one.
"""

import base64
import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from toolkit.errors import ToolkitError, reason_of
from toolkit.private_files import MODE, make_private
from toolkit.records import Asked, Seen

PREVIEW_CHARS = 80
NOTHING_ASKED = Asked(exact_key="", body_bytes=0)


class NumberedRequest(NamedTuple):
    """One request, and what it was in the order of arrival."""

    seen: Seen
    new: bool | None
    """Whether its prompt came for the first time; None: it has none, or that is not known any more."""
    unique_so_far: int
    """Different prompts up to here, this one included."""
    body: bytes | None = None
    """Only where the user asked to see bodies."""


def line(arrived: NumberedRequest, *, with_body: bool = False) -> bytes:
    """One object and a newline."""
    record = as_object(arrived)
    if with_body:
        record["body"] = None
        if arrived.body is not None:
            # what is no UTF-8 stands there in full as base64, too
            record["body"] = arrived.body.decode(errors="replace")
            if record["body"].encode() != arrived.body:
                record["body_base64"] = base64.b64encode(arrived.body).decode()
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # a lone surrogate, or an integer beyond 64 bits: JSON has both, orjson has not
        return json.dumps(record).encode() + b"\n"


def as_object(arrived: NumberedRequest) -> dict[str, Any]:
    """The object, without the body; the promised keys come first."""
    seen = arrived.seen
    asked = seen.asked or NOTHING_ASKED
    text = asked.prompt_text
    return {
        "ts": seen.ts,
        "client": seen.client,
        "method": seen.method,
        "path": seen.path,
        "model": asked.model,
        "stream": asked.stream,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "prompt_key": asked.prompt_key,
        "exact_key": asked.exact_key or None,
        "new": arrived.new,
        "unique_so_far": arrived.unique_so_far,
        "prompt_chars": asked.prompt_chars,
        "prompt_preview": None if text is None else text[:PREVIEW_CHARS],
        "damaged": seen.damaged,
        "request_key": asked.request_key,
        "server": seen.server,
        "took_ms": seen.took_ms,
        "problem": seen.problem or asked.problem,
        "status": seen.status,
        "ttft_ms": seen.ttft_ms,
        "latency_ms": seen.latency_ms,
        # by the answer's usage; else by the request, where its prompt came as token ids
        "prompt_tokens": asked.prompt_tokens if seen.prompt_tokens is None else seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "output_tokens": seen.output_tokens,
        "finish_reason": seen.finish_reason,
        "in_flight": seen.in_flight,
        "body_bytes": None if seen.asked is None else asked.body_bytes,
        "top_p": asked.top_p,
        "n": asked.n,
        "seed": asked.seed,
        "options": None if seen.asked is None else asked.options,
        "messages": asked.messages,
        "images": None if seen.asked is None else asked.images,
    }


# --- into a file ------------------------------------------------------------------------------------

WAITING_BYTES = 16 * 1024 * 1024
"""Of lines that the file does not take; further ones are lost and counted."""


class RotatedFile:
    """An open file of JSON lines; `warn` is told once of each thing that goes wrong on the way.

    What stands in the file already stays there. A pipe or a terminal is written to and never rotated.
    """

    def __init__(
        self, path: Path, *, rotate_bytes: int, keep: int, warn: Callable[[str], object]
    ) -> None:
        self._path, self._rotate_bytes, self._keep = path, rotate_bytes, keep
        self._warn_user, self._warned = warn, set[str]()
        self._waiting = bytearray()
        self.lost = 0
        """Lines that found no room."""
        self.removed = 0
        """Files that were removed for being older than `keep`."""
        self._number = self._size = -1
        self._is_file = False
        try:
            self._open()
        except OSError as error:
            raise ToolkitError(
                f"`{path}` cannot be written: {reason_of(error)}",
                "Give another file: `--jsonl FILE`",
            ) from error

    def write(self, lines: Iterable[bytes]) -> None:
        """Write whole lines, and before them what waits."""
        for line in lines:
            if self._waiting and len(self._waiting) + len(line) > WAITING_BYTES:
                self.lost += 1
            else:
                self._waiting += line
        try:
            self._follow_the_name()
            while self._waiting:
                room = len(self._waiting)
                if self._is_file:
                    room = max(0, self._rotate_bytes - self._size)
                fitting = self._waiting.rfind(b"\n", 0, room) + 1
                if not fitting and self._size == 0:
                    fitting = self._waiting.find(b"\n") + 1
                if fitting:
                    self._append(fitting)
                else:
                    self._rotate()
        except OSError as error:
            self._warn(f"`{self._path}` takes nothing: {reason_of(error)}; it is tried again")

    def close(self) -> None:
        """Try what waits a last time, and let go of the file; what found no room is in `lost`."""
        self.write(())
        self.lost += self._waiting.count(b"\n")
        self._waiting.clear()
        if self._number >= 0:
            os.close(self._number)
            self._number = -1

    def _open(self) -> None:
        """Open the file, keep a second writer out, and begin on a new line after one that was cut by a kill."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self._path.stat().st_mode):
                # a pipe that is opened for both ways never misses its reader
                flags = os.O_WRONLY | os.O_CLOEXEC
        if flags & os.O_CREAT:
            make_private(self._path)
        number = os.open(self._path, flags, MODE)
        try:
            found = os.fstat(number)
            is_file = stat.S_ISREG(found.st_mode)
            if is_file:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if found.st_size and os.pread(number, 1, found.st_size - 1) != b"\n":
                    os.write(number, b"\n")
            self._size = os.fstat(number).st_size
        except BlockingIOError as error:
            os.close(number)
            raise ToolkitError(
                f"`{self._path}` is being written by another process",
                "Give each capture a file of its own: `--jsonl FILE`",
            ) from error
        except BaseException:
            os.close(number)
            raise
        self._number, self._is_file = number, is_file

    def _follow_the_name(self) -> None:
        """Open the file anew where somebody moved or removed it: what goes into a nameless one is lost."""
        if self._number >= 0 and self._is_file:
            with suppress(FileNotFoundError):
                if os.path.samestat(self._path.stat(), os.fstat(self._number)):
                    return
            os.close(self._number)
            self._number = -1
        if self._number < 0:
            try:
                self._open()
            except ToolkitError as error:
                raise OSError(errno.EBUSY, error.message) from error

    def _append(self, size: int) -> None:
        """Write so much of what waits; of what a full disk cuts, the whole lines stay."""
        written = 0
        try:
            while written < size:
                written += os.write(self._number, self._waiting[written:size])
        finally:
            whole = self._waiting.rfind(b"\n", 0, written) + 1
            self._size += whole
            del self._waiting[:whole]
            if written > whole and self._is_file:
                with suppress(OSError):
                    os.ftruncate(self._number, self._size)

    def _rotate(self) -> None:
        """Move FILE to FILE.1 and every older one on; the last of them goes."""
        numbered = [f"{self._path.name}.{n}" for n in range(1, self._keep + 1)]
        names = [self._path, *map(self._path.with_name, numbered)]
        filled = next((n for n, name in enumerate(names) if not name.exists()), len(names))
        try:
            if filled == len(names):
                names[-1].unlink()
                self.removed += 1
                filled -= 1
                self._warn(
                    f"`{self._path}` is rotated, and only {self._keep} old files are kept: the oldest is"
                    " removed from now on; keep more with `--keep`"
                )
            for n in range(filled, 0, -1):
                names[n - 1].rename(names[n])
        except OSError as error:
            self._rotate_bytes = sys.maxsize
            self._warn(f"`{self._path}` cannot be rotated, and grows: {reason_of(error)}")
            return
        os.close(self._number)
        self._number = -1
        self._follow_the_name()

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn_user(sentence)
