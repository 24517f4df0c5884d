"""`toolkit diagnose`: which of the known bottlenecks a host has, from its own numbers or from a run."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.exit_codes import FAILED, INTERRUPTED
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import allow_open_files, hosts_from, is_hosts_file, tls_for
from toolkit.cli.options import DURATION, GPU, HOSTS, MODEL, database_option, run_word, tls_options
from toolkit.cli.output import print_json
from toolkit.errors import ToolkitError
from toolkit.hosts import looks_like_url

if TYPE_CHECKING:
    from toolkit.cli.diagnose.hosts import HostFacts
    from toolkit.tuning.diagnose import Diagnosis

RUN = re.compile(r"[0-9a-f]{12}(:.+)?")
"""A run's id, and a host of it."""
WIDTH = 100


@click.command(
    "diagnose", cls=Command, short_help="Find the bottleneck, and which setting to change first."
)
@click.argument("target", metavar="TARGET", type=HOSTS)
@click.option(
    "--interval", type=DURATION, default="10s", show_default=True, help="How long to watch."
)
@click.option(
    "--capture",
    metavar="RUN",
    type=run_word("capture"),
    help="Judge what clients send by this capture, or by the `newest`.",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="vLLM's log of TARGET's start: weights, memory, lengths.",
)
@click.option(
    "--model",
    metavar="MODEL",
    type=MODEL,
    help="What TARGET serves, as `toolkit plan` names it.",
)
@click.option(
    "--gpu",
    metavar="NAME|SIZE",
    type=GPU,
    help="The GPU that it runs on, to tell how much of it weights take.",
)
@advanced(
    "--timeout",
    type=DURATION,
    default="5s",
    show_default=True,
    help="Longest wait for all pages of a scrape.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per bottleneck.")
@database_option
@tls_options
def command(
    target: str,
    interval: float,
    capture: str | None,
    log: Path | None,
    model: str | None,
    gpu: str | None,
    timeout: float,
    as_json: bool,
    database: Path,
    insecure: bool,
    ca: str | None,
) -> None:
    """Find a server's bottleneck: the evidence, which setting to change first, what that risks and which
    indicator to watch. TARGET is a URL, a name of hosts.txt or a hosts file, whose servers are looked
    at for --interval while they are under load, or a run of the database (RUN or RUN:HOST), a bench or a
    blast with what scout saw beside it.

    \b
      toolkit diagnose 10.0.0.4:8000        look for ten seconds
      toolkit diagnose hosts.txt --interval 30s
      toolkit diagnose 3f9c2a7b1d04:alice   what a blast's seconds say
    \f
    \b
      toolkit diagnose 10.0.0.4:8000 --capture newest
          and what clients send, from a capture
      toolkit diagnose 10.0.0.4:8000 --log vllm.log
          and how large its weights are
      toolkit diagnose 10.0.0.4:8000 --model Qwen/Qwen3-32B --gpu a100-80gb
      toolkit diagnose 10.0.0.4:8000 --json

    Only evidence counts. What could not be measured is named, with what would tell. Change one setting at
    a time and measure again: `toolkit compare` tells whether it helped.

    \b
    With --json there is one object for each bottleneck, with these keys:
      code         a name for programs; `none_found` where there is none,
                   `not_known` with a list `unknown` of facts that would decide
                   something, `not_seen` for a host that did not answer
      confidence   high, medium or low
      evidence     what was seen, with its figures
      lever        what to turn, the first thing first
      risk         what that may cost
      watch        the indicators that tell whether it helped
      what         the code in words
      source       where the rule comes from: text and place, or the
                   thresholds' own
      name, url    whom it is about; run: the stored run, where it is one
    """
    if (model is None) != (gpu is None):
        raise click.UsageError("--model and --gpu go together: weights against memory")
    from toolkit.cli.diagnose.hosts import (
        evidence_of_capture,
        evidence_of_log,
        evidence_of_model,
        hosts_of_run,
        look_at,
    )
    from toolkit.plan.catalog import table
    from toolkit.tuning.diagnose import diagnose, read_table
    from toolkit.tuning.evidence import Evidence, merged

    rules = read_table(table("bottlenecks"))
    more = []
    if capture is not None:
        more.append(evidence_of_capture(capture, database))
    if log is not None:  # what the server itself wrote goes before what was reckoned
        more.append(evidence_of_log(log))
    if model and gpu:
        more.append(evidence_of_model(model, gpu))

    stopped = False
    if RUN.fullmatch(target):
        seen = hosts_of_run(target, database)
    else:
        try:
            hosts = hosts_from([target])
        except ToolkitError as refusal:
            if looks_like_url(target) or is_hosts_file(target):
                raise
            runs = "a run goes by the id that `toolkit runs` lists"
            raise ToolkitError(refusal.message, f"{refusal.hint}; {runs}") from refusal
        allow_open_files()
        tls = tls_for(insecure=insecure, ca=ca)
        seen, stopped = look_at(hosts, interval_s=interval, timeout_s=timeout, tls=tls)
    if len(seen) > 1 and (log or model):
        raise ToolkitError(
            f"`{target}` names {len(seen)} servers, and a log or a model is of one",
            "Diagnose them one after the other",
        )

    any_seen = False
    for number, host in enumerate(seen):
        error = host.error
        if error is None and host.evidence == Evidence():
            error = "nothing is stored of it"
        any_seen = any_seen or error is None
        diagnosis = diagnose(merged((host.evidence, *more)), rules)
        if as_json:
            for each in _objects(host, diagnosis, error):
                print_json(each)
        else:
            if number:
                click.echo()
            _print(host, diagnosis, error)
    if stopped:
        sys.exit(INTERRUPTED)
    if not any_seen:
        sys.exit(FAILED)


