"""What `toolkit proxy` says while it runs and at its end, by one process as by several."""

import os
import sys
from contextlib import suppress

import click

from toolkit.proxy.told.counters import Counters
from toolkit.wording import share, span

INTERRUPTED = 130
ENDING = "Ending: what is under way is finished first; a second Ctrl-C ends at once"


def summary(counters: Counters, took_s: float) -> str:
    """What it did, in one line."""
    counters.settle()
    total = counters.total("requests")
    by = counters.by("requests", "cache")
    parts = [f"{total:,.0f} requests in {span(took_s)}"]
    for cache, word in (("hit", "hits"), ("coalesced", "joined"), ("miss", "asked upstream")):
        if by.get(cache):
            parts.append(f"{by[cache]:,.0f} {word} ({share(by[cache] / total)})")
    rejected = counters.total("rejections")
    if rejected:
        parts.append(f"{rejected:,.0f} rejected")
    return ", ".join(parts)


def say(sentence: str) -> None:
    """Tell the user; where nobody reads it any more, what was to be done besides is done all the same."""
    try:
        click.echo(sentence, err=True)
    except (OSError, ValueError):
        # what is buffered would fail once more when the process ends, and make its exit code 120
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
