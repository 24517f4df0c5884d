"""`toolkit bench`: time every host fairly, keep each request, say why it is fast."""

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from toolkit.cli.inputs import (
    allow_open_files,
    database_option,
    hosts_from,
    keys_for,
    tls_for,
    tls_options,
)
from toolkit.cli.units import DURATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.bench.client import HostClient
    from toolkit.bench.drive import Bench
    from toolkit.bench.goodput import Limits
    from toolkit.bench.plan import Plan
    from toolkit.cli.bench_progress import Progress
    from toolkit.cli.bench_show import Show
    from toolkit.profiles import Profile
    from toolkit.records import Host
    from toolkit.store import Store

REQUESTS = 16
CONCURRENCY = 8
MOST_UNDER_WAY = 1_000
"""Of an open loop: at 2.5 s an answer, 400 requests a second."""
MAX_TOKENS = 256

EXAMPLES = """
Send timed requests to every host at the same moment, and explain what came back: figures, and
a verdict for each host (a response cache, cut answers, somebody else's load, ...). HOSTS are
files (`-` for standard input) or URLs; without any, the file in TOOLKIT_HOSTS, else hosts.txt.

\b
  toolkit bench hosts.txt                                 16 requests, 8 at once, each host
  toolkit bench hosts.txt --duration 60s --concurrency 32 --warmup 64
  toolkit bench hosts.txt --rate 4 --duration 2m          4 a second, whatever answers take
  toolkit bench hosts.txt --goodput ttft:500ms,tpot:50ms --sweep-concurrency 1,2,4,8,16,32
  toolkit bench hosts.txt --profile contest --mix 50 --repeat
  toolkit bench hosts.txt --json                          one object a host
"""


