"""The access log: one line of JSON for each request, as `toolkit workload --from` reads it, and the file that it is written to.

A line holds hashes of the request, never a key, and a prompt only if the settings say so. A field that is missing is unknown; those of
ALWAYS are never missing, since a reader may judge a file by its first line. An event that is no request is a line with `event` and
without `request_id`; a rejected request's own line has both.

A thread writes every 64 KiB, and what there is each half second, so that a process that is killed loses less than a second.
"""

import fcntl
import json
import math
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from toolkit.errors import ToolkitError
from toolkit.private_files import MODE, make_private
from toolkit.proxy.telemetry.background import BackgroundWriter
from toolkit.proxy.telemetry.metrics import Served

STDOUT = 1

ALWAYS = frozenset({"team", "model", "status", "cache", "prompt_key", "request_key"})
LOGGED = tuple(
    "team method path endpoint model stream status cache layer bypass new prompt_tokens cached_tokens tpot_ms queue_ms"
    " finish_reason upstream rejected retry_after_s body_bytes exact_key request_key prompt_key retries fallback".split()
)
"""Fields of Served that stand in a line under their own names."""
_logged = attrgetter(*LOGGED)
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON lets through and a terminal obeys: DEL, the C1 controls, line ends, marks that turn the text round."""
_HALVES = re.compile("[\ud800-\udfff]")


def request_line(served: Served, *, prompt: str | None = None) -> bytes:
    """One request's line, with its newline. `prompt` only where the user asked for prompts in the log."""
    fields: dict[str, Any] = {"ts": round(served.ts, 6), "request_id": served.request_id}
    if served.ttft_ms is not None:
        fields["ttft_ms"] = round(served.ttft_ms, 3)
    if served.latency_ms is not None:
        fields["latency_ms"] = round(served.latency_ms, 3)
    fields |= _constant_fields(served)
    if prompt is not None:
        fields["prompt_text"] = prompt
    return json_line(fields)


def event_line(ts: float, kind: str, fields: Mapping[str, Any]) -> bytes:
    """A line for what is no request, e.g., `retry`, `epoch`."""
    return json_line({"event": kind, "ts": round(ts, 6), **fields})


class HitLine:
    """The line of all hits of one stored answer by one team: made once, then what differs is filled in.

    A fill takes 0.3 us, `request_line` 5 (CPython 3.11). The moment is whole milliseconds, as nginx's `$msec`: three digits more
    take another 0.15 us.
    """

    __slots__ = ("_is_stream", "_template")

    def __init__(self, served: Served) -> None:
        """`served` is one such hit; its moment, id and times are not used, but for whether there was a first token."""
        rest = json_line(_constant_fields(served)).replace(b"%", b"%%")
        self._is_stream = served.ttft_ms is not None
        ttft = b'"ttft_ms":%.3f,' if self._is_stream else b""
        # the order of `request_line`, so that a log reads alike throughout
        self._template = b'{"ts":%.3f,"request_id":"%b",' + ttft + b'"latency_ms":%.3f,' + rest[1:]

    def __len__(self) -> int:
        """Bytes that it holds."""
        return len(self._template)

    def fill(self, ts: float, request_id: bytes, took_ms: float) -> bytes:
        """One hit's line. The id is of our own making, letters, digits and `-`: a client's would have to be escaped."""
        if self._is_stream:
            return self._template % (ts, request_id, took_ms, took_ms)
        return self._template % (ts, request_id, took_ms)


