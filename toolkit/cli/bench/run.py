"""What `toolkit bench` does once its command line is read: measure, judge, keep, show."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click
import uvloop

from toolkit.bench.client import HostClient
from toolkit.bench.goodput import GoodputLimits, read_limits
from toolkit.bench.plan import BenchPlan, check_plan
from toolkit.bench.result import Result, results
from toolkit.bench.runner import Bench
from toolkit.cli.bench.options import (
    CONCURRENCY,
    MAX_TOKENS,
    MOST_UNDER_WAY,
    REQUESTS,
    BenchOptions,
)
from toolkit.cli.bench.progress import BenchProgress
from toolkit.cli.bench.show import JsonResults, ResultShow, unwritable
from toolkit.cli.catalog import profile_from
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile
from toolkit.records import Host, Shot
from toolkit.store import Store

MOST_AT_ONCE = 1_000
"""Shots in a transaction: what waits for a full disk is tried again every half second, beside the measuring."""


def run_bench(options: BenchOptions) -> int:
    """Bench every host; the exit code. The first Ctrl-C ends the measuring, a second one everything."""
    try:
        return _bench(options)
    except KeyboardInterrupt:
        return INTERRUPTED


def _bench(options: BenchOptions) -> int:
    hosts = hosts_from(options.hosts)
    profile = _profile(options)
    plan, limits = _checked_plan(options, profile)
    _refuse_unwritable_chart(options.chart)
    with _store(options) as store:
        progress = BenchProgress(plan, len(hosts))
        keeping = ShotWriter(store, hosts, progress.say)
        bench = Bench(
            _clients(options, hosts),
            plan,
            profile,
            model=options.model,
            keep=keeping.add,
            show=progress.add,
        )
        if store:
            settings = {"profile": options.profile, "model": options.model} | asdict(plan)
            store.add_run(bench.record(json.dumps(settings)))
        stopped = _run(bench, progress)
        _tell(bench, plan, options, limits, keeping)
    if stopped:
        return INTERRUPTED
    answered = any(shot.ok for host in bench.hosts for shot in host.shots)
    return WORKED if answered else FAILED


# --- what the command line means -------------------------------------------------------------------


def _profile(options: BenchOptions) -> Profile:
    profile = profile_from(options.profile)
    if profile.left_out:
        keys = ", ".join(f"`{key}`" for key in profile.left_out)
        click.echo(f"Warning: these keys of `{options.profile}` are not sent: {keys}", err=True)
    return profile


def _checked_plan(
    options: BenchOptions, profile: Profile
) -> tuple[BenchPlan, GoodputLimits | None]:
    """What is to be done; a plan that cannot be is a wrong command line."""
    try:
        plan = _plan(options, profile)
        check_plan(plan)
        return plan, None if options.goodput is None else read_limits(options.goodput)
    except ToolkitError as error:
        raise click.UsageError(f"{error.message}\n\nHint: {error.hint}") from error


def _plan(options: BenchOptions, profile: Profile) -> BenchPlan:
    """What the user said, else the profile, else the default."""
    requests = options.requests
    if requests is None and options.duration is None:
        requests = REQUESTS
    if options.rate is None:
        concurrency = _first_known(options.concurrency, CONCURRENCY)
    else:
        concurrency = _first_known(options.most_under_way, MOST_UNDER_WAY)
    return BenchPlan(
        requests=requests,
        duration_s=options.duration,
        concurrency=concurrency,
        rate=options.rate,
        arrival=options.arrival or "poisson",
        levels=options.sweep_concurrency,
        stream_share=_stream_share(options, profile),
        max_tokens=_first_known(options.max_tokens, profile.max_tokens, MAX_TOKENS),
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        sameness=_sameness(options),
        nonce_place=options.nonce or "front",
        warmup=options.warmup,
        sequential=options.sequential,
        timeout_s=options.timeout,
        seed=options.seed,
    )


def _first_known(*numbers: int | None) -> int:
    return next(number for number in numbers if number is not None)


def _sameness(options: BenchOptions) -> Literal["pairs", "unique", "repeat"]:
    if options.unique == options.repeat:
        return "pairs"
    return "unique" if options.unique else "repeat"


def _stream_share(options: BenchOptions, profile: Profile) -> float:
    if options.mix is not None:
        return options.mix / 100
    if options.stream is not None:
        return float(options.stream)
    return 1.0 if profile.stream_share is None else profile.stream_share


def _clients(options: BenchOptions, hosts: Sequence[Host]) -> list[HostClient]:
    keys = keys_for(hosts)
    tls = tls_for(insecure=options.insecure, ca=options.ca)
    return [
        HostClient(host, tls=tls, key=keys.get(host.name), timeout_s=options.timeout)
        for host in hosts
    ]


def _store(options: BenchOptions) -> "AbstractContextManager[Store | None]":
    return nullcontext(None) if options.no_store else Store.open(options.database)


# --- measure ---------------------------------------------------------------------------------------


class ShotWriter:
    """Hands shots to the store. What the store refuses waits: a file that is locked or full ends no measurement."""

    def __init__(
        self, store: Store | None, hosts: Sequence[Host], warn: Callable[[str], None]
    ) -> None:
        """`warn` is told once that the store refuses."""
        self.store = store
        self._hosts, self._warn = hosts, warn
        self._waiting: list[Shot] = []
        self._warned = False

    def add(self, shots: Sequence[Shot]) -> None:
        """Keep them, and what waits."""
        self._waiting += shots
        try:
            self.rest()
        except ToolkitError as error:
            if not self._warned:
                self._warn(f"Warning: {error.message}; the bench goes on and tries again")
            self._warned = True

    def rest(self) -> None:
        """Keep what waits. Raises ToolkitError."""
        while self._waiting:
            if self.store:
                self.store.add_shots(self._waiting[:MOST_AT_ONCE], self._hosts)
            del self._waiting[:MOST_AT_ONCE]


def _run(bench: Bench, progress: BenchProgress) -> bool:
    """Run it; tell whether somebody stopped it."""

    async def measure() -> None:
        watching = asyncio.create_task(
            progress.watch(lambda: sum(host.in_flight for host in bench.hosts))
        )
        try:
            await bench.run()
        finally:
            watching.cancel()

    allow_open_files()
    occupy_standard_files()
    try:
        with progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure())
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("Stopped: requests that were under way are in no figure", err=True)
        return True
    return False


# --- judge, keep, show -----------------------------------------------------------------------------


def _tell(
    bench: Bench,
    plan: BenchPlan,
    options: BenchOptions,
    limits: GoodputLimits | None,
    keeping: ShotWriter,
) -> None:
    """Judge what was measured, keep the judgement, show both; what cannot be kept is shown all the same."""
    told = results(
        [(host.host, host.shots, host.ledger) for host in bench.hosts],
        plan=plan,
        run=bench.id,
        client_ok=bench.fitness.ok,
        limits=limits,
        pages={host.host.name: host.before for host in bench.hosts},
    )
    refused = None
    try:
        _keep(bench, told, keeping)
    except ToolkitError as error:
        refused = error
    show = _show(options)
    show.results(told, bench.fitness)
    path = _chart_path(options, bench.id)
    if path and any(step.ok for each in told for step in each.rungs):
        show.chart(told, path)
    if refused:
        raise refused


def _keep(bench: Bench, told: Sequence[Result], keeping: ShotWriter) -> None:
    keeping.rest()
    store = keeping.store
    if not store:
        return
    store.add_ledgers([host.ledger for host in bench.hosts])
    verdicts = {(each.summary.name, each.summary.url): each.summary.verdicts for each in told}
    store.add_verdicts(bench.id, verdicts)
    store.end_run(bench.id, ended_at=time.time(), client_ok=bench.fitness.ok)


def _show(options: BenchOptions) -> ResultShow:
    if options.as_json:
        return JsonResults()
    from toolkit.cli.bench.table import ResultTable

    return ResultTable()


def _chart_path(options: BenchOptions, run: str) -> Path | None:
    """Where a sweep's picture goes; who keeps nothing gets one only by name."""
    beside = None if options.no_store else options.database.parent / f"sweep-{run}.png"
    return options.chart or beside


def _refuse_unwritable_chart(path: Path | None) -> None:
    """Say it before the sweep and not after it."""
    if path is None:
        return
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise unwritable(path, error) from error
