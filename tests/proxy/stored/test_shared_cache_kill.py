"""SIGKILL of real processes in the midst of writing: what was written is there, nothing is torn, and others go on."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support import shared_cache_writer
from support.shared_cache_writer import key, value

from toolkit.proxy.stored.shared_cache import SharedCache

WRITER = Path(shared_cache_writer.__file__)
GIB = 2**30
pytestmark = pytest.mark.slow


def start(path: Path, first: int, max_bytes: int = GIB) -> "subprocess.Popen[str]":
    command = [sys.executable, str(WRITER), str(path), str(first), str(max_bytes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed(writer: "subprocess.Popen[str]", life_s: float) -> int:
    """Let it live so long from its first write on; how many answers it then had told to be written."""
    said = [writer.stdout.readline()]
    killer = threading.Timer(life_s, writer.kill)
    killer.start()
    said += writer.stdout.readlines()
    killer.join()
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    return int([line for line in said if line.endswith("\n")][-1])


def check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_all_that_was_written_is_found_after_a_kill_and_nothing_is_torn(tmp_path: Path) -> None:
    path, chance, first = tmp_path / "cache.db", random.Random(6), 0
    for _ in range(4):
        written = killed(start(path, first), chance.uniform(0.05, 0.5))
        with closing(SharedCache(path, GIB)) as cache:
            assert cache.take_warnings() == []
            for number in range(first + written):
                assert cache.get(key(number), 0.0) == (value(number), float("inf"))
            later = range(first + written, first + written + 20_000)
            for number in later:
                found = cache.get(key(number), 0.0)
                assert found is None or found[0] == value(number)
        check(path)
        first += written


def test_processes_that_share_the_file_survive_each_others_deaths(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with closing(SharedCache(path, GIB)) as cache:
        writers = {first: start(path, first) for first in (0, 10**6, 2 * 10**6)}
        written = {first: killed(writer, 0.3) for first, writer in writers.items()}
        assert min(written.values()) > 0
        # this one was open all the while
        for first, count in written.items():
            for number in range(first, first + count):
                assert cache.get(key(number), 0.0) == (value(number), float("inf"))
        assert cache.counts().failures == 0
        assert cache.bump("tiny") == 1
    check(path)


def test_a_full_file_is_as_whole_after_a_kill(tmp_path: Path) -> None:
    path, most = tmp_path / "cache.db", 4 * 2**20
    written = killed(start(path, 0, most), 1.0)
    with closing(SharedCache(path, most)) as cache:
        assert path.stat().st_size <= most * 1.25
        newest = [n for n in range(written + 20_000) if cache.get(key(n), 0.0) is not None]
        assert newest
        assert all(cache.get(key(n), 0.0)[0] == value(n) for n in newest)
    check(path)
