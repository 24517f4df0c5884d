"""toolkit.capture.tcpdump against programs that behave as a tcpdump may; the real one: test_live.py, test_live_namespaces.py."""

import os
import signal
import stat
import time
from pathlib import Path

import pytest
from contract.harness import packets
from support.live_traffic import MIB, bodies, capturing, send, serving
from support.net_namespaces import needs_capture, needs_tcpdump

from toolkit.capture import tcpdump
from toolkit.capture.live import LiveCapture
from toolkit.capture.tcpdump import open_tcpdump
from toolkit.errors import ToolkitError

LISTENING = "tcpdump: listening on lo, link-type EN10MB (Ethernet), snapshot length 262144 bytes"
FRAMES = [packets.Frame(1000 + number, b"frame %d" % number) for number in range(3)]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts the shell script that is found as tcpdump; a capture of three frames lies beside it."""
    (tmp_path / "three.pcap").write_bytes(packets.pcap(FRAMES, nanoseconds=True))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "tcpdump"


def begun(program: Path, script: str) -> LiveCapture:
    program.write_text(f"#!/bin/sh\ncd {program.parent}\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return open_tcpdump("lo", ports=[8000], follow_answers=False, buffer_bytes=MIB)


def pumped(engine: LiveCapture, count: int) -> list[tuple[float, bytes, int]]:
    seen: list[tuple[float, bytes, int]] = []
    end = time.monotonic() + 60
    while len(seen) < count and time.monotonic() < end:
        engine.pump(lambda *frame: seen.append(frame), 0.2)
    return seen


def test_frames_come_whole_however_the_pipe_cuts_them(program: Path) -> None:
    # 24 bytes of header, then 16 + 7 a frame: cut within a header, within a frame, and behind one
    cuts = ["head -c 30", "tail -c +31 three.pcap | head -c 12", "tail -c +43 three.pcap"]
    script = f"echo '{LISTENING}' >&2; {cuts[0]} three.pcap; {cuts[1]}; {cuts[2]}; exec sleep 60"
    engine = begun(program, script)
    assert engine.link_type == packets.ETHERNET
    assert pumped(engine, 3) == [
        (1000.0, b"frame 0", 7),
        (1001.0, b"frame 1", 7),
        (1002.0, b"frame 2", 7),
    ]
    engine.close()


def test_its_count_of_drops_is_asked_for_and_heard_again_at_its_end(program: Path) -> None:
    script = (
        "trap \"echo 'tcpdump: 3 packets captured, 9 packets received by filter, 6 packets dropped by kernel' >&2\" USR1\n"
        "trap \"echo '3 packets captured' >&2; echo '7 packets dropped by kernel' >&2; exit\" TERM\n"
        "cat three.pcap\nwhile :; do sleep 0.05; done"
    )
    engine = begun(program, script)
    end = time.monotonic() + 60
    while engine.drops() == 0 and time.monotonic() < end:
        engine.pump(lambda *_: None, 0.1)
    assert engine.drops() == 6
    engine.close()
    assert engine.drops() == 7
    engine.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tcpdump: can't parse filter expression: syntax error", "can't parse filter expression"),
        ("tcpdump: lo: That device is not up", "lo: That device is not up"),
        (LISTENING, "it gave no reason"),
        ("", "it gave no reason"),
    ],
)
def test_one_that_ends_at_once_is_told_with_its_reason(
    program: Path, words: str, message: str
) -> None:
    with pytest.raises(ToolkitError, match="tcpdump on `lo` ended: ") as refused:
        begun(program, f'echo "{words}" >&2; exit 1')
    assert message in refused.value.message


def test_one_that_has_no_rights_is_told_as_such(program: Path) -> None:
    words = "tcpdump: lo: You don't have permission to perform this capture on that device"
    with pytest.raises(ToolkitError, match="no right to capture on `lo`") as refused:
        begun(program, f'echo "{words}" >&2; exit 1')
    assert f"cap_net_raw,cap_net_admin+ep {program.resolve()} " in refused.value.hint


def test_one_that_ends_later_ends_the_capture_after_its_last_frame(program: Path) -> None:
    script = "cat three.pcap; echo 'tcpdump: pcap_loop: The interface disappeared' >&2; exit 1"
    engine = begun(program, script)
    assert len(pumped(engine, 3)) == 3
    for _ in range(2):
        with pytest.raises(ToolkitError, match="ended: pcap_loop: The interface disappeared"):
            engine.pump(lambda *_: None, 5.0)
    engine.close()


def test_one_that_never_begins_is_given_up(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcpdump, "START_S", 0.2)
    with pytest.raises(ToolkitError, match=r"did not begin within 0\.2 s"):
        begun(program, "exec sleep 60")


def test_one_that_does_not_end_when_asked_is_killed(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcpdump, "END_S", 0.2)
    engine = begun(program, "trap '' TERM\ncat three.pcap\nwhile :; do sleep 0.05; done")
    seen: list[bytes] = []
    engine.drain(lambda _ts, data, _length: seen.append(data))
    engine.close()
    assert engine._child.returncode == -signal.SIGKILL  # type: ignore[attr-defined]
    # what it had written before was handed out, and then nothing more
    assert len(seen) == 3
    with pytest.raises(ToolkitError, match="ended"):
        engine.pump(lambda *_: None, 0.0)


def test_one_that_waits_for_room_in_the_pipe_ends_all_the_same(program: Path) -> None:
    engine = begun(program, "cat three.pcap; exec cat /dev/zero")
    engine.close()
    assert engine._child.returncode in (-signal.SIGTERM, -signal.SIGPIPE), "not killed"  # type: ignore[attr-defined]


def test_without_tcpdump_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolkitError, match="`tcpdump` is not installed") as refused:
        open_tcpdump("lo", ports=[8000], follow_answers=False)
    assert "apt install tcpdump" in refused.value.hint


def test_ctrl_c_at_the_terminal_does_not_reach_it(program: Path) -> None:
    # a terminal sends it to the process group in the foreground, ours
    engine = begun(program, "cut -d' ' -f5 /proc/$$/stat > group; cat three.pcap; exec sleep 60")
    assert len(pumped(engine, 3)) == 3
    assert int(Path(program.parent, "group").read_text()) != os.getpgrp()
    engine.close()


@needs_capture
@needs_tcpdump
@pytest.mark.slow
def test_while_it_runs_its_drops_are_known() -> None:
    with (
        serving() as server,
        capturing("tcpdump", "lo", server.port, buffer_bytes=65536) as capture,
    ):
        send("127.0.0.1", server.port, bodies(120, size=60_000))
        end = time.monotonic() + 60
        while capture.engine.drops() == 0 and time.monotonic() < end:
            capture.engine.pump(lambda *_: None, 0.1)
        assert capture.engine.drops() > 0
