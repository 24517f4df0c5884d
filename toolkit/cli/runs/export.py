"""`toolkit runs export`: a run's rows as CSV or JSON lines, with percentiles in place of histograms."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from math import floor
from pathlib import Path
from typing import IO, Any, Literal

import click

from toolkit.capture.lines import NumberedRequest, as_object
from toolkit.cli.output import json_line
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.records import Run, Shot, Tally
from toolkit.safe_text import spreadsheet_cell
from toolkit.stats import Sketch
from toolkit.store import Store

CHUNK_S = 60
"""Seconds of tallies read at once: 20 hosts' are some 2 MB."""
PERCENTILES = (50, 95, 99)
_TALLY_FIELDS = [field.name for field in fields(Tally) if field.name not in ("e2e", "ttft")]
_SHOT_FIELDS = [field.name for field in fields(Shot) if field.name != "itl"]

Row = dict[str, Any]
Rows = Literal["shots", "tallies", "requests"]

USUAL_ROWS: dict[str, Rows] = {"blast": "tallies", "capture": "requests"}
"""By a run's verb: what of it most people want; of any other its shots."""


def run_rows(store: Store, run: Run, wanted: Rows) -> Iterator[Row]:
    """A run's tallies by second, its timed requests by host and slot, or those that it saw arrive by time."""
    if wanted == "shots":
        return (_shot_row(shot) for shot in store.shots(run.id))
    if wanted == "requests":
        return _requests(store, run)
    return (_tally_row(tally) for tally in _tallies(store, run))


def _requests(store: Store, run: Run) -> Iterator[Row]:
    """In the words of `toolkit capture --json`, so that `toolkit workload --from` reads them."""
    prompts: set[str] = set()
    for seen in store.seen(run.id):
        key = None if seen.asked is None else seen.asked.prompt_key
        is_new = None if key is None else key not in prompts
        if key is not None:
            prompts.add(key)
        yield as_object(NumberedRequest(seen, is_new, len(prompts)))


def _tallies(store: Store, run: Run) -> Iterator[Tally]:
    """All of them, a stretch at a time: two hours of 20 hosts are half a gigabyte."""
    start, last = floor(run.started_at), store.last_second(run.id)
    if last is None:
        return
    yield from store.tallies(run.id, to_s=start - 1)  # a clock that was put back
    for from_s in range(start, last + 1, CHUNK_S):
        yield from store.tallies(run.id, from_s=from_s, to_s=from_s + CHUNK_S - 1)


def _tally_row(tally: Tally) -> Row:
    row: Row = {"time": datetime.fromtimestamp(tally.at_s, UTC).isoformat()}
    row |= {name: getattr(tally, name) for name in _TALLY_FIELDS}
    row["error_kinds"] = {each.kind: each.count for each in tally.error_kinds}
    return row | _percentiles("ttft", tally.ttft) | _percentiles("e2e", tally.e2e)


def _shot_row(shot: Shot) -> Row:
    return {name: getattr(shot, name) for name in _SHOT_FIELDS} | _percentiles("itl", shot.itl)


def _percentiles(name: str, blob: bytes | None) -> Row:
    """By nearest rank, within 1 %, in milliseconds; None where nothing was counted."""
    try:
        sketch = Sketch.from_bytes(blob or b"")
    except ValueError as error:
        raise ToolkitError(f"a row of the run cannot be read: {error}") from error
    found = {each: sketch.quantile(each / 100) for each in PERCENTILES}
    return {
        f"{name}_p{each}_ms": None if value is None else round(value, 3)
        for each, value in found.items()
    }


def write_rows(rows: Iterable[Row], form: Literal["csv", "jsonl"], path: Path | None) -> int:
    """Write rows into a file, or to standard output; tell how many."""
    write = _write_csv if form == "csv" else _write_jsonl
    try:
        with (
            click.open_file(str(path or "-"), "w", encoding="utf-8") as file,
            waiting_for("Writing", shown=not file.isatty()),
        ):
            return write(rows, file)
    except OSError as error:
        if path is None:
            raise  # a closed pipe, a full disk: the command line knows what to say
        reason = (error.strerror or "no reason given").lower()
        raise ToolkitError(
            f"`{path}` cannot be written: {reason}", "Give another file with `-o`"
        ) from error


def _write_csv(rows: Iterable[Row], file: IO[Any]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    count = 0
    for row in rows:
        if not count:
            writer.writerow(row)
        writer.writerow([spreadsheet_cell(_cell(value)) for value in row.values()])
        count += 1
    return count


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, dict):
        return " ".join(f"{kind}={count}" for kind, count in value.items())
    return value


def _write_jsonl(rows: Iterable[Row], file: IO[Any]) -> int:
    count = 0
    for row in rows:
        file.write(json_line(row) + "\n")
        count += 1
    return count
