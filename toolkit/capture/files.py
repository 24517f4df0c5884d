"""Capture files, pipes and files that still grow -> TCP segments. The only file of the room that opens a capture.

It reads in blocks and keeps no more than two: memory is the same for a file of any size. It decides nothing about
packets; pcap.py and pcapng.py read what it hands them.
"""

import codecs
import os
import select
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from toolkit.capture.exchange import Losses, MemoryBounds
from toolkit.capture.frames import Frames
from toolkit.capture.other_ports import http_ports
from toolkit.capture.pcap import MAGICS, Pcap, damaged
from toolkit.capture.pcapng import MAGIC, Pcapng
from toolkit.errors import ToolkitError

BLOCK_BYTES = 1 << 17
STDIN = "-"
_SILENT_S = 0.2
"""How often a silent source asks whether to stop."""
_SAMPLE = 1000
"""Requests on other ports that are enough to name the ports."""
_GZIP = b"\x1f\x8b"
_NORMAL = MemoryBounds()

_TOOLS = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"\xfd7zX": ("xz", "xzcat"),
    b"BZh": ("bzip2", "bzcat"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4cat"),
}
_READ = (
    "pcap and pcapng files are read, plain or gz; `editcap IN OUT.pcapng` makes them of other kinds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a person should know of a capture that was read to its end."""

    notes: tuple[str, ...] = ()
    """Full sentences without a stop: how the file ends, what of it is not read."""
    http_ports: tuple[int, ...] = ()
    """Where nothing was on the ports watched: ports that HTTP requests went to instead, the busiest first."""


class _Reader(Protocol):
    def feed(self, data: bytes) -> None: ...
    def ending(self) -> str | None: ...
    def notes(self) -> list[str]: ...


def replay(
    path: str,
    segment: Callable[..., None],
    *,
    ports: Collection[int],
    follow_answers: bool,
    losses: Losses,
    limits: MemoryBounds = _NORMAL,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Hand every TCP segment of a capture on the ports to `segment` (Streams.segment); `-` is standard input.

    `follow`: a file that ends still grows; only `stop` ends it. `stop` is asked before every block, and five times a
    second while the source is silent. Raises ToolkitError for what is no capture, and for damage, what comes before it
    handed on; a file cut in its last record is none: it is told in the notes.
    """
    name = _PIPE if path == STDIN else f"`{path}`"
    told: list[str] = []
    file = _FileProgress(
        name,
        lambda link_type: Frames(
            link_type,
            segment,
            ports=ports,
            follow_answers=follow_answers,
            losses=losses,
            limits=limits,
        ),
        losses,
    )
    stopped = False

    def asked_to_stop() -> bool:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    with _opened(path, name) as descriptor:
        blocks = _blocks(descriptor, path, name, follow=follow, stop=asked_to_stop, told=told)
        for data in _unzipped(blocks, name, told):
            file.feed(data)
            if asked_to_stop():
                break
    file.end(stopped=stopped)
    return Replayed(notes=(*file.notes, *told), http_ports=file.http_ports())


class _FileProgress:
    """What was read of one file so far."""

    def __init__(self, name: str, make_frames: Callable[[int], Frames], losses: Losses) -> None:
        self._name, self._make_frames, self._losses = name, make_frames, losses
        self._segments_before = losses.segments
        self._frames: dict[int, Frames] = {}
        """By link type."""
        self._reader: _Reader | None = None
        self._first = b""
        self._elsewhere: Counter[int] = Counter()
        self.notes: list[str] = []

    def feed(self, data: bytes) -> None:
        """Take its next bytes, unzipped."""
        if self._reader is None:
            data = self._first + data
            if len(data) < 4:
                self._first = data
                return
            self._reader = self._reader_of(data)
            self._first = b""
        self._reader.feed(data)
        if self._nothing_yet() and self._elsewhere.total() < _SAMPLE:
            self._elsewhere.update(http_ports(data, _SAMPLE))

    def end(self, *, stopped: bool) -> None:
        """All was fed, or its reading was stopped."""
        for frames in self._frames.values():
            frames.close()
        if self._reader is not None:
            self.notes = self._reader.notes()
            ending = self._reader.ending()
            if ending is not None and not stopped:
                self.notes.append(f"{self._name} was read to its end, but {ending}")
        elif not stopped:
            raise _no_capture(self._name, self._first)

    def http_ports(self) -> tuple[int, ...]:
        found = self._elsewhere.most_common() if self._nothing_yet() else []
        return tuple(port for port, _ in found)

    def _nothing_yet(self) -> bool:
        return self._losses.segments == self._segments_before

    def _reader_of(self, first: bytes) -> _Reader:
        if first[:4] in MAGICS:
            return Pcap(self._name, self._frames_of, self._losses)
        if first[:4] == MAGIC:
            return Pcapng(self._name, self._frames_of, self._losses)
        raise _no_capture(self._name, first)

    def _frames_of(self, link_type: int) -> Frames:
        """One Frames for all interfaces of a link type: a packet's fragments may come in by two of them."""
        if link_type not in self._frames:
            self._frames[link_type] = self._make_frames(link_type)
        return self._frames[link_type]


_PIPE = "standard input"
_EMPTY_PIPE = "What writes into it ended at once; if it is tcpdump, it says why: no right, or no such interface"
_EMPTY_FILE = (
    "tcpdump writes a file's header at its start; `--follow` waits for a file that is yet to grow"
)


def _no_capture(name: str, first: bytes) -> ToolkitError:
    """Why this is no capture file, by its first bytes."""
    if not first:
        return ToolkitError(f"{name} is empty", _EMPTY_PIPE if name == _PIPE else _EMPTY_FILE)
    for magic, (program, command) in _TOOLS.items():
        if first.startswith(magic):
            hint = f"Unpack it on the way: `{command} FILE | toolkit capture -`"
            return ToolkitError(f"{name} is compressed with {program}, which is not read", hint)
    if _is_text(first[:512]):
        hint = f"Is it a log of requests or a trace? `toolkit workload --from` reads those; here {_READ}"
        return ToolkitError(f"{name} is no capture file, but text", hint)
    return ToolkitError(f"{name} is no capture file", _READ[0].upper() + _READ[1:])


def _is_text(first: bytes) -> bool:
    try:
        # an incremental decoder takes a last character that is cut for one that is yet to come
        text = codecs.getincrementaldecoder("utf-8")().decode(first)
    except UnicodeDecodeError:
        return False
    return all(letter >= " " or letter in "\t\n\r\f\x1b" for letter in text)


def _unzipped(blocks: Iterator[bytes], name: str, told: list[str]) -> Iterator[bytes]:
    """The blocks as they are, or what their gz data hold; what is wrong with their end goes to `told`."""
    first = b""
    for data in blocks:
        first += data
        if len(first) >= len(_GZIP):
            break
    if first.startswith(_GZIP):
        yield from _gunzipped(chain((first,), blocks), name, told)
    elif first:
        yield first
        yield from blocks


def _gunzipped(blocks: Iterable[bytes], name: str, told: list[str]) -> Iterator[bytes]:
    """What one or several gz members hold, in blocks of bounded size whatever they blow up to."""
    member, held, members = zlib.decompressobj(31), 0, 0
    for block in blocks:
        data = block
        while True:
            before = member.copy()
            try:
                plain = member.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                if members and not held:
                    told.append(f"{name} holds more after its gz data, which was not read")
                    return
                yield from _good_part(before, data)
                raise damaged(name, f"its gz data cannot be unpacked: {error}") from None
            held += len(plain)
            if plain:
                yield plain
            if member.eof:
                data = member.unused_data.lstrip(b"\0")  # some pad with zeros
                member, held, members = zlib.decompressobj(31), 0, members + 1
            else:
                data = member.unconsumed_tail
            if not data and len(plain) < BLOCK_BYTES:  # a full block may have more behind it
                break
    if held:
        told.append(f"{name} was read to its end, but its gz data are cut off")


def _good_part(member: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    """What can be unpacked before the damage: an unpacking that fails gives nothing, so byte by byte."""
    try:
        for place in range(len(data)):
            plain = member.decompress(data[place : place + 1])
            if plain:
                yield plain
    except zlib.error:
        return


@contextmanager
def _opened(path: str, name: str) -> Iterator[int]:
    """A descriptor of the file; of a pipe without a writer yet, too."""
    if path == STDIN:
        if os.isatty(0):
            hint = "Pipe a capture into it: `tcpdump -i any -s 0 -U -w - tcp | toolkit capture -`"
            raise ToolkitError("standard input is a terminal", hint)
        yield 0
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(name, error) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _blocks(
    descriptor: int,
    path: str,
    name: str,
    *,
    follow: bool,
    stop: Callable[[], bool],
    told: list[str],
) -> Iterator[bytes]:
    """What can be read, as soon as it can, until the end or `stop`; without seeking."""
    try:
        grows = follow and stat.S_ISREG(os.fstat(descriptor).st_mode)
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        while not stop():
            if not ready.poll(_SILENT_S * 1000):
                continue
            try:
                data = os.read(descriptor, BLOCK_BYTES)
            except BlockingIOError:
                continue
            if data:
                yield data
            elif not grows:
                return
            elif _is_gone(descriptor, path):
                told.append(
                    f"{name} was replaced or cut short while it was read; what it held before was read"
                )
                return
            else:
                time.sleep(_SILENT_S)
    except OSError as error:
        raise _unreadable(name, error) from None


def _is_gone(descriptor: int, path: str) -> bool:
    """Whether a file that was read to its end will not grow: it is shorter now, or its name is another file's."""
    now = os.fstat(descriptor)
    if now.st_size < os.lseek(descriptor, 0, os.SEEK_CUR):
        return True
    if path == STDIN:
        return False
    try:
        named = os.stat(path)  # noqa: PTH116 (a path as given, `-` among them)
    except FileNotFoundError:
        return True
    return (named.st_dev, named.st_ino) != (now.st_dev, now.st_ino)


def _unreadable(name: str, error: OSError) -> ToolkitError:
    reason = (error.strerror or "no reason given").lower()
    hint = "Name the files in it" if isinstance(error, IsADirectoryError) else ""
    return ToolkitError(f"{name} cannot be read: {reason}", hint)
