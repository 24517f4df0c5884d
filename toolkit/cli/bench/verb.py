"""`toolkit bench`: time every host fairly, keep each request, say why it is fast."""

import json
import logging
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from toolkit.bench.plan import CHAT, EMBEDDINGS, ENDPOINTS
from toolkit.cli.bench.progress import BenchProgress
from toolkit.cli.exit_codes import FAILED, INTERRUPTED
from toolkit.cli.help_page import Command, advanced, option
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.cli.options import (
    DURATION,
    LEVELS,
    PROFILE,
    database_option,
    hosts_argument,
    length_options,
    tls_options,
)
from toolkit.cli.output import to_stderr
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError, reason_of
from toolkit.records import USUAL_MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.bench.results import Result
    from toolkit.bench.runner import Bench
    from toolkit.records import RequestRecord

NUM_PROMPTS = 16
CONCURRENCY = 8
MOST_IN_FLIGHT = 1_000
"""Of an open loop: at 2.5 s an answer, 400 requests a second."""
MOST_PROMPTS = 1_000_000
"""Per host: more is a slip, and a duration can do it, too."""
LEVEL_KEYS = (
    "concurrency requests ok rps output_tokens_per_s ttft_p50_ms e2e_p50_ms e2e_p95_ms tpot_p50_ms good_share"
).split()
"""What `--json` says of each level of a sweep; the rest is its summary's."""


