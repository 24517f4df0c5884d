"""Capture files, pipes and files that still grow -> TCP segments. The only file here that opens a capture.

It reads in blocks and keeps no more than two, or one block of pcapng: memory is the same for a file of any size. pcapng is
read here, too: scapy's reader passes over what a file tells of drops, and takes damage for the file's end.
"""

import codecs
import os
import select
import stat
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from toolkit.capture.packets import Frames
from toolkit.capture.records import CaptureFilter, Losses
from toolkit.errors import ToolkitError, reason_of

BLOCK_BYTES = 1 << 17
STDIN = "-"
_PIPE = "standard input"
_SILENT_S = 0.2
"""How often a silent source asks whether to stop."""
_GZIP = b"\x1f\x8b"


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a person should know of the files that were read."""

    notes: list[str] = field(default_factory=list)
    """Full sentences without a stop: how a file ends, what of it is not read."""
    http_ports: list[int] = field(default_factory=list)
    """Where nothing was on the ports watched: ports that HTTP requests went to instead, the busiest of a file first."""


def replay(
    path: str,
    segment: Callable[..., None],
    watch: CaptureFilter,
    losses: Losses,
    told: Replayed,
    *,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Hand every TCP segment of a capture on the ports to `segment` (Streams.segment); `-` is standard input.

    `follow`: a file that ends still grows; only `stop` ends it. `stop` is asked before every block, and five times a
    second while the source is silent. Raises ToolkitError for what is no capture, and for damage, what comes before it
    handed on; a file cut in its last record is none: it is told in the notes.
    """
    name = _PIPE if path == STDIN else f"`{path}`"
    ends: list[str] = []
    all_frames: dict[int, Frames] = {}
    elsewhere = Counter[int]()
    segments_before = losses.segments
    stopped = False

    def asked_to_stop() -> bool:
        nonlocal stopped
        stopped = stopped or stop()
        return stopped

    def frames_of(link_type: int) -> Frames:
        """One Frames for all interfaces of a link type: a packet's fragments may come in by two of them."""
        if link_type not in all_frames:
            all_frames[link_type] = Frames(link_type, segment, watch, losses)
        return all_frames[link_type]

    def looked_at(blocks: Iterable[bytes]) -> Iterator[bytes]:
        for data in blocks:
            yield data
            if losses.segments == segments_before and elsewhere.total() < SAMPLE:
                elsewhere.update(http_ports(data))
            if asked_to_stop():
                return

    descriptor = 0
    if path != STDIN:
        try:
            # non-blocking: a pipe may have no writer yet
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(name, error) from None
    try:
        read = _blocks(descriptor, path, name, follow=follow, stop=asked_to_stop, ends=ends)
        first, blocks = _begun(read)
        if first.startswith(_GZIP):
            first, blocks = _begun(_gunzipped(blocks, name, ends))
        ending = None
        if first[:4] in PCAP_MAGICS:
            ending = _read_pcap(looked_at(blocks), name, frames_of)
        elif first[:4] == PCAPNG_MAGIC:
            ending = _read_pcapng(looked_at(blocks), name, frames_of, losses, told.notes)
        elif not stopped or len(first) >= 4:
            raise _no_capture(name, first)
    finally:
        if path != STDIN:
            os.close(descriptor)
    for frames in all_frames.values():
        frames.close()
    if ending is not None and not stopped:
        told.notes.append(f"{name} was read to its end, but {ending}")
    told.notes += ends
    if losses.segments == segments_before:
        ports = [port for port, _ in elsewhere.most_common()]
        told.http_ports += [port for port in ports if port not in told.http_ports]


# --- pcap -------------------------------------------------------------------------------------------

PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
"""A file's first bytes -> its byte order, and how many parts of a second its times count."""
LARGEST_FRAME = 1 << 20
"""tcpdump keeps 262,144 bytes of a frame at most: a length beyond this is damaged, and is not waited for."""
_HEADER, _RECORD = 24, 16


