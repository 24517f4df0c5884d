"""dashboards/leaderboard_page/collector.py: one thread collects, what lives is not walked again, and nothing leaks."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from leaderboard_page import collector


class Thing:
    """Something that can be watched dying."""

    me: "Thing"


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """No object dies while a test looks; what was collected is frozen again afterwards, as it was before (tests/conftest.py)."""
    gc.disable()
    yield
    gc.enable()
    gc.freeze()


def in_a_cycle() -> Thing:
    thing = Thing()
    thing.me = thing
    return thing


def is_walked(thing: object) -> bool:
    return any(other is thing for other in gc.get_objects())


def test_what_lives_is_left_out_of_the_collections_to_come_and_what_died_is_freed() -> None:
    thing, ghost = in_a_cycle(), weakref.ref(in_a_cycle())
    assert is_walked(thing)
    assert ghost() is not None
    collector.tidy()
    assert not is_walked(thing)
    assert ghost() is None


def test_what_dies_after_it_was_frozen_is_freed_by_the_next_tidying_and_by_no_other_collection() -> (
    None
):
    thing = in_a_cycle()
    ghost = weakref.ref(thing)
    collector.tidy()
    del thing
    gc.collect()
    assert ghost() is not None, "this is why a repeated plain freeze would leak"
    collector.tidy()
    assert ghost() is None


# In a process of its own: the thread never ends.
STARTED_BY_MANY = """
import gc, threading, weakref
from leaderboard_page import collector

gc.disable()  # whatever is freed is freed by the thread
begun = threading.Barrier(20)
threads = []
def start():
    begun.wait()
    threads.append(collector.keep_quiet(0.001))
starters = [threading.Thread(target=start) for _ in range(20)]
for each in starters: each.start()
for each in starters: each.join()
assert len(set(threads)) == 1 and threads[0].daemon
assert threading.active_count() == 2

class Thing: pass
for _ in range(3):  # it goes on and on
    freed = threading.Event()
    thing = Thing()
    thing.me = thing
    weakref.finalize(thing, freed.set)
    del thing
    assert freed.wait(30)
print("kept quiet")
"""


def test_however_many_start_it_at_once_one_thread_collects_again_and_again() -> None:
    path = {"PYTHONPATH": str(Path(collector.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", STARTED_BY_MANY],
        env=path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "kept quiet\n"), done.stderr