@click.command("bench", cls=Command, short_help="Time every host fairly, and say why it is fast.")
@hosts_argument
@option(
    "--num-prompts",
    aliases=["--requests"],
    type=click.IntRange(max=MOST_PROMPTS),
    help=f"Requests a host.  [default: {NUM_PROMPTS}]",
)
@option(
    "--max-concurrency",
    aliases=["--concurrency", "--most-under-way"],
    type=int,
    help=f"Most requests at once per host.  [default: {CONCURRENCY}]",
)
@option(
    "--duration",
    type=DURATION,
    help="Stop after this time, or after --num-prompts.",
)
@option(
    "--request-rate",
    aliases=["--rate"],
    type=float,
    help="Requests per second and host, sent on schedule, up to --max-concurrency "
    f"(then {MOST_IN_FLIGHT:,}) in flight.",
)
@advanced(
    "--arrival",
    type=click.Choice(["poisson", "constant"]),
    help="Spacing of --request-rate.  [default: poisson]",
)
@click.option(
    "--sweep-concurrency",
    type=LEVELS,
    default=(),
    metavar="1,2,4,...",
    help="Run at each of these concurrencies; ends with a table, a chart and the best one.",
)
@advanced("--sequential", is_flag=True, help="One host after the other, not all at once.")
@advanced("--stream/--no-stream", default=None, help="Stream all answers, or none.")
@advanced(
    "--mix", type=click.IntRange(0, 100), metavar="PERCENT", help="Share of streamed answers."
)
@advanced(
    "--endpoint",
    type=click.Choice(ENDPOINTS),
    default=CHAT,
    show_default=True,
    help="Endpoint to ask; of embeddings only E2E is known.",
)
@length_options
@advanced(
    "--max-tokens",
    type=int,
    help=f"Most tokens per answer.  [default: the profile's, else {USUAL_MAX_TOKENS}]",
)
@advanced("--temperature", type=float, help="Sampling temperature; sent only when given.")
@advanced("--ignore-eos", is_flag=True, help="Ask vLLM and SGLang for full-length answers.")
@option(
    "--profile",
    aliases=["--dataset-path"],
    default="bench",
    show_default=True,
    metavar="NAME|FILE",
    type=PROFILE,
    help="Prompts: of the catalog, or a file (.toml, .jsonl, .json, else one prompt a line).",
)
@advanced("--unique", is_flag=True, help="Send no prompt twice.")
@advanced(
    "--repeat",
    is_flag=True,
    help="Send the prompts unchanged, again and again. With both or neither of --unique and --repeat: "
    "unique prompts, and a quarter of the requests repeat an earlier one exactly.",
)
@advanced(
    "--nonce",
    type=click.Choice(["front", "end"]),
    help="Position of the mark that makes a prompt unique; `end` lets prefix caches work.  [default: front]",
)
@advanced(
    "--warmup",
    type=click.IntRange(max=MOST_PROMPTS),
    default=0,
    show_default=True,
    help="Warm-up requests before, with other prompts; not counted.",
)
@advanced(
    "--goodput",
    metavar="ttft:500ms,tpot:50ms,e2e:10s",
    help="Limits that a good answer stays within.",
)
@advanced(
    "--model", metavar="NAME", help="Ask for this model.  [default: what each host lists or serves]"
)
@advanced(
    "--timeout", type=DURATION, default="120s", show_default=True, help="Time limit of one request."
)
@advanced(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Random seed for the order of prompts, streams and arrivals.",
)
@advanced(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    help="PNG file for the chart of a sweep.  [default: sweep-RUN.png beside the database]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per host.")
@advanced(
    "--csv",
    "csv_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures as CSV, a line per host, or per level of a sweep.",
)
@advanced(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write table, verdicts and plots as one page.",
)
@database_option
@advanced("--no-store", is_flag=True, help="Do not store anything.")
@tls_options
def command(
    *,
    hosts: tuple[str, ...],
    listed_in: str | None,
    only: tuple[str, ...],
    num_prompts: int | None,
    max_concurrency: int | None,
    duration: float | None,
    request_rate: float | None,
    arrival: Literal["constant", "poisson"] | None,
    sweep_concurrency: tuple[int, ...],
    sequential: bool,
    stream: bool | None,
    mix: int | None,
    endpoint: str,
    input_len: str | None,
    tokenizer: str | None,
    output_len: str | None,
    max_tokens: int | None,
    temperature: float | None,
    ignore_eos: bool,
    profile: str,
    unique: bool,
    repeat: bool,
    nonce: Literal["front", "end"] | None,
    warmup: int,
    goodput: str | None,
    model: str | None,
    timeout: float,
    seed: int,
    chart: Path | None,
    as_json: bool,
    csv_file: Path | None,
    html: Path | None,
    database: Path,
    no_store: bool,
    insecure: bool,
    ca: str | None,
) -> None:
    """Send timed requests to every host at the same moment, and explain what came back: figures, and
    a verdict for each host (a response cache, cut answers, somebody else's load, ...). HOSTS are
    names of hosts.txt, files (`-`: standard input) or URLs; without any, all of hosts.txt.

    \b
      toolkit bench hosts.txt          16 requests, 8 at once, each host
      toolkit bench alice bob --duration 60s --max-concurrency 32
    \f
    \b
      toolkit bench --only team=red --warmup 64
          hosts of hosts.txt that say so; first 64 requests that do not count
      toolkit bench hosts.txt --request-rate 4 --duration 2m
          4 a second, whatever answers take
      toolkit bench hosts.txt --goodput ttft:500ms,tpot:50ms \\
          --sweep-concurrency 1,2,4,8,16,32
      toolkit bench hosts.txt --profile contest --mix 50 --repeat
      toolkit bench hosts.txt --input-len 512 --output-len normal:128:32
          prompts and answers of exactly so many tokens
      toolkit bench hosts.txt --profile sharegpt.json --num-prompts 200
      toolkit bench hosts.txt --endpoint /v1/embeddings --input-len 256
      toolkit bench hosts.txt --json   one object a host

    Exits with 1 when no host answered anything, 130 when it was interrupted; what was measured is kept.
    """
    # of two words that cannot both be meant one would be passed over in silence
    for is_contradiction, message in (
        (
            bool(sweep_concurrency) and max_concurrency is not None,
            "--sweep-concurrency names the concurrencies; leave --max-concurrency out",
        ),
        (arrival is not None and request_rate is None, "--arrival goes with --request-rate"),
        (
            mix is not None and stream is not None,
            "--mix says how many stream; leave --stream or --no-stream out",
        ),
        (
            nonce is not None and repeat and not unique,
            "--nonce marks unique prompts; --repeat sends them as they are",
        ),
        (tokenizer is not None and input_len is None, "--tokenizer goes with --input-len"),
        (
            max_tokens is not None and output_len is not None,
            "--output-len says how long answers are; leave --max-tokens out",
        ),
        (
            endpoint == EMBEDDINGS and bool(stream or mix or output_len or max_tokens),
            "embeddings stream nothing and have no length; leave --stream, --mix, --output-len and --max-tokens out",
        ),
        (chart is not None and not sweep_concurrency, "--chart goes with --sweep-concurrency"),
        (
            chart is not None and chart.suffix.lower() not in ("", ".png"),
            "--chart writes a PNG; call it, e.g., `sweep.png`",
        ),
    ):
        if is_contradiction:
            raise click.UsageError(message)

    from toolkit.bench.client import HostClient
    from toolkit.bench.plan import BenchPlan, check_plan
    from toolkit.bench.results import results
    from toolkit.bench.runner import Bench
    from toolkit.bench.summary import read_limits
    from toolkit.bench.tokenizer import words_by
    from toolkit.cli.bench.files import bench_page, csv_text
    from toolkit.cli.catalog import profile_from
    from toolkit.cli.output import writing
    from toolkit.records import Run
    from toolkit.store import Store

    found, prompts = hosts_from(hosts, listed_in, only), profile_from(profile)
    if input_len is None:
        for note in prompts.notes:
            click.echo(f"Note: {note}", err=True)

    # what the user said, else the profile, else the default
    if num_prompts is None and duration is None:
        num_prompts = NUM_PROMPTS
    if max_tokens is None:
        max_tokens = prompts.max_tokens or USUAL_MAX_TOKENS
    if max_concurrency is None:
        max_concurrency = CONCURRENCY if request_rate is None else MOST_IN_FLIGHT
    stream_share = 1.0 if prompts.stream_share is None else prompts.stream_share
    if mix is not None or stream is not None:
        stream_share = float(stream or False) if mix is None else mix / 100
        # the user's word goes before what was recorded
        prompts = replace(
            prompts, prompts=tuple(replace(prompt, stream=None) for prompt in prompts.prompts)
        )
    plan = BenchPlan(
        requests=num_prompts,
        duration_s=duration,
        concurrency=max_concurrency,
        rate=request_rate,
        arrival=arrival or "poisson",
        levels=sweep_concurrency,
        stream_share=stream_share,
        endpoint=endpoint,
        input_len=input_len,
        tokenizer=tokenizer,
        output_len=output_len,
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos or output_len is not None,
        sameness="pairs" if unique == repeat else "unique" if unique else "repeat",
        nonce_place=nonce or "front",
        warmup=warmup,
        sequential=sequential,
        timeout_s=timeout,
        seed=seed,
    )
    try:
        check_plan(plan)
        limits = None if goodput is None else read_limits(goodput)
    except ToolkitError as error:
        raise click.UsageError(f"{error.message}\n\nHint: {error.hint}") from error
    words = words_by(tokenizer, input_len, endpoint) if tokenizer and input_len else None
    for what, path, option_name in (
        ("picture", chart, "--chart"),
        ("table", csv_file, "--csv"),
        ("page", html, "--html"),
    ):
        if path is not None:
            _refuse_unwritable(what, path, option_name)

    refused: ToolkitError | None = None
    try:
        with nullcontext() if no_store else Store.open(database) as store:
            keys_by_name, tls = keys_for(found), tls_for(insecure=insecure, ca=ca)
            progress = BenchProgress(plan, [host.name for host in found])
            clients = [
                HostClient(
                    host,
                    tls=tls,
                    key=keys_by_name.get(host.name),
                    timeout_s=timeout,
                    endpoint=endpoint,
                )
                for host in found
            ]

            def keep(records: "Sequence[RequestRecord]") -> None:
                if store:
                    store.add_shots(records, found)

            bench = Bench(
                clients,
                plan,
                prompts,
                model=model,
                words=words,
                keep=keep,
                show=progress.add,
                over=progress.over,
                warn=to_stderr,
            )
            if store:
                settings = {"profile": profile, "model": model} | asdict(plan)
                run = Run(
                    id=bench.id,
                    verb="bench",
                    started_at=bench.started_at,
                    settings=json.dumps(settings),
                )
                store.add_run(run)
            is_stopped = _measure(bench, progress)

            judged = results(
                [(each.host, each.records, each.ledger) for each in bench.hosts],
                plan=plan,
                run=bench.id,
                client_ok=bench.fitness.ok,
                limits=limits,
                pages={each.host.name: each.before for each in bench.hosts},
            )
            try:
                bench.keep_waiting()
                if store:
                    store.add_ledgers([each.ledger for each in bench.hosts])
                    store.add_verdicts(
                        bench.id,
                        {(r.summary.name, r.summary.url): r.summary.verdicts for r in judged},
                    )
                    store.end_run(bench.id, ended_at=time.time(), client_ok=bench.fitness.ok)
            except ToolkitError as error:
                refused = error  # what cannot be kept is shown all the same

            _print(judged, bench, as_json=as_json)
            # who keeps nothing gets a picture only by name
            if chart is None and not no_store:
                chart = database.parent / f"sweep-{bench.id}.png"
            if chart and any(level.ok for result in judged for level in result.levels):
                _draw(judged, chart)
            if csv_file:
                with writing("Table", csv_file, "--csv"):
                    csv_file.write_text(csv_text(judged), encoding="utf-8")
            if html:
                with writing("Page", html, "--html"):
                    html.write_text(
                        bench_page(judged, plan, bench.fitness, prompts.name), encoding="utf-8"
                    )
            if refused:
                raise refused
    except KeyboardInterrupt:  # a second one ends everything
        sys.exit(INTERRUPTED)
    if is_stopped:
        sys.exit(INTERRUPTED)
    if not any(record.ok for each in bench.hosts for record in each.records):
        sys.exit(FAILED)