def _read_pcap(
    blocks: Iterable[bytes], name: str, frames_of: Callable[[int], Frames]
) -> str | None:
    """Hand on every frame; what is wrong with the file's end, or None."""
    rest = b""
    place = 0  # of the first byte of `rest` in the file
    frames: Frames | None = None
    for data in blocks:
        block = rest + data
        at, end = 0, len(block)
        if frames is None:
            if end < _HEADER:
                rest = block
                continue
            order, parts = PCAP_MAGICS[block[:4]]
            record = struct.Struct(f"{order}IIII").unpack_from
            # the upper 6 bits tell how long the frame check sequences are
            link_type = struct.unpack_from(f"{order}I", block, 20)[0] & 0x03FFFFFF
            try:
                frames = frames_of(link_type)
            except ToolkitError as problem:
                raise _not_read(name, problem) from None
            at = _HEADER
        frame = frames.frame
        while at + _RECORD <= end:
            seconds, fraction, kept, wire_length = record(block, at)
            if kept > LARGEST_FRAME:
                raise _damaged(name, f"at byte {place + at:,} a frame of {kept:,} bytes begins")
            following = at + _RECORD + kept
            if following > end:
                break
            frame(seconds + fraction / parts, block[at + _RECORD : following], wire_length)
            at = following
        rest = block[at:]
        place += at
    if frames is None:
        return f"it ends within its header, after {len(rest)} bytes"
    return f"its last record, at byte {place:,}, is cut off" if rest else None


# --- pcapng -----------------------------------------------------------------------------------------

PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
"""A section's first bytes, the same in both byte orders."""
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
LARGEST_BLOCK = 16 << 20
"""Wireshark's own limit: a length beyond this is damaged, and is not waited for."""
MOST_INTERFACES = 1 << 16
"""An old packet block counts no further; so that a file of nothing else cannot fill the memory."""
YEAR_10000 = 253_402_300_800.0
"""No calendar goes beyond it, and a clock whose units are damaged easily does."""

_INTERFACE, _OLD_PACKET, _SIMPLE, _STATISTICS, _ENHANCED = 1, 2, 3, 5, 6
_RESOLUTION, _OFFSET_S = 9, 14
_DROPPED_BY_INTERFACE, _DROPPED_BY_SYSTEM = 5, 7
_SMALLEST = 12


@dataclass(slots=True, kw_only=True)
class _Interface:
    """What an interface's block says of its frames."""

    frames: Frames | None = None
    problem: ToolkitError | None = None
    """Why its frames are not read, where they are not."""
    ticks_per_s: int = 10**6
    offset_s: int = 0
    snaplen: int
    """0: frames are whole."""
    drops: int = 0


