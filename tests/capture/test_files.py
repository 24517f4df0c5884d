"""Files: plain, zipped, piped and growing ones give their packets; what is no capture says what it is."""

import gzip
import os
import random
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from contract.harness import packets
from contract.harness.packets import START, Conversation, Frame, ethernet, ipv4, tcp, zipped
from support.segments import Segment, replayed

from toolkit.capture.records import Losses
from toolkit.errors import ToolkitError


def talk(requests: int = 3, *, dport: int = 8000) -> list[Frame]:
    made = Conversation(dport=dport)
    made.open()
    for number in range(requests):
        made.client(packets.post(b"request %d" % number))
        made.server(packets.ok())
    made.close()
    return made.frames


TALK = talk()


CAPTURE = packets.pcap(TALK)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def written(data: bytes) -> Path:
        path = tmp_path / "x.pcap"
        path.write_bytes(data)
        return path

    return written


def asked(found: list[Segment]) -> list[bytes]:
    """The bodies that were sent; each request is one segment here."""
    return [each.payload.partition(b"\r\n\r\n")[2] for each in found if each.payload]


BODIES = [b"request 0", b"request 1", b"request 2"]


# --- what is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        CAPTURE,
        packets.pcapng(TALK),
        zipped(CAPTURE),
        zipped(packets.pcapng(TALK, order=">")),
        zipped(CAPTURE[:100]) + zipped(CAPTURE[100:]),  # two members
        zipped(CAPTURE) + bytes(512),  # padded, as tapes and some cameras of networks leave it
    ],
    ids=["pcap", "pcapng", "gz", "pcapng gz", "gz of two members", "gz padded"],
)
def test_every_kind_is_told_by_its_content_and_read(
    file: bytes, write: Callable[[bytes], Path]
) -> None:
    caught = replayed(write(file))
    assert asked(caught.segments) == BODIES
    assert (caught.losses.frames, caught.losses.notes) == (len(TALK), [])


def test_a_header_only_is_a_capture_of_nothing(write: Callable[[bytes], Path]) -> None:
    for file in (CAPTURE[:24], packets.pcapng([]), packets.section(), zipped(CAPTURE[:24])):
        caught = replayed(write(file))
        assert (caught.losses, caught.losses.notes) == (Losses(), [])


def test_gz_data_that_are_cut_are_read_to_there_and_told(write: Callable[[bytes], Path]) -> None:
    noise = [Frame(START, ethernet(ipv4(tcp(1, 9, 1, random.Random(1).randbytes(1400)))))] * 9
    whole = zipped(packets.pcap(TALK + noise))
    caught = replayed(write(whole[: len(whole) - 1000]))
    assert asked(caught.segments) == BODIES
    assert len(caught.losses.notes) == 2
    assert caught.losses.notes[1].endswith("was read to its end, but its gz data are cut off")


def test_gz_data_that_are_left_unread_are_not_cut(write: Callable[[bytes], Path]) -> None:
    """Whoever stops in the midst of a file has not met its end."""
    noise = [Frame(START, ethernet(ipv4(tcp(1, 9, 1, random.Random(1).randbytes(1400)))))] * 2000
    path = write(zipped(packets.pcap(TALK + noise)))
    found: list[Segment] = []
    caught = replayed(path, into=found, stop=lambda: bool(found))
    assert 0 < caught.losses.frames < len(TALK + noise)
    assert caught.losses.notes == []


def test_what_follows_gz_data_is_told_and_left(write: Callable[[bytes], Path]) -> None:
    caught = replayed(write(zipped(CAPTURE) + b"and then some"))
    assert asked(caught.segments) == BODIES
    assert caught.losses.notes[0].endswith("holds more after its gz data, which was not read")


# --- pipes ------------------------------------------------------------------------------------------


def test_a_pipe_is_read_as_it_is_written_and_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[Segment] = []
    at = len(CAPTURE) // 2
    seen_half = threading.Event()

    def look() -> bool:
        if asked(found)[:1] == BODIES[:1]:
            seen_half.set()
        return False

    def feed() -> None:
        with path.open("wb", buffering=0) as pipe:
            pipe.write(CAPTURE[:3])
            pipe.write(CAPTURE[3:at])
            assert seen_half.wait(30)  # the first half must be seen while the second is not written
            pipe.write(CAPTURE[at:])

    writer = threading.Thread(target=feed)
    writer.start()
    caught = replayed(path, into=found, stop=look)
    writer.join()
    assert asked(caught.segments) == BODIES
    assert caught.losses.notes == []


