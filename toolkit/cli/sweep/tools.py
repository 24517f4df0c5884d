"""What a sweep is given of other rooms: the toolkit's commands on a leash, counters, the planner, requests for JSON."""

import contextlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from toolkit.cli.blast.child import LEASH
from toolkit.cli.children import TOOLKIT
from toolkit.metrics.parser import read_page
from toolkit.tuning.figures import counters
from toolkit.tuning.sweep import Tools
from toolkit.tuning.sweep_file import Configuration

if TYPE_CHECKING:
    from toolkit.cli.sweep.options import SweepOptions
    from toolkit.tuning.figures import Figures
    from toolkit.tuning.sweep_file import Serving, SweepPlan

PAGE_S = 5.0
MOST_PAGE_BYTES = 16 * 2**20


def tools_for(options: "SweepOptions", plan: "SweepPlan", run: str, *, sim: bool) -> Tools:
    """All of it; the sweep's own files lie beside the database."""
    return Tools(
        command=(sys.executable, str(LEASH), str(os.getpid()), *TOOLKIT),
        folder=options.database.resolve().parent / "sweeps" / run,
        database=options.database.resolve(),
        impossible=impossible_in(plan, sim=sim),
        look=look,
        ask=_ask(plan),
        say=lambda sentence: click.echo(sentence, err=True),
        sim=sim,
    )


def look(url: str, key_env: str | None) -> Mapping[str, float]:
    """The server's counters now; empty where it tells none."""
    headers = {"Authorization": f"Bearer {os.environ.get(key_env, '')}"} if key_env else {}
    request = urllib.request.Request(f"{url}/metrics", headers=headers)  # noqa: S310 (the user's own host)
    # no proxy of the environment's: only the named host is asked
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        contextlib.suppress(OSError, ValueError, urllib.error.URLError),
        opener.open(request, timeout=PAGE_S) as answer,
    ):
        text = answer.read(MOST_PAGE_BYTES).decode(errors="replace")
        return counters(read_page(text).readings())
    return {}


def impossible_in(plan: "SweepPlan", *, sim: bool) -> Callable[[Configuration], str | None]:
    """Which configurations the planner shows to be impossible, and why."""
    if plan.machine.gpu is None or sim:
        return lambda _: None
    from toolkit.cli.sweep.plan import impossible_on

    return impossible_on(plan)


def _ask(plan: "SweepPlan") -> "Callable[[str, Serving], tuple[Figures, list[str]]]":
    def ask(url: str, serving: "Serving") -> "tuple[Figures, list[str]]":
        from toolkit.cli.sweep.asks import invalid_json

        return invalid_json(plan.asking, url, serving) if plan.asking else ({}, [])

    return ask