def _objects(
    host: "HostFacts", diagnosis: "Diagnosis", error: str | None
) -> Iterator[dict[str, Any]]:
    """One object for each bottleneck, or one that says that there is none; then what is not known. Each has all keys."""
    keys = "code confidence evidence lever risk watch what source unknown".split()
    empty = dict.fromkeys(keys) | {"name": host.name, "url": host.url or None, "run": host.run}
    if error:
        yield empty | {"code": "not_seen", "confidence": "high", "evidence": error}
        return
    for each in diagnosis.found:
        yield empty | {
            "code": each.rule.code,
            "confidence": each.confidence,
            "evidence": each.evidence,
            "lever": each.rule.lever,
            "risk": each.rule.risk,
            "watch": each.rule.watch,
            "what": each.rule.name,
            "source": each.rule.source,
        }
    if not diagnosis.found:
        sure = "low" if diagnosis.is_short else "medium" if diagnosis.unknown else "high"
        none = {"code": "none_found", "confidence": sure, "evidence": diagnosis.looked_at}
        yield empty | none
    if diagnosis.unknown:
        evidence = "; ".join(_open(diagnosis))
        unknown = {"code": "not_known", "confidence": "high", "evidence": evidence}
        yield empty | unknown | {"unknown": [asdict(each) for each in diagnosis.unknown]}


def _print(host: "HostFacts", diagnosis: "Diagnosis", error: str | None) -> None:
    """The same for people: a few lines for each bottleneck."""
    is_seen = sys.stdout is not None and sys.stdout.isatty()
    width = min(WIDTH, shutil.get_terminal_size().columns) if is_seen else WIDTH

    def say(title: str, text: str) -> None:
        indent = " " * (2 + len(title))
        lines = textwrap.wrap(
            text, width, initial_indent=f"  {title}", subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        for line in lines:
            click.echo(line)

    where = f"in run {host.run}" if host.run else host.url
    click.echo(host.name if host.name in where else f"{host.name} {where}")
    if error:
        click.echo(f"  not seen: {error}")
        return
    say("looked at ", diagnosis.looked_at)
    for each in diagnosis.found:
        rule = each.rule
        click.echo()
        say(f"{rule.code} ({each.confidence}): ", rule.name)
        rows = {"seen": each.evidence, "turn": rule.lever, "risk": rule.risk, "watch": rule.watch}
        for title, text in rows.items():
            say(f"  {title:<6}", text)
    if not diagnosis.found:
        short = ": the load did not last long enough, repeat it while it lasts"
        click.echo(f"  no bottleneck found{short if diagnosis.is_short else ''}")
    if diagnosis.unknown:
        click.echo()
        click.echo("  Not known:")
        for text in _open(diagnosis):
            say("  - ", text)


def _open(diagnosis: "Diagnosis") -> list[str]:
    """What cannot be known, by what would tell it."""
    by_source: dict[str, list[str]] = {}
    for each in diagnosis.unknown:
        by_source.setdefault(each.tells, []).append(each.what)
    return [f"{', '.join(dict.fromkeys(what))}: {tells}" for tells, what in by_source.items()]