def _measure(bench: "Bench", progress: BenchProgress) -> bool:
    """Run it; whether somebody stopped it."""
    import asyncio

    import uvloop

    allow_open_files()
    occupy_standard_files()
    try:
        with (
            waiting_for("Measuring", progress.steps()) as progress.waiting,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            progress.waiting.figures = lambda: progress.figures(
                sum(host.in_flight for host in bench.hosts)
            )
            runner.run(bench.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("Stopped: requests in flight are not counted", err=True)
        return True
    return False


# --- what came of it -------------------------------------------------------------------------------


def _print(judged: "Sequence[Result]", bench: "Bench", *, as_json: bool) -> None:
    """One object a host in the order of the hosts file, a sweep's with its levels; or the table and what explains it."""
    if not as_json:
        from toolkit.cli.bench.table import page
        from toolkit.report.tables import screen

        console = screen()
        for part in page(judged, bench.fitness, console):
            console.print(part)
        return

    from toolkit.cli.output import print_json

    for result in judged:
        record = asdict(result.summary)
        if result.levels:
            record |= {
                "levels": [
                    {key: getattr(level, key) for key in LEVEL_KEYS} for level in result.levels
                ],
                "best_concurrency": result.best_concurrency,
                "knee_concurrency": result.knee_concurrency,
            }
        print_json(record)
    if bench.fitness.warning:
        click.echo(bench.fitness.warning, err=True)


# --- files -----------------------------------------------------------------------------


def _refuse_unwritable(what: str, path: Path, option_name: str) -> None:
    """Say it before the bench and not after it."""
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ToolkitError(
            f"the {what} `{path}` cannot be written: {reason_of(error)}",
            f"Give another file: `{option_name}`",
        ) from error


def _draw(judged: "Sequence[Result]", path: Path) -> None:
    from toolkit.cli.output import writing

    # matplotlib tells of a home that it cannot write to and of odd lines in a matplotlibrc, and it fails
    # to load where MPLBACKEND names none that it knows: nothing of that changes the picture
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
    os.environ.pop("MPLBACKEND", None)
    with writing("Picture", path, "--chart"), waiting_for("Drawing"):
        from toolkit.bench.chart import draw

        draw(judged, path)
