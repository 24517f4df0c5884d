"""One `toolkit report`: gather the evidence, judge, show it or write it."""

from dataclasses import asdict
from pathlib import Path

import click

from toolkit.cli.output import print_json, say
from toolkit.cli.report.options import ReportOptions
from toolkit.cli.report.read import report_of
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.tuning.lab_report import Report, text_lines


def run_report(options: ReportOptions) -> None:
    """Do what the command line asks. Raises ToolkitError where there is nothing to report on."""
    report = report_of(options)
    if options.as_json:
        print_json(_as_object(report))
    elif options.html is None:
        for line in text_lines(report):
            say(line)
    if options.html:
        from toolkit.tuning.pages import report_page

        with waiting_for("Drawing"):
            text = report_page(report)
        _write(options.html, text)


def _as_object(report: Report) -> dict[str, object]:
    """Keys as in the records; a host's rates beside its counts."""
    told = asdict(report)
    told["hosts"] = [
        {
            **asdict(host),
            "rps": host.rps,
            "output_tokens_per_s": host.output_tokens_per_s,
            "error_rate": host.error_rate,
        }
        for host in report.hosts
    ]
    return told


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error) or "no reason given").lower()
        raise ToolkitError(f"`{path}` cannot be written: {reason}", "Give another file") from error
    click.echo(f"Report: {path}", err=True)
