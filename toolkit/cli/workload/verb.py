"""`toolkit workload`: what the captured requests have in common, and which levers follow from it."""

from pathlib import Path
from typing import Literal

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import DURATION, FILE, MOMENT, database_option, run_word
from toolkit.cli.output import print_json, writing
from toolkit.errors import ToolkitError

BLOCK_TOKENS = 16
"""Of the blocks that prompts are compared in."""


@click.command(
    "workload",
    cls=Command,
    short_help="How captured requests repeat, and which optimization saves most.",
)
@click.option(
    "--from",
    "sources",
    metavar="FILE",
    type=FILE,
    multiple=True,
    help="Read a file instead of the database, `-` for standard input; may be repeated.",
)
@click.option(
    "--run",
    metavar="RUN",
    type=run_word("capture"),
    help="Capture to read.  [default: the newest]",
)
@click.option("--since", type=MOMENT, help='Only requests from then on: `14:32`, `"15m ago"`.')
@click.option("--until", type=MOMENT, help="Only requests before then.")
@advanced(
    "--latency",
    type=DURATION,
    help="How long an answer takes, where none were followed; separates hits from requests that join.",
)
@advanced(
    "--max-model-len",
    type=click.IntRange(min=1),
    help="What the servers run with now.  [default: what scout last saw]",
)
@advanced("--model-limit", type=click.IntRange(min=1), help="Longest request the model can take.")
@advanced(
    "--max-num-seqs", type=click.IntRange(min=1), help="What the servers run with now, to compare."
)
@advanced(
    "--policy",
    type=click.Choice(["all", "declared"]),
    default="all",
    show_default=True,
    help="What a cache may answer: all, or only requests with temperature 0 or a seed.",
)
@advanced(
    "--ttl",
    type=DURATION,
    multiple=True,
    help="Lifetime of cached answers; may be repeated.  [default: a few]",
)
@advanced(
    "--size",
    type=click.IntRange(min=1),
    multiple=True,
    help="Answers that the cache holds; may be repeated.  [default: a few]",
)
@advanced("--show-clients", is_flag=True, help="Keep the addresses that a log holds, unhashed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report with plots."
)
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a blast profile that repeats as these requests do.",
)
@advanced(
    "--export",
    type=click.Choice(["mooncake", "burstgpt"]),
    help="Print the requests in a public trace's form instead of the report.",
)
@database_option
def command(
    *,
    sources: tuple[str, ...],
    run: str | None,
    since: float | None,
    until: float | None,
    latency: float | None,
    max_model_len: int | None,
    model_limit: int | None,
    max_num_seqs: int | None,
    policy: Literal["all", "declared"],
    ttl: tuple[float, ...],
    size: tuple[int, ...],
    show_clients: bool,
    as_json: bool,
    html: Path | None,
    profile: Path | None,
    export: Literal["mooncake", "burstgpt"] | None,
    database: Path,
) -> None:
    """What clients really send: how many requests are unique, how they repeat, what a response cache would
    answer, how long a model's context must be, and which lever saves the most GPU work. It reads the
    newest capture of the database, or files: JSON lines of `toolkit capture`, the proxy's or an nginx log,
    request bodies one a line, and the public traces of Azure, BurstGPT and Mooncake.

    \b
      toolkit capture data/sample.pcap && toolkit workload
      toolkit workload --from requests.jsonl --latency 2s
      toolkit workload --since "15m ago" --max-model-len 8192
      toolkit workload --html report.html   one file with plots, to send around
    \f
    \b
      toolkit workload --profile mine.toml
          then: toolkit blast hosts.txt --profile mine.toml
      toolkit workload --export mooncake > trace.jsonl
          for other tools to replay
    """
    if sources and run:
        raise click.UsageError("--from and --run are two sources; choose one")
    if export and (as_json or html or profile):
        raise click.UsageError("--export prints a trace; leave --json, --html and --profile out")
    from dataclasses import asdict

    from toolkit.cli.waiting import waiting_for
    from toolkit.cli.workload.sources import from_database, from_files
    from toolkit.cli.workload.table import print_report
    from toolkit.workload import summarise, synthesis
    from toolkit.workload.exports import export as trace_of
    from toolkit.workload.page import losses_lines, page
    from toolkit.workload.summary import TTLS_S, refusals

    texts = profile is not None
    with waiting_for("Reading"):
        if sources:
            found = from_files(sources, since, until, texts=texts, show_clients=show_clients)
        else:
            found = from_database(database, run, since, until, texts=texts)
    requests = found.columns
    if not len(requests):
        counts = (
            (requests.other, "of other kinds, e.g., GET /metrics"),
            (sum(requests.refused.values()), f"refused ({refusals(requests.refused)})"),
            (requests.damaged, "damaged"),
        )
        met = ", ".join(f"{count:,} {what}" for count, what in counts if count)
        what = "was answered" if requests.refused else "asks a model for anything"
        raise ToolkitError(
            f"no request in {found.source} {what}",
            f"Met were {met}; see what else there is with `toolkit runs` or `--from`"
            if met
            else "Is it the right source, and do `--since` and `--until` leave any?",
        )
    if export:
        with waiting_for("Reckoning"):
            trace = trace_of(requests, export)
        for line in trace.lines:
            click.echo(line, nl=False)
        for note in trace.notes:
            click.echo(f"Note: {note}", err=True)
        return

    kv_blocks = (found.kv_cache_tokens or 0) // BLOCK_TOKENS
    with waiting_for("Reckoning"):
        report = summarise(
            requests,
            latency_s=latency,
            current_max_model_len=max_model_len or found.max_model_len,
            model_max_len=model_limit,
            max_num_seqs=max_num_seqs,
            policy=policy,
            kv_blocks=(kv_blocks,) if kv_blocks else (),
            sizes=(*sorted(set(size)), None) if size else None,
            ttls_s=tuple(sorted(set(ttl))) or TTLS_S,
        )
    source = found.source.replace("`", "")
    # files first: who reads the report may close it early, as `head` does, and that ends the command
    if html:
        with waiting_for("Drawing"):
            text = page(report, source=source, notes=found.notes, losses=found.losses)
        with writing("Report", html, "--html"):
            html.write_text(text, encoding="utf-8")
    if profile:
        with waiting_for("Reckoning the profile"):
            made = synthesis(requests, source=source)
        with writing("Profile", profile, "--profile"):
            profile.write_text(made.toml, encoding="utf-8")
        for note in made.notes:
            click.echo(f"Note: {note}", err=True)
        click.echo(f"Try it: toolkit blast hosts.txt --profile {profile} --dry-run", err=True)
    if as_json:
        about = {
            "source": source,
            "source_kind": found.kind,
            "losses": dict(found.losses),
            "notes": list(found.notes),
        }
        print_json(asdict(report) | about)
    else:
        print_report(report, source, [*losses_lines(found.losses), *found.notes])
