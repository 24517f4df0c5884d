"""One `toolkit workload`: read the requests, reckon the report, show it or write it."""

from dataclasses import asdict, replace
from pathlib import Path

import click

from toolkit.cli.output import print_json
from toolkit.cli.waiting import waiting_for
from toolkit.cli.workload.options import WorkloadOptions
from toolkit.cli.workload.source import ReportSource, arrived
from toolkit.errors import ToolkitError
from toolkit.workload.summary import PLAIN, ReportSettings, Workload, refusals_told, summarise

BLOCK_TOKENS = 16
"""Of the blocks that prompts are compared in."""


def run(options: WorkloadOptions) -> None:
    """Do what the command line asks. Raises ToolkitError where no request asks a model for anything."""
    with waiting_for("Reading"):
        found = arrived(options, texts=options.profile is not None)
    if not len(found.columns):
        what = "was answered" if found.columns.refused else "asks a model for anything"
        raise ToolkitError(f"no request in {found.told} {what}", _why_none(found))
    if options.export:
        _export(found, options)
        return
    with waiting_for("Reckoning"):
        report = summarise(found.columns, options=_told(options, found))
    # files first: who reads the report may close it early, as `head` does, and that ends the command
    if options.html:
        from toolkit.workload.report_page import page

        with waiting_for("Drawing"):
            text = page(report, told=found.told, notes=found.notes, losses=dict(found.losses))
        _write(options.html, text, "Report")
    if options.profile:
        _write_profile(found, options.profile)
    if options.as_json:
        print_json(_as_object(report, found))
    else:
        from toolkit.cli.workload.show import print_report

        print_report(report, found)


def _write_profile(found: ReportSource, path: Path) -> None:
    from toolkit.workload.synthesis import synthesis

    source, identities = found.told.replace("`", ""), found.identities is not None
    with waiting_for("Reckoning the profile"):
        made = synthesis(found.columns, source=source, identities=identities)
    _write(path, made.toml, "Profile")
    for note in made.notes:
        click.echo(f"Note: {note}", err=True)
    click.echo(f"Try it: toolkit blast hosts.txt --profile {path} --dry-run", err=True)


def _why_none(found: ReportSource) -> str:
    refused = found.columns.refused
    counts = (
        (found.columns.other, "of other kinds, e.g., GET /metrics"),
        (sum(refused.values()), f"refused ({refusals_told(refused)})"),
        (found.columns.damaged, "damaged"),
    )
    met = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    if met:
        return f"Met were {met}; see what else there is with `toolkit runs` or `--from`"
    return "Is it the right source, and do `--since` and `--until` leave any?"


def _told(options: WorkloadOptions, found: ReportSource) -> ReportSettings:
    kv_blocks = (found.kv_cache_tokens or 0) // BLOCK_TOKENS
    told = ReportSettings(
        latency_s=options.latency,
        current_max_model_len=options.max_model_len or found.max_model_len,
        model_max_len=options.model_limit,
        max_num_seqs=options.max_num_seqs,
        policy=options.policy,
        identities=found.identities,
        arrivals=found.arrivals,
        beginnings=found.beginnings,
        kv_blocks=(kv_blocks,) if kv_blocks else (),
    )
    return replace(
        told,
        sizes=(*sorted(set(options.size)), None) if options.size else PLAIN.sizes,
        ttls_s=tuple(sorted(set(options.ttl))) or PLAIN.ttls_s,
    )


def _as_object(report: Workload, found: ReportSource) -> dict[str, object]:
    about = {
        "source": found.told.replace("`", ""),
        "source_kind": found.kind,
        "losses": dict(found.losses),
        "notes": list(found.notes),
    }
    return asdict(report) | about


def _export(found: ReportSource, options: WorkloadOptions) -> None:
    from toolkit.workload import exports

    write = exports.mooncake if options.export == "mooncake" else exports.burstgpt
    with waiting_for("Reckoning"):
        export = write(found.columns, arrivals=found.arrivals)
    for line in export.lines:
        click.echo(line, nl=False)
    for note in export.notes:
        click.echo(f"Note: {note}", err=True)


def _write(path: Path, text: str, what: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error) or "no reason given").lower()
        raise ToolkitError(f"`{path}` cannot be written: {reason}", "Give another file") from error
    click.echo(f"{what}: {path}", err=True)