def test_a_pipe_without_a_writer_waits_and_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    times = iter([False] * 3 + [True])
    assert replayed(path, stop=lambda: next(times, True)).segments == []


# --- files that grow --------------------------------------------------------------------------------


class Growing:
    """A file that gets its next part whenever its reader asks whether to stop, and is stopped after the last one."""

    def __init__(self, path: Path, *parts: bytes) -> None:
        self.path, self._parts = path, iter(parts)
        path.touch()

    def stop(self) -> bool:
        part = next(self._parts, None)
        if part is not None:
            with self.path.open("ab") as file:
                file.write(part)
        return part is None


def test_a_file_that_grows_is_followed_from_nothing_to_its_end(tmp_path: Path) -> None:
    cuts = [0, 1, 24, 30, 500, len(CAPTURE)]
    parts = [CAPTURE[start:end] for start, end in pairwise(cuts)]
    growing = Growing(tmp_path / "x.pcap", *parts, b"", b"")
    caught = replayed(growing.path, follow=True, stop=growing.stop)
    assert asked(caught.segments) == BODIES
    assert caught.losses.notes == []


def test_a_zipped_file_that_grows_is_followed_too(tmp_path: Path) -> None:
    squeeze = zlib.compressobj(wbits=31)
    first = squeeze.compress(CAPTURE[:600]) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    rest = squeeze.compress(CAPTURE[600:]) + squeeze.flush()
    growing = Growing(tmp_path / "x.pcap.gz", b"", first, rest, *[b""] * 4)
    assert asked(replayed(growing.path, follow=True, stop=growing.stop).segments) == BODIES


def test_a_file_stopped_in_the_middle_of_a_record_is_not_called_cut(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "x.pcap", CAPTURE[:-10], b"", b"")
    caught = replayed(growing.path, follow=True, stop=growing.stop)
    assert asked(caught.segments) == BODIES
    assert caught.losses.notes == []


@pytest.mark.parametrize("happens", ["replaced", "removed", "cut short"])
def test_a_followed_file_that_will_not_grow_ends_and_is_told(tmp_path: Path, happens: str) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(CAPTURE)
    asks = 0

    def stop() -> bool:
        nonlocal asks
        asks += 1
        if asks == 3:
            if happens == "cut short":
                os.truncate(path, 24)
            else:
                path.rename(tmp_path / "x.pcap1")
            if happens == "replaced":
                path.write_bytes(CAPTURE)
        return asks > 100

    caught = replayed(path, follow=True, stop=stop)
    assert asked(caught.segments) == BODIES
    assert asks < 100
    assert "was replaced or cut short while it was read" in caught.losses.notes[0]


# --- what is no capture -----------------------------------------------------------------------------


def refusal(path: Path | str) -> ToolkitError:
    with pytest.raises(ToolkitError) as raised:
        replayed(path)
    return raised.value


