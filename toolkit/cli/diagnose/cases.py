"""Whom `toolkit diagnose` judges, and by what: hosts that it looks at, or the hosts of a stored run."""

import re
from dataclasses import dataclass
from pathlib import Path

from toolkit.cli.catalog import table
from toolkit.cli.diagnose.options import DiagnoseOptions
from toolkit.cli.diagnose.seen import HostFacts
from toolkit.errors import ToolkitError
from toolkit.hosts import looks_like_url
from toolkit.tuning.diagnose import Diagnosis, diagnose, read_table
from toolkit.tuning.evidence import Evidence, merged

RUN = re.compile(r"[0-9a-f]{12}(:.+)?")
"""A run's id, and a host of it."""


NOTHING = "nothing is stored of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One host and what was found."""

    name: str
    url: str
    run: str | None
    diagnosis: Diagnosis
    error: str | None
    stopped: bool


def cases_of(options: DiagnoseOptions) -> list[Case]:
    """Look, and judge. Raises ToolkitError for what cannot be looked at."""
    rules = read_table(table("bottlenecks"))
    told = merged((_workload(options), _told(options)))
    seen = _seen(options)
    if len(seen) > 1 and (options.log or options.model):
        raise ToolkitError(
            f"`{options.target}` names {len(seen)} servers, and a log or a model is of one",
            "Diagnose them one after the other",
        )
    return [
        Case(
            name=each.name,
            url=each.url,
            run=each.run,
            diagnosis=diagnose(merged((each.evidence, told)), rules),
            error=each.error or (NOTHING if each.evidence == Evidence() else None),
            stopped=each.stopped,
        )
        for each in seen
    ]


def _seen(options: DiagnoseOptions) -> list[HostFacts]:
    if RUN.fullmatch(options.target):
        from toolkit.cli.diagnose.run import seen_in_run

        return seen_in_run(options)
    _refuse_nothing(options.target)
    from toolkit.cli.diagnose.look import seen_now

    return seen_now(options)


def _refuse_nothing(target: str) -> None:
    is_word = target != "-" and "/" not in target and not Path(target).suffix
    if is_word and not looks_like_url(target) and not Path(target).exists():
        raise ToolkitError(
            f"`{target}` is no run, no URL and no file of hosts",
            "A run is told by the id that `toolkit runs` lists, a server like `10.0.0.4:8000`",
        )


def _told(options: DiagnoseOptions) -> Evidence:
    if options.log is None and options.model is None:
        return Evidence()
    from toolkit.cli.diagnose.told import evidence_told

    return evidence_told(options.log, options.model, options.gpu)


def _workload(options: DiagnoseOptions) -> Evidence:
    if options.capture is None:
        return Evidence()
    from toolkit.cli.diagnose.run import evidence_of_capture

    return evidence_of_capture(options.capture, options.database)