def json_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON that a terminal shows and does not obey."""
    try:
        data = orjson.dumps(fields, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # half of a surrogate pair, a whole number of more than 64 bits, a name that is no text
        sound = {
            str(name): None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }
        text = json.dumps(sound, ensure_ascii=False, default=str, skipkeys=True)
        data = _HALVES.sub("?", text).encode() + b"\n"
    if data.isascii() and b"\x7f" not in data:
        return data
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


def _constant_fields(served: Served) -> dict[str, Any]:
    """All that is known, but what differs from hit to hit."""
    fields = {}
    for name, value in zip(LOGGED, _logged(served), strict=True):
        if value is not None and value != "":
            fields[name] = round(value, 3) if type(value) is float else value
        elif name in ALWAYS:
            fields[name] = None
    if served.output_tokens is not None:
        fields["completion_tokens"] = served.output_tokens
    if (failure := served.failure()) is not None:
        fields["error_kind"] = failure
    if served.rejected is not None:
        fields["event"] = "rejection"
    if served.stored:
        fields["stored"] = True
    if served.left:
        fields["left"] = True
    return fields


class AccessLog(BackgroundWriter[bytes]):
    """Lines of bytes into a file (appended; one that it makes is 0600) or, for `-`, to standard output.

    Lines that are lost are reported in the log itself, too, once it goes on. Several processes may write one file, each its batch to
    its end.
    """

    interval_s, close_s = 0.5, 2.0
    batch_size, max_held = 64 * 1024, 16 * 2**20

    def __init__(
        self, name: str, *, say: Callable[[str], None], wall: Callable[[], float] = time.time
    ) -> None:
        """Open the file; raises ToolkitError if that is not possible."""
        self._name, self._wall = name, wall
        self._reported = 0
        self._is_torn = self._wants_reopen = False
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise ToolkitError(
                f"cannot write the log `{name}`: {error.strerror or error}",
                "Name a file in a folder that exists and is yours, or `-` for standard output",
            ) from error
        broken, again = f"Cannot write the log `{name}`", f"The log `{name}` is written again"
        super().__init__(
            "access log", say, broken, "lines are lost", f"{again}; lines lost", size=len
        )

    def reopen(self) -> None:
        """Go on in a new file of the same name: a rotation moved the old one away."""
        self._wants_reopen = True
        self._wake.set()

    def _prepare(self) -> None:
        if not self._wants_reopen:
            return
        self._wants_reopen = False
        try:
            descriptor = self._open()
        except OSError as error:
            why = error.strerror or error
            self._say(f"Cannot open the log `{self._name}` anew: {why}; the old one goes on")
            return
        self._end()
        self._descriptor = descriptor

    def _write(self, batch: list[bytes]) -> None:
        """Write it whole, however slow its reader."""
        # half a line may stand there: the next one is to begin on a line of its own
        data = b"\n" * self._is_torn + b"".join(batch)
        rest = memoryview(data)
        try:
            with _alone(self._descriptor):
                while rest:
                    try:
                        rest = rest[os.write(self._descriptor, rest) :]
                    except BlockingIOError:
                        is_last = self._is_closing
                        wait_s = self.close_s if is_last else self.interval_s
                        if not select.select([], [self._descriptor], [], wait_s)[1] and is_last:
                            raise
        finally:
            if written := data[: len(data) - len(rest)]:
                self._is_torn = not written.endswith(b"\n")
            del batch[: max(0, len(batch) - bytes(rest).count(b"\n"))]
        if not self._queue and (lost := self.dropped - self._reported):
            self._reported += lost
            self._write([event_line(self._wall(), "log_lines_dropped", {"lines": lost})])

    def _open(self) -> int:
        if self._name == "-":
            return STDOUT
        # a pipe that nobody reads would hold up the start: it is an error at once
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        path = Path(self._name)
        make_private(path)
        descriptor = os.open(path, flags, MODE)
        self._is_torn = False
        # a process that was killed may have left its last line unfinished; a pipe has no size
        with suppress(OSError), _alone(descriptor):
            if os.fstat(descriptor).st_size:
                with path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    self._is_torn = file.read(1) != b"\n"
        return descriptor

    def _end(self) -> None:
        if self._descriptor != STDOUT:
            os.close(self._descriptor)


@contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """No other process is writing the file meanwhile: a line that it has half written is not a torn one. A pipe is not waited for."""
    is_locked = False
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # some network file systems know no locks
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_locked = True
    try:
        yield
    finally:
        if is_locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