def _read_pcapng(
    blocks: Iterable[bytes],
    name: str,
    frames_of: Callable[[int], Frames],
    losses: Losses,
    notes: list[str],
) -> str | None:
    """Hand on every frame, whatever the sections, interfaces and byte orders; what is wrong with the file's end, or None.

    What it does not know is passed over, decryption secrets among it. What a reader should know goes to `notes`.
    """
    rest = b""
    place = timeless = 0
    now = 0.0  # time of the last frame that has one
    unread = Counter[str]()
    order = "<"
    interfaces: list[_Interface] = []

    def broken(at: int, what: str) -> ToolkitError:
        return _damaged(name, f"at byte {place + at:,} {what}")

    def interface_of(number: int, at: int) -> _Interface:
        if number >= len(interfaces):
            raise broken(at, f"a block names interface {number:,} of {len(interfaces)}")
        return interfaces[number]

    def hand_on(interface: _Interface, frame: bytes, wire_length: int) -> None:
        if interface.frames is not None:
            interface.frames.frame(now, frame, wire_length)
            return
        assert interface.problem is not None
        if all(each.frames is None for each in interfaces):
            raise _not_read(name, interface.problem)
        unread[interface.problem.message] += 1

    for read in blocks:
        data = rest + read
        at = 0
        while len(data) - at >= _SMALLEST:
            if data[at : at + 4] == PCAPNG_MAGIC:
                known = _ORDERS.get(data[at + 8 : at + 12])
                if known is None:
                    raise broken(at, "a section tells no byte order")
                order, interfaces = known, []
            kind, length = struct.unpack_from(f"{order}II", data, at)
            if not _SMALLEST <= length <= LARGEST_BLOCK:
                raise broken(at, f"a block says it is {length:,} bytes long")
            following = at + length
            if following > len(data):
                break
            (repeated,) = struct.unpack_from(f"{order}I", data, following - 4)
            if repeated != length:
                raise broken(
                    at, f"a block says it is {length:,} bytes long, and {repeated:,} at its end"
                )
            body = data[at + 8 : following - 4]

            if kind in (_ENHANCED, _OLD_PACKET):
                if len(body) < 20:
                    raise broken(at, "a packet's block is cut off")
                number, high, low, kept, wire_length = struct.unpack_from(f"{order}IIIII", body)
                if kind == _OLD_PACKET:
                    number, drops = struct.unpack_from(f"{order}HH", body)
                    if drops != 0xFFFF:  # which stands for unknown
                        losses.kernel_drops += drops
                if kept > len(body) - 20:
                    raise broken(at, f"a block of {length:,} bytes holds a frame of {kept:,}")
                interface = interface_of(number, at)
                ts = (high << 32 | low) / interface.ticks_per_s + interface.offset_s
                if 0 <= ts < YEAR_10000:
                    now = ts
                else:
                    timeless += 1
                hand_on(interface, body[20 : 20 + kept], wire_length)
            elif kind == _SIMPLE:
                interface = interface_of(0, at)
                if len(body) < 4:
                    raise broken(at, "a packet's block is cut off")
                (wire_length,) = struct.unpack_from(f"{order}I", body)
                # it tells its length on the wire only: what was kept is that, up to the snaplen, without the padding
                kept = min(wire_length, interface.snaplen or wire_length)
                timeless += 1
                hand_on(interface, body[4 : 4 + kept], wire_length)
            elif kind == _INTERFACE:
                if len(body) < 8 or len(interfaces) == MOST_INTERFACES:
                    raise broken(at, "an interface's block is cut off, or one too many")
                link_type, snaplen = struct.unpack_from(f"{order}H2xI", body)
                interface = _Interface(snaplen=snaplen)
                for code, value in _options(body[8:], order):
                    if code == _RESOLUTION and len(value) == 1:
                        # the top bit tells powers of 2 from powers of 10
                        power = value[0]
                        interface.ticks_per_s = 2 ** (power & 0x7F) if power & 0x80 else 10**power
                    elif code == _OFFSET_S and len(value) == 8:
                        (interface.offset_s,) = struct.unpack(f"{order}q", value)
                try:
                    interface.frames = frames_of(link_type)
                except ToolkitError as problem:
                    interface.problem = problem
                interfaces.append(interface)
            elif kind == _STATISTICS:
                # what the capturing program says that it lost on an interface, counted since its start
                if len(body) < 12:
                    raise broken(at, "statistics are cut off")
                interface = interface_of(struct.unpack_from(f"{order}I", body)[0], at)
                drops = sum(
                    struct.unpack(f"{order}Q", value)[0]
                    for code, value in _options(body[12:], order)
                    if code in (_DROPPED_BY_INTERFACE, _DROPPED_BY_SYSTEM) and len(value) == 8
                )
                losses.kernel_drops += max(0, drops - interface.drops)
                interface.drops = max(drops, interface.drops)
            at = following
        rest = data[at:]
        place += at

    notes += [f"{name}: {count:,} {problem}" for problem, count in unread.items()]
    if timeless:
        notes.append(
            f"{name}: {timeless:,} frames have no time that can be; each is taken for as late as the one before"
        )
    if rest and not place:
        return f"it ends within its header, after {len(rest)} bytes"
    return f"its last block, at byte {place:,}, is cut off" if rest else None