@pytest.mark.parametrize(
    ("file", "message", "hint"),
    [
        (b"", "is empty", "`--follow`"),
        (b'{"messages": []}\n', "is no capture file, but text", "`toolkit workload --from`"),
        ("Grüße aus Köln\n".encode(), "is no capture file, but text", "`toolkit workload --from`"),
        (b"ab", "is no capture file, but text", "`toolkit workload --from`"),
        (zipped(b"GET / HTTP/1.1\n" * 9), "is no capture file, but text", "pcapng"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is no capture file", "Pcap and pcapng files are read"),
        (b"snoop\0\0\0\0\0\0\x02", "is no capture file", "`editcap IN OUT.pcapng`"),
        (CAPTURE[:3], "is no capture file", "Pcap and pcapng"),
        (b"\x28\xb5\x2f\xfd\x24\0\1\0\0", "is compressed with zstd, which is not read", "`zstdcat "),
        (b"\xfd7zXZ\0\0\4", "is compressed with xz, which is not read", "`xzcat FILE | "),
    ],
)  # fmt: skip
def test_what_is_no_capture_says_what_it_is_and_what_is_read(
    file: bytes, message: str, hint: str, write: Callable[[bytes], Path]
) -> None:
    path = write(file)
    error = refusal(path)
    assert error.message == f"`{path}` {message}"
    assert hint in error.hint


def test_a_missing_file_and_a_folder_say_so(tmp_path: Path) -> None:
    gone = refusal(tmp_path / "none")
    assert gone.message == f"`{tmp_path}/none` cannot be read: no such file or directory"
    folder = refusal(tmp_path)
    assert folder.message == f"`{tmp_path}` cannot be read: is a directory"
    assert folder.hint == "Name the files in it"


def test_an_unknown_link_is_told_with_its_file(write: Callable[[bytes], Path]) -> None:
    for file in (packets.pcap(TALK, 127), packets.pcapng(TALK, 127)):
        error = refusal(write(file))
        assert error.message.endswith(
            "x.pcap`: frames of link type IEEE802_11_RADIO (127) are not read"
        )


def test_damaged_gz_data_are_told_with_what_came_before_handed_on(
    write: Callable[[bytes], Path],
) -> None:
    squeeze = zlib.compressobj(wbits=31)
    good = squeeze.compress(CAPTURE) + squeeze.flush(zlib.Z_SYNC_FLUSH)
    found: list[Segment] = []
    with pytest.raises(ToolkitError, match="its gz data cannot be unpacked") as raised:
        replayed(write(good + b"\xff" * 100), into=found)
    assert "is damaged" in raised.value.message
    assert asked(found) == BODIES


# --- where nothing is on the ports watched ----------------------------------------------------------


def test_requests_on_other_ports_are_counted_until_one_is_found(
    write: Callable[[bytes], Path],
) -> None:
    frames = talk(1, dport=9000) + talk(3, dport=8080)
    frames_6 = [Frame(START, ethernet(packets.ipv6(tcp(1, 9001, 1, b"POST / HTTP/1.1\r\n"))))]
    for file in (packets.pcap(frames + frames_6), zipped(packets.pcapng(frames + frames_6))):
        assert replayed(write(file)).losses.other_ports == {8080: 3, 9000: 1, 9001: 1}
    found = packets.pcap(talk(1) + talk(3, dport=9000))
    assert not replayed(write(found)).losses.other_ports


# --- bounded, whatever comes ------------------------------------------------------------------------


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_block_that_is_never_whole_takes_no_more_than_the_largest(
    write: Callable[[bytes], Path],
) -> None:
    waiting = struct.pack("<III", 99, 16 << 20, 0)
    path = write(packets.pcapng(TALK) + waiting + bytes(15_000_000))
    # the block itself, and its copy while the next bytes are joined to it
    assert peak_bytes(lambda: replayed(path)) < 2 * (16 << 20) + 2_000_000


def test_gz_data_that_blow_up_are_read_in_bounded_blocks(write: Callable[[bytes], Path]) -> None:
    record = packets.pcap([Frame(START, ethernet(ipv4(tcp(1, 9, 1, bytes(60_000)))))])[24:]
    path = write(gzip.compress(CAPTURE + record * 800))  # 48 MB in 0.1
    assert path.stat().st_size < 1_000_000
    assert peak_bytes(lambda: replayed(path)) < 3_000_000
    assert replayed(path).losses.frames == len(TALK) + 800


def damaged_files() -> Iterator[bytes]:
    """Good files with bytes changed, cut out, doubled and mixed, and no files at all."""
    dice = random.Random(20231114)
    good = [CAPTURE, packets.pcap(TALK, order=">"), packets.pcapng(TALK), zipped(CAPTURE)]
    good += [packets.pcapng(TALK, order=">"), packets.pcap(TALK, packets.SLL), bytes(3000)]
    for _ in range(800):
        file = bytearray(dice.choice(good))
        for _ in range(dice.choice([1, 1, 2, 5, 50])):
            place = dice.randrange(len(file))
            kind = dice.randrange(4)
            if kind == 0:
                file[place] = dice.randrange(256)
            elif kind == 1:
                file[place : place + 4] = dice.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
            elif kind == 2:
                del file[place : place + dice.randrange(1, 60)]
            else:
                file[place:place] = file[dice.randrange(len(file)) :][: dice.randrange(1, 100)]
        yield bytes(file)
    for size in (1, 2, 4, 24, 100, 5000):
        for magic in (b"", CAPTURE[:4], packets.section()[:4], b"\x1f\x8b\x08\0"):
            yield magic + dice.randbytes(size)


def test_damage_of_any_kind_is_a_clear_error_or_less_to_read(
    write: Callable[[bytes], Path],
) -> None:
    told, read = [], 0
    for file in damaged_files():
        try:
            replayed(write(file), follow_answers=len(file) % 2 == 0)
            read += 1
        except ToolkitError as error:
            told.append(error.message)
    assert all("x.pcap`" in message for message in told)
    # both must happen, or the damage is too small or too great to tell anything
    assert min(len(told), read) > 100
