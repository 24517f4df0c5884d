"""The log: what its lines hold and never hold, and what becomes of them when the disk is slow, full or gone."""

import json
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.proxy.telemetry.access_log import (
    AccessLog,
    HitLine,
    event_line,
    json_line,
    request_line,
)
from toolkit.proxy.telemetry.metrics import Served
from toolkit.records import Asked, Seen
from toolkit.workload import read

T = 1_750_000_000.123457
USUAL: dict[str, Any] = {
    "ts": T,
    "request_id": "7f3a-12",
    "team": "red",
    "path": "/v1/chat/completions",
    "endpoint": "chat/completions",
    "model": "qwen",
    "status": 200,
    "prompt_tokens": 20,
    "output_tokens": 5,
    "finish_reason": "stop",
    "body_bytes": 812,
    "exact_key": "e" * 32,
    "request_key": "r" * 32,
    "prompt_key": "p" * 32,
}
MISS = Served(
    **USUAL, stream=True, cache="miss", new=True, cached_tokens=16, ttft_ms=101.23456, tpot_ms=10.5,
    latency_ms=143.2, queue_ms=3.25, upstream="a", stored=True,
)  # fmt: skip


def hit(**told: Any) -> Served:
    own = {"stream": False, "cache": "hit", "layer": "memory", "new": False, "latency_ms": 0.0312}
    return Served(**{**USUAL, **own, **told})


def workload(*lines: bytes) -> list[Seen]:
    return list(read(iter(lines), "log", client=lambda address: f"<{address}>").seen)


@pytest.mark.parametrize(
    "hostile",
    [
        "a\nb",
        "\x1b[2J",
        "\x7f",
        "\x9b2J",
        "\u2028",
        "\u202e",
        '"}\n{"event":"x"',
        "\r",
        "\x00",
        "ü%s%b",
    ],
)
def test_no_character_breaks_a_line_or_reaches_a_terminal(hostile: str) -> None:
    for told in (
        request_line(hit(model=hostile)),
        HitLine(hit(model=hostile)).fill(T, b"1", 1.0),
        event_line(T, "epoch_bumped", {"model": hostile}),
    ):
        assert told.count(b"\n") == 1
        assert told.endswith(b"}\n")
        text = told[:-1].decode()
        assert text.isprintable()
        assert json.loads(text)["model"] == hostile


@given(
    st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    )
)
def test_whatever_is_told_makes_one_line_of_json(told: dict[str, Any]) -> None:
    made = json_line(told)
    assert made.endswith(b"\n")
    assert made.count(b"\n") == 1
    assert isinstance(json.loads(made), dict)


@pytest.mark.parametrize("ttft_ms", [None, 0.5])
def test_a_hits_line_filled_in_is_the_line_that_it_would_have_been(ttft_ms: float | None) -> None:
    form = HitLine(hit(model="100 %", ttft_ms=ttft_ms, stream=ttft_ms is not None))
    later = hit(
        ts=1_750_000_123.5,
        request_id="7f3a-99",
        model="100 %",
        latency_ms=0.25,
        ttft_ms=None if ttft_ms is None else 0.25,
        stream=ttft_ms is not None,
    )
    filled = form.fill(1_750_000_123.5, b"7f3a-99", 0.25)
    assert list(json.loads(filled).items()) == list(json.loads(request_line(later)).items())


def test_the_workload_reads_a_miss_to_the_same_figures() -> None:
    assert workload(request_line(MISS)) == [
        Seen(
            ts=T,
            server="a",
            client="red",
            method="POST",
            path="/v1/chat/completions",
            status=200,
            ttft_ms=101.235,
            latency_ms=143.2,
            prompt_tokens=20,
            cached_tokens=16,
            output_tokens=5,
            finish_reason="stop",
            cache="miss",
            asked=Asked(
                exact_key="e" * 32,
                request_key="r" * 32,
                prompt_key="p" * 32,
                body_bytes=812,
                model="qwen",
                stream=True,
            ),
        )
    ]


WAIT_S = 60.0
"""Longest that a test waits for what must come."""


class Told(queue.SimpleQueue[str]):
    """What a log said of itself."""

    def next(self) -> str:
        return self.get(timeout=WAIT_S)


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [f"{number:0{size - 1}d}\n".encode() for number in range(count)]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits half a second for a flush."""
    monkeypatch.setattr(AccessLog, "interval_s", 0.02)


class Pipe:
    """A named pipe as the log's file, with the end that reads it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self.end, True)

    def read(self, size: int) -> bytes:
        """The next so many bytes; blocks until they are there."""
        found = b""
        while len(found) < size:
            part = os.read(self.end, size - len(found))
            assert part, "the log was closed before"
            found += part
        return found

    def rest(self) -> bytes:
        """All up to the log's end."""
        found = b""
        while part := os.read(self.end, 1 << 20):
            found += part
        return found


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    os.close(made.end)


def test_a_reader_that_stalls_holds_up_no_write_and_what_is_lost_is_told_in_the_log(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AccessLog, "max_held", 1_000_000)
    log = AccessLog(str(pipe.path), say=print, wall=lambda: 1.5)
    lines = numbered(30_000)  # 3 MB: a pipe takes 64 KiB, 1 MB is held
    for line in lines:
        log.put(line)
    lost = log.dropped
    assert 0 < lost < 30_000
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.rest()))
    reader.start()
    log.close()
    reader.join(WAIT_S)
    *kept, last = found[0].splitlines(keepends=True)
    assert json.loads(last) == {"event": "log_lines_dropped", "ts": 1.5, "lines": lost}
    assert len(kept) == 30_000 - lost
    assert set(kept) <= set(lines)
    assert kept == sorted(kept)


def test_closing_does_not_wait_forever_for_a_reader_that_stopped(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AccessLog, "close_s", 0.05)
    told = Told()
    log = AccessLog(str(pipe.path), say=told.put)
    for line in numbered(2000):
        log.put(line)
    log.close()
    assert "lines are lost" in told.next()


def test_a_reader_that_left_is_told_and_the_next_one_is_served_on_a_new_line(pipe: Pipe) -> None:
    told = Told()
    log = AccessLog(str(pipe.path), say=told.put)
    log.put(b"first\n")
    assert pipe.read(6) == b"first\n"
    os.close(pipe.end)
    log.put(b"lost\n")
    assert "Broken pipe" in told.next()
    pipe.end = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(pipe.end, True)
    log.put(b"again\n")
    assert told.next() == f"The log `{pipe.path}` is written again; lines lost: 1"
    assert pipe.read(6) == b"again\n"
    log.close()
    assert json.loads(pipe.rest())["lines"] == 1