def _options(options: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(options):
        code, length = struct.unpack_from(f"{order}HH", options, at)
        if code == 0:
            return
        yield code, options[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4


# --- what is wrong with a file ----------------------------------------------------------------------


def _damaged(name: str, what: str) -> ToolkitError:
    """Say that a capture file holds what cannot be; what came before it has been handed on."""
    hint = "All before it was read; copy the file anew, or capture again"
    return ToolkitError(f"{name} is damaged: {what}", hint)


def _not_read(name: str, problem: ToolkitError) -> ToolkitError:
    return ToolkitError(f"{name}: {problem.message}", problem.hint)


_TOOLS = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"\xfd7zX": ("xz", "xzcat"),
    b"BZh": ("bzip2", "bzcat"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4cat"),
}
_READ = (
    "pcap and pcapng files are read, plain or gz; `editcap IN OUT.pcapng` makes them of other kinds"
)
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
    try:
        # an incremental decoder takes a last character that is cut for one that is yet to come
        text = codecs.getincrementaldecoder("utf-8")().decode(first[:512])
    except UnicodeDecodeError:
        text = "\0"
    if all(letter >= " " or letter in "\t\n\r\f\x1b" for letter in text):
        hint = f"Is it a log of requests or a trace? `toolkit workload --from` reads those; here {_READ}"
        return ToolkitError(f"{name} is no capture file, but text", hint)
    return ToolkitError(f"{name} is no capture file", _READ[0].upper() + _READ[1:])


# --- bytes of a file ---------------------------------------------------------------------------------


def _begun(blocks: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """The first bytes, enough to know a file by, where there are so many; and all of them."""
    rest = iter(blocks)
    first = b""
    for data in rest:
        first += data
        if len(first) >= len(PCAPNG_MAGIC):
            break
    return first, chain((first,), rest)


def _gunzipped(blocks: Iterable[bytes], name: str, ends: list[str]) -> Iterator[bytes]:
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
                    ends.append(f"{name} holds more after its gz data, which was not read")
                    return
                # an unpacking that fails gives nothing: once more byte by byte, for what stands before the damage
                with suppress(zlib.error):
                    for place in range(len(data)):
                        yield before.decompress(data[place : place + 1])
                raise _damaged(name, f"its gz data cannot be unpacked: {error}") from None
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
        ends.append(f"{name} was read to its end, but its gz data are cut off")


def _blocks(
    descriptor: int,
    path: str,
    name: str,
    *,
    follow: bool,
    stop: Callable[[], bool],
    ends: list[str],
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
            else:
                now = os.fstat(descriptor)
                is_gone = now.st_size < os.lseek(descriptor, 0, os.SEEK_CUR)
                try:
                    is_gone = is_gone or not os.path.samestat(os.stat(path), now)  # noqa: PTH116
                except FileNotFoundError:
                    is_gone = True
                if is_gone:
                    ends.append(
                        f"{name} was replaced or cut short while it was read; what it held before was read"
                    )
                    return
                time.sleep(_SILENT_S)
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError) -> ToolkitError:
    hint = "Name the files in it" if isinstance(error, IsADirectoryError) else ""
    return ToolkitError(f"{name} cannot be read: {reason_of(error)}", hint)


# --- where else requests went -----------------------------------------------------------------------

SAMPLE = 1000
"""Requests on other ports that are enough to name the ports."""


def http_ports(block: bytes) -> Iterator[int]:
    """Destination port of each request line in bytes of a capture, at most SAMPLE of each method.

    It searches request lines with a TCP and an IP header before them, whatever the file and link around: a hint to a
    person, by which nothing is counted.
    """
    for method in (b"POST /", b"GET /"):
        found, payload = 0, block.find(method)
        while payload >= 0 and found < SAMPLE:
            for length in range(20, 64, 4):
                tcp = payload - length
                if tcp < 20:
                    break
                if block[tcp + 12] >> 4 != length // 4:
                    continue
                # an IPv4 or IPv6 header without options ends there and announces TCP
                is_ipv4 = block[tcp - 20] == 0x45 and block[tcp - 11] == 6
                if is_ipv4 or (tcp >= 40 and block[tcp - 40] >> 4 == 6 and block[tcp - 34] == 6):
                    found += 1
                    yield int.from_bytes(block[tcp + 2 : tcp + 4], "big")
                    break
            payload = block.find(method, payload + 1)
