"""toolkit.capture.live on this machine's lo; what is handed out, and how it ends. Networks: test_live_namespaces.py."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.capture_child import capture_child, heard
from support.live_traffic import MIB, bodies, capturing, request, send, serving
from support.net_namespaces import inside, ip, needs_capture, needs_namespaces, pair

from toolkit.errors import ToolkitError

ROOT = Path(__file__).parents[2]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


# --- what is refused ----------------------------------------------------------------------------------


@needs_capture
def test_without_the_second_capability_the_buffer_is_as_large_as_the_system_allows() -> None:
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    with capture_child("lo", buffer_bytes=1024 * MIB, without=("net_admin",)) as child:
        assert heard(child)["buffer_bytes"] == 2 * limit  # the kernel doubles what it grants
    with capture_child("lo", buffer_bytes=1024 * MIB) as child:
        assert heard(child)["buffer_bytes"] == 1024 * MIB


# --- imports ------------------------------------------------------------------------------------------


def test_scapy_is_not_imported_before_a_capture_begins() -> None:
    done = python("import sys, toolkit.capture.live\nprint('scapy' in sys.modules)")
    assert done.stdout == "False\n"


# --- what is handed out ---------------------------------------------------------------------------------


def told_times() -> tuple[float, list[float], float]:
    """When a capture began, its frames' times, and when the last was sent: before any was read."""
    times: list[float] = []
    with serving() as server, capturing("lo", server.port) as capture:
        began = time.time()
        send("127.0.0.1", server.port, bodies(3))
        sent = time.time()
        end = time.monotonic() + 60
        while len(times) < 5 and time.monotonic() < end:
            capture.engine.pump(lambda ts, _data, _length: times.append(ts), 0.2)
    return began, times, sent


@needs_capture
def test_a_frame_bears_the_time_of_its_coming_from_the_first_on() -> None:
    # the kernel's clock for it starts late, now and then: one try would mostly miss that
    for _ in range(10):
        began, times, sent = told_times()
        assert len(times) >= 5
        # five and more were on their way before `sent`; what acknowledges a late answer comes behind them
        assert all(began <= ts <= sent for ts in times[:5]), "and not of its reading"
        assert times == sorted(times)


@needs_capture
def test_a_port_without_traffic_hands_out_nothing_and_costs_nothing() -> None:
    with serving() as server, capturing("lo", server.port) as capture:
        before = time.process_time()
        assert capture.engine.pump(pytest.fail, 0.3) == 0
        assert time.process_time() - before < 0.15, "it waits asleep"
        assert capture.engine.drops() == 0


@needs_capture
def test_what_came_before_the_capture_or_goes_to_another_port_is_not_seen() -> None:
    with serving() as server, serving() as other:
        send("127.0.0.1", server.port, [b"before"])
        with capturing("lo", server.port) as capture:
            send("127.0.0.1", other.port, [b"elsewhere"])
            send("127.0.0.1", server.port, [b"after"])
            assert capture.pump() == [b"after"]


@needs_capture
def test_on_a_connection_older_than_the_capture_the_next_request_is_seen() -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request(b"before"))
        connection.recv(1000)
        with capturing("lo", server.port) as capture:
            connection.sendall(request(b"after"))
            assert capture.pump_for(1) == [b"after"]


@needs_capture
def test_a_closed_capture_still_tells_its_drops_and_closes_again() -> None:
    wanted = bodies(120, size=60_000)
    with (
        serving() as server,
        capturing("lo", server.port, buffer_bytes=64 * 1024) as capture,
    ):
        send("127.0.0.1", server.port, wanted)
    told = capture.engine.drops()
    assert told > 0
    assert capture.engine.drops() == told
    capture.engine.close()


@needs_capture
def test_drops_add_up_although_asking_sets_the_kernels_count_back() -> None:
    wanted = bodies(120, size=60_000)
    with (
        serving() as server,
        capturing("lo", server.port, buffer_bytes=64 * 1024) as capture,
    ):
        send("127.0.0.1", server.port, wanted)
        first = capture.engine.drops()
        assert capture.engine.drops() == first > 0
        send("127.0.0.1", server.port, wanted)
        assert capture.engine.drops() > first


# --- the interface ---------------------------------------------------------------------------------------


@needs_namespaces
def test_an_interface_that_goes_down_is_told_and_waited_for() -> None:
    with pair() as (_, end), inside(end), capturing("server0", 8000) as capture:
        assert capture.engine.note is None
        ip("link", "set", "server0", "down")
        assert capture.engine.pump(pytest.fail, 0.1) == 0
        assert capture.engine.note == "`server0` is down; waiting for it to come up"
        ip("link", "set", "server0", "up")
        assert capture.engine.note is None
        assert capture.engine.pump(lambda *_: None, 0.05) >= 0


@needs_namespaces
def test_an_interface_that_is_taken_away_ends_the_capture() -> None:
    def pump_for_long() -> None:
        for _ in range(50):
            capture.engine.pump(lambda *_: None, 0.2)

    with pair() as (_, end), inside(end), capturing("server0", 8000) as capture:
        ip("link", "del", "server0")
        with pytest.raises(ToolkitError, match=r"`server0` (was removed|ended)"):
            pump_for_long()
