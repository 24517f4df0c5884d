"""Name lookups: a dead name server holds up nobody, and its error reaches who asked."""

import threading
import time

import pytest

from toolkit.scout.lookups import LookupThreads
from toolkit.scout.problems import problem_of


def test_a_name_server_that_hangs_holds_up_neither_others_nor_the_end() -> None:
    pool = LookupThreads()
    stuck = [pool.submit(time.sleep, 30) for _ in range(50)]
    assert pool.submit(lambda: "quick").result(timeout=10) == "quick"
    pool.shutdown(wait=True)  # returns though fifty lookups hang
    assert not any(future.done() for future in stuck)


def test_a_machine_out_of_threads_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    error = LookupThreads().submit(time.time).exception(timeout=10)
    assert problem_of(error, "/health") == "this machine is out of threads for name lookups"


def test_an_error_in_a_lookup_reaches_who_asked() -> None:
    with pytest.raises(OSError, match="no such host"):
        LookupThreads().submit(_raise, OSError("no such host")).result(timeout=10)


def _raise(error: Exception) -> None:
    raise error
