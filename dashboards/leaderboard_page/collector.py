"""Keeps Python's garbage collector out of the viewers' way: one thread collects for all, twice a minute.

A full collection walks every object of every library: 30 ms with Streamlit alone, 70 ms with pandas and altair beside.
Streamlit asks for one after each refresh of each viewer; `.streamlit/config.toml` turns that off, and for a server that is
started without that file the objects are frozen here: what lives now is not walked again, and a full collection takes
0.01 ms. Objects made later are walked, so the freeze is done again and again, and everything is thawed before each time, so
that what died in a cycle since is freed and nothing leaks. Twenty viewers of a small page: 73 to 160 ms of CPU a refresh
without either, 6 to 9 ms with one of the two.

It never touches anything but the collector of its own process.
"""

import gc
import threading

EVERY_S = 30.0
"""Between two collections."""

_NAME = "collector"
_starting = threading.Lock()


def keep_quiet(every_s: float = EVERY_S) -> threading.Thread:
    """Start the process's one collecting thread, or find it running; every viewer's script may call this."""
    with _starting:
        for thread in threading.enumerate():
            if thread.name == _NAME:
                return thread
        thread = threading.Thread(
            target=_collect_for_ever, args=(every_s,), name=_NAME, daemon=True
        )
        thread.start()
        return thread


def tidy() -> None:
    """Free what died in cycles, and leave the rest out of all collections until the next time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _collect_for_ever(every_s: float) -> None:
    pause = threading.Event()
    while True:
        tidy()
        pause.wait(every_s)