class Levels(click.ParamType[tuple[int, ...]]):
    """Concurrencies of a sweep: `1,2,4,8`."""

    name = "levels"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read whole numbers between commas; whether they rise is the plan's to say."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
            self.fail(f"`{value}` is no list of numbers; write e.g. `1,2,4,8`", param, ctx)
        return tuple(int(part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of one bench, fields named as its options."""

    hosts: tuple[str, ...]
    requests: int | None
    concurrency: int
    duration: float | None
    rate: float | None
    arrival: Literal["constant", "poisson"]
    sweep_concurrency: tuple[int, ...]
    sequential: bool
    stream: bool | None
    mix: int | None
    max_tokens: int | None
    temperature: float | None
    ignore_eos: bool
    profile: str
    unique: bool
    repeat: bool
    nonce: Literal["front", "end"]
    warmup: int
    goodput: str | None
    model: str | None
    timeout: float
    most_under_way: int
    seed: int
    chart: Path | None
    as_json: bool
    database: Path
    no_store: bool
    insecure: bool
    ca: str | None


@click.command("bench", help=EXAMPLES, short_help="Time every host fairly, and say why it is fast.")
@click.argument("hosts", nargs=-1, metavar="[HOSTS]...")
@click.option("--requests", type=int, help=f"Per host.  [default: {REQUESTS}]")
@click.option("--concurrency", type=int, default=CONCURRENCY, show_default=True, help="Per host.")
@click.option("--duration", type=DURATION, help="Go on so long instead of counting requests.")
@click.option("--rate", type=float, help="Requests a second and host, whatever answers take.")
@click.option(
    "--arrival",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How --rate spaces them.",
)
@click.option(
    "--sweep-concurrency",
    type=Levels(),
    default=(),
    metavar="1,2,4,...",
    help="Run each of these concurrencies; ends with a table, a picture, and the best one.",
)
@click.option("--sequential", is_flag=True, help="One host after the other, not all at once.")
@click.option("--stream/--no-stream", default=None, help="Stream all answers, or none.")
@click.option("--mix", type=click.IntRange(0, 100), metavar="PERCENT", help="Stream so many.")
@click.option("--max-tokens", type=int, help=f"Per answer.  [default: profile, else {MAX_TOKENS}]")
@click.option("--temperature", type=float, help="Sent only when given.")
@click.option("--ignore-eos", is_flag=True, help="Ask vLLM and SGLang for full-length answers.")
@click.option(
    "--profile",
    default="bench",
    show_default=True,
    metavar="NAME|FILE",
    help="Prompts: of the catalog, or a file (.toml, .jsonl, else one prompt a line).",
)
@click.option("--unique", is_flag=True, help="No prompt twice.")
@click.option(
    "--repeat",
    is_flag=True,
    help="Prompts as they are, again and again. With --unique, or with neither: mostly unique "
    "ones, and exact twins of one in three.",
)
@click.option(
    "--nonce",
    type=click.Choice(["front", "end"]),
    default="front",
    show_default=True,
    help="Where unique prompts carry their mark: `end` lets prefix caches work.",
)
@click.option(
    "--warmup", type=int, default=0, help="Requests before, with other prompts, uncounted."
)
@click.option("--goodput", metavar="ttft:500ms,tpot:50ms,e2e:10s", help="What a good answer keeps.")
@click.option("--model", help="Ask for this model.  [default: what each host lists or serves]")
@click.option(
    "--timeout", type=DURATION, default="120s", show_default=True, help="For one request."
)
@click.option(
    "--most-under-way",
    type=int,
    default=MOST_UNDER_WAY,
    show_default=True,
    help="With --rate: further requests to that host wait, and their latency counts it.",
)
@click.option("--seed", type=int, default=0, help="For the order of prompts, streams and arrivals.")
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where a sweep's picture goes.  [default: sweep-RUN.png beside the database]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@database_option
@click.option("--no-store", is_flag=True, help="Keep nothing.")
@tls_options
def command(**options: Any) -> None:
    """Bench every host (the help text is EXAMPLES)."""
    _bench(Options(**options))


def _bench(options: Options) -> None:
    from toolkit.bench.drive import Bench
    from toolkit.bench.goodput import read_limits
    from toolkit.bench.schedule import check_plan
    from toolkit.cli.bench_progress import Progress
    from toolkit.cli.catalog import profile_from

    hosts = hosts_from(options.hosts)
    limits = read_limits(options.goodput) if options.goodput is not None else None
    profile = profile_from(options.profile)
    plan = _plan(options, profile)
    check_plan(plan)
    with _store(options) as store:
        progress = Progress(plan, len(hosts))
        bench = Bench(
            _clients(options, hosts),
            plan,
            profile,
            model=options.model,
            keep=lambda batch: store.add_shots(batch, hosts) if store else None,
            show=progress.add,
        )
        stopped = _run(bench, progress, plan, options, store)
        _tell(bench, plan, options, limits, store)
    if stopped:
        sys.exit(130)  # what a shell calls an interrupted command
    if not any(shot.ok for lane in bench.lanes for shot in lane.shots):
        sys.exit(1)


def _plan(options: Options, profile: "Profile") -> "Plan":
    """What the user said, else the profile, else the default."""
    from toolkit.bench.plan import Plan

    requests = options.requests
    if requests is None and options.duration is None:
        requests = REQUESTS
    open_loop = options.rate is not None
    return Plan(
        requests=requests,
        duration_s=options.duration,
        concurrency=options.most_under_way if open_loop else options.concurrency,
        rate=options.rate,
        arrival=options.arrival,
        levels=options.sweep_concurrency,
        stream_share=_stream_share(options, profile),
        max_tokens=_first_known(options.max_tokens, profile.max_tokens, MAX_TOKENS),
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        sameness=_sameness(options),
        nonce_place=options.nonce,
        warmup=options.warmup,
        sequential=options.sequential,
        timeout_s=options.timeout,
        seed=options.seed,
    )


def _first_known(*numbers: int | None) -> int:
    return next(number for number in numbers if number is not None)


def _sameness(options: Options) -> Literal["pairs", "unique", "repeat"]:
    if options.unique == options.repeat:
        return "pairs"
    return "unique" if options.unique else "repeat"


def _stream_share(options: Options, profile: "Profile") -> float:
    if options.mix is not None and options.stream is not None:
        raise click.UsageError("--mix says how many stream; leave --stream or --no-stream out")
    if options.mix is not None:
        return options.mix / 100
    if options.stream is not None:
        return float(options.stream)
    return 1.0 if profile.stream_share is None else profile.stream_share


def _clients(options: Options, hosts: "Sequence[Host]") -> "list[HostClient]":
    from toolkit.bench.client import HostClient

    keys = keys_for(hosts)
    tls = tls_for(insecure=options.insecure, ca=options.ca)
    return [
        HostClient(host, tls=tls, key=keys.get(host.name), timeout_s=options.timeout)
        for host in hosts
    ]


def _run(
    bench: "Bench", progress: "Progress", plan: "Plan", options: Options, store: "Store | None"
) -> bool:
    """Run it; tell whether somebody stopped it."""
    import asyncio

    import uvloop

    allow_open_files()
    if store:
        settings = {"profile": options.profile, "model": options.model} | asdict(plan)
        store.add_run(bench.record(json.dumps(settings)))

    async def measure() -> None:
        watching = asyncio.create_task(
            progress.watch(lambda: sum(lane.under_way for lane in bench.lanes))
        )
        try:
            await bench.run()
        finally:
            watching.cancel()

    try:
        with progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return True
    return False


def _tell(
    bench: "Bench",
    plan: "Plan",
    options: Options,
    limits: "Limits | None",
    store: "Store | None",
) -> None:
    """Judge what was measured, keep the judgement, show both."""
    from toolkit.bench.result import results

    told = results(
        [(lane.host, lane.shots, lane.ledger) for lane in bench.lanes],
        plan=plan,
        run=bench.id,
        client_ok=bench.fitness.ok,
        limits=limits,
    )
    if store:
        store.add_ledgers([lane.ledger for lane in bench.lanes])
        store.add_verdicts(
            bench.id,
            {(each.summary.name, each.summary.url): each.summary.verdicts for each in told},
        )
        store.end_run(bench.id, ended_at=time.time(), client_ok=bench.fitness.ok)
    show = _show(options)
    show.results(told, bench.fitness)
    if plan.levels and any(each.rungs for each in told):
        show.chart(told, _chart_path(options, bench.id))


def _chart_path(options: Options, run: str) -> Path:
    return options.chart or options.database.parent / f"sweep-{run}.png"


def _show(options: Options) -> "Show":
    if options.as_json:
        from toolkit.cli.bench_show import JsonShow

        return JsonShow()
    from toolkit.cli.bench_table import TableShow

    return TableShow()


def _store(options: Options) -> "AbstractContextManager[Store | None]":
    from toolkit.store import Store

    return nullcontext(None) if options.no_store else Store.open(options.database)
