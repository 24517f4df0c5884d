"""How `toolkit diagnose` shows what it found: a few lines for each bottleneck, or JSON."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from toolkit.cli.diagnose.cases import Case
from toolkit.cli.output import print_json
from toolkit.tuning.diagnose import Diagnosis, Unknown

NOTHING: dict[str, Any] = {
    "lever": None, "risk": None, "watch": None, "what": None, "source": None, "unknown": None,
}  # fmt: skip
"""What a line that names no bottleneck has all the same: every line has the same keys."""
WIDTH = 100


def show(cases: Sequence[Case], *, as_json: bool) -> None:
    """Show what was found of each host."""
    for index, case in enumerate(cases):
        if as_json:
            for each in objects(case):
                print_json(each)
        else:
            if index:
                click.echo()
            for line in lines(case, _width()):
                click.echo(line)


def objects(case: Case) -> Iterator[dict[str, Any]]:
    """One object for each bottleneck, or one that says that there is none; then what is not known."""
    who = {"name": case.name, "url": case.url or None, "run": case.run}
    diagnosis = case.diagnosis
    if case.error:
        yield _object("not_seen", case.error) | who
        return
    for each in diagnosis.found:
        yield asdict(each) | {"unknown": None} | who
    if not diagnosis.found:
        sure = "low" if diagnosis.is_short else "medium" if diagnosis.unknown else "high"
        yield _object("none_found", diagnosis.looked_at) | who | {"confidence": sure}
    if diagnosis.unknown:
        unknown = [asdict(each) for each in diagnosis.unknown]
        yield _object("not_known", "; ".join(_open(diagnosis))) | who | {"unknown": unknown}


def _object(code: str, evidence: str) -> dict[str, Any]:
    return {"code": code, "confidence": "high", "evidence": evidence} | NOTHING


def _width() -> int:
    """Of the lines: as the screen is, but no wider than reads well."""
    is_seen = sys.stdout is not None and sys.stdout.isatty()
    return min(WIDTH, shutil.get_terminal_size().columns) if is_seen else WIDTH


def lines(case: Case, width: int = WIDTH) -> Iterator[str]:
    """The same for people."""
    diagnosis = case.diagnosis
    where = f"in run {case.run}" if case.run else case.url
    yield case.name if case.name in where else f"{case.name} {where}"
    if case.error:
        yield f"  not seen: {case.error}"
        return
    yield from _wrapped("looked at ", diagnosis.looked_at, width)
    for each in diagnosis.found:
        yield ""
        yield from _wrapped(f"{each.code} ({each.confidence}): ", each.what, width)
        for title, text in (
            ("seen", each.evidence),
            ("turn", each.lever),
            ("risk", each.risk),
            ("watch", each.watch),
        ):
            yield from _wrapped(f"  {title:<6}", text, width)
    if not diagnosis.found:
        short = ": the load was there for too short, look again while it lasts"
        yield f"  none found{short if diagnosis.is_short else ''}"
    if diagnosis.unknown:
        yield ""
        yield "  Not known:"
        for text in _open(diagnosis):
            yield from _wrapped("  - ", text, width)


def _open(diagnosis: Diagnosis) -> list[str]:
    """What cannot be known, by what would tell it."""
    by_source: dict[str, list[Unknown]] = {}
    for each in diagnosis.unknown:
        by_source.setdefault(each.tells, []).append(each)
    return [
        f"{', '.join(dict.fromkeys(each.what for each in those))}: {tells}"
        for tells, those in by_source.items()
    ]


def _wrapped(title: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"  {title}",
        subsequent_indent=" " * (2 + len(title)),
        break_long_words=False,
        break_on_hyphens=False,
    )
