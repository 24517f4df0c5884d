"""What `toolkit proxy` says while it runs and at its end, by one process as by several."""

import os
import sys
from contextlib import suppress

import click

from toolkit.proxy.telemetry.metrics import Counters
from toolkit.units import share, span

ENDING = "Ending: what is under way is finished first; a second Ctrl-C ends at once"


def summary(counters: Counters, took_s: float) -> str:
    """What it did, in one line."""
    total = counters.total("requests")
    parts = [f"{total:,.0f} requests in {span(took_s)}"]
    for cache, word in (("hit", "hits"), ("coalesced", "joined"), ("miss", "asked upstream")):
        if count := counters.total("requests", cache=cache):
            parts.append(f"{count:,.0f} {word} ({share(count / total)})")
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
