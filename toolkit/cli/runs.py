"""`toolkit runs`: what is stored of every run; export, merge and prune."""

import csv
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from toolkit.cli.help_page import Group
from toolkit.cli.named_run import chosen_run
from toolkit.cli.options import VERB, Written, database_option, json_option, run_word
from toolkit.cli.output import json_line, print_json
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError, reason_of
from toolkit.records import RequestRecord, Run, Tally
from toolkit.safe_text import spreadsheet_cell
from toolkit.units import (
    DASH,
    bytes_of,
    counted,
    date_and_time,
    file_size,
    seconds_of,
    stopwatch,
)

if TYPE_CHECKING:
    from toolkit.store import Store

LIVE_S = 60.0
"""A run without an end, of which something was stored so lately, is still on."""


@click.group(
    "runs",
    cls=Group,
    short_help="List, export, merge and prune what was measured.",
    invoke_without_command=True,
)
@click.option("--verb", type=VERB, help="Only runs of this command, e.g., `blast`.")
@json_option("run")
@database_option
@click.pass_context
def command(context: click.Context, verb: str | None, as_json: bool, database: Path) -> None:
    """List the runs in the database, the last begun first: benches, blasts and all others.

    \b
      toolkit runs
      toolkit runs --json
      toolkit runs export 3f9c2a7b1d04 --csv -o blast.csv
      toolkit runs merge other-machine.db   take over another database's runs
      toolkit runs prune --keep 7d          forget what is older than a week
    """
    if context.invoked_subcommand:
        if verb or as_json:
            raise click.UsageError("--verb and --json are for the list; leave the other word out")
        return
    from toolkit.store import Store

    with waiting_for("Counting"), Store.open_readonly(database) as store:
        runs = listed(store, store.runs(verb=verb))
    if as_json:
        for run in runs:
            print_json(asdict(run))
        return
    if not runs:
        message = "No run yet. `toolkit bench HOSTS`, `blast HOSTS` or `capture` makes one"
        if verb:
            message = f"No run of `{verb}`. `toolkit runs` lists those of all commands"
        click.echo(message, err=True)
        return
    from toolkit.report.tables import Column, screen

    def took(run: Listed) -> str:
        seconds = DASH
        if run.took_s is not None and run.took_s < 60:
            seconds = f"{run.took_s:.1f} s"
        elif run.took_s is not None:
            seconds = stopwatch(round(run.took_s), shows_hours=True)
        return seconds + {"ended": "", "on": ", still running", "cut": ", cut off"}[run.state]

    health = {True: "yes", False: "no: the limit", None: DASH}
    columns = [
        Column("run", lambda run: run.run),
        Column("verb", lambda run: run.verb),
        Column("began", lambda run: date_and_time(run.started_at)),
        Column("took", took, right=True),
        Column("hosts", lambda run: f"{run.hosts:,}", right=True, spare=1),
        Column("requests", lambda run: f"{run.requests:,}", right=True),
        Column("errors", lambda run: f"{run.errors:,}", right=True),
        Column("client ok", lambda run: health[run.client_ok], spare=2),
    ]
    screen().records(columns, runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A run and what is stored of it; the fields are the keys of `--json`."""

    run: str
    verb: str
    state: Literal["ended", "on", "cut"]
    """`cut`: it never said that it ended, and nothing more comes."""
    started_at: float
    """Seconds since 1970, as `ended_at`."""
    ended_at: float | None
    took_s: float | None
    """To its end, else to the last that was stored of it."""
    hosts: int
    requests: int
    """All that were sent, canaries included, warm-up left out; of a capture all that arrived."""
    errors: int
    """Of a capture the answers of 400 and more, where answers were followed."""
    client_ok: bool | None
    """False: the measuring machine was the limit."""

    def __str__(self) -> str:
        return (
            f"run {self.run} ({self.verb} of {date_and_time(self.started_at)}, {counted(self.hosts, 'host')}, "
            f"{counted(self.requests, 'request')})"
        )


def listed(store: "Store", runs: Iterable[Run]) -> list[Listed]:
    """Count what is stored of runs."""
    from toolkit.serving.processes import still_runs

    now, found = time.time(), []
    for run in runs:
        content, noted = store.content(run.id), run.plan.get("process")
        last_at = run.ended_at or content.last_at
        is_on = False
        if run.ended_at is None and noted is not None:
            # a serve whose engines are well has nothing to store for days: it says who it is
            is_on = still_runs(noted)
            last_at = now if is_on else last_at
        elif run.ended_at is None:
            is_on = now - max(content.last_at or 0, run.started_at) < LIVE_S
        found.append(
            Listed(
                run=run.id,
                verb=run.verb,
                state="on" if is_on else "cut" if run.ended_at is None else "ended",
                started_at=run.started_at,
                ended_at=run.ended_at,
                took_s=None if last_at is None else max(0.0, last_at - run.started_at),
                hosts=content.hosts,
                requests=content.requests,
                errors=content.errors,
                client_ok=run.client_ok,
            )
        )
    return found


def _database(context: click.Context, database: Path) -> Path:
    """`--db` may stand before or after the subcommand; the later word counts."""
    above = context.parent
    if above and context.get_parameter_source("database") is not ParameterSource.COMMANDLINE:
        return Path(above.params["database"])
    return database


# --- export -------------------------------------------------------------------------------------------

CHUNK_S = 60
"""Seconds of tallies read at once: 20 hosts' are some 2 MB."""
PERCENTILES = (50, 95, 99)
TALLY_FIELDS = [field.name for field in fields(Tally) if field.name not in ("e2e", "ttft")]
SHOT_FIELDS = [field.name for field in fields(RequestRecord) if field.name != "itl"]

Row = dict[str, Any]
Rows = Literal["shots", "tallies", "requests"]

USUAL_ROWS: dict[str, Rows] = {"blast": "tallies", "capture": "requests"}
"""By a run's verb: what of it most people want; of any other its shots."""


@command.command("export", short_help="Write a run's rows as CSV or JSON lines.")
@click.argument("run_id", metavar="RUN", type=run_word())
@click.option("--csv", "format_", flag_value="csv", help="CSV with a header line.  [default]")
@click.option("--jsonl", "format_", flag_value="jsonl", help="JSON lines, one object per line.")
@click.option(
    "--shots",
    "rows",
    flag_value="shots",
    help="One row per timed request: a bench's, a blast's canaries.",
)
@click.option(
    "--tallies", "rows", flag_value="tallies", help="One row per host, second and kind: a blast's."
)
@click.option(
    "--requests",
    "rows",
    flag_value="requests",
    help="One row per request that arrived: a capture's.",
)
@click.option(
    "-o",
    "--out",
    "--output",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file.  [default: standard output]",
)
@database_option
@click.pass_context
def export(
    context: click.Context,
    run_id: str,
    format_: Literal["csv", "jsonl"] | None,
    rows: Rows | None,
    output: Path | None,
    database: Path,
) -> None:
    """Write what a run measured, one row each, with percentiles in place of histograms.

    RUN is an id as `toolkit runs` lists it. A blast's rows are its tallies, a capture's the requests that arrived, in
    the words of `toolkit capture --json`, any other run's its timed requests, unless --shots, --tallies or --requests
    says otherwise. Without --csv or --jsonl the output file's ending decides.

    \b
      toolkit runs export 3f9c2a7b1d04 --csv -o blast.csv
      toolkit runs export 3f9c2a7b1d04 --jsonl --shots > shots.jsonl
    """
    from toolkit.store import Store

    ends_in_jsonl = output is not None and output.suffix in (".jsonl", ".ndjson")
    is_jsonl = format_ == "jsonl" or (format_ is None and ends_in_jsonl)
    database = _database(context, database)
    with Store.open_readonly(database) as store:
        run = chosen_run(store, run_id, database)
        usual = USUAL_ROWS.get(run.verb, "shots")
        wanted = rows or usual
        makers = {"shots": _shot_rows, "tallies": _tally_rows, "requests": _request_rows}
        count = 0
        try:
            with (
                click.open_file(str(output or "-"), "w", encoding="utf-8") as file,
                waiting_for("Writing", shown=not file.isatty()),
            ):
                table = csv.writer(file, lineterminator="\n")
                for count, row in enumerate(makers[wanted](store, run), start=1):
                    if is_jsonl:
                        file.write(json_line(row) + "\n")
                        continue
                    if count == 1:
                        table.writerow(row)
                    table.writerow([spreadsheet_cell(_cell(value)) for value in row.values()])
        except OSError as error:
            if output is None:
                raise  # a closed pipe, a full disk: the command line knows what to say
            raise ToolkitError(
                f"`{output}` cannot be written: {reason_of(error)}", "Give another file with `-o`"
            ) from error
    if not count:
        other = usual if usual != wanted else "shots" if wanted == "tallies" else "tallies"
        click.echo(f"Run {run.id} has no {wanted}; `--{other}` writes its {other}", err=True)
    elif output:
        click.echo(f"{count:,} rows in {output}", err=True)


def _shot_rows(store: "Store", run: Run) -> Iterator[Row]:
    """Timed requests, by host and slot."""
    for shot in store.shots(run.id):
        yield {name: getattr(shot, name) for name in SHOT_FIELDS} | _percentiles("itl", shot.itl)


def _tally_rows(store: "Store", run: Run) -> Iterator[Row]:
    """All tallies by second, a stretch at a time: two hours of 20 hosts are half a gigabyte."""
    start, last = floor(run.started_at), store.last_second(run.id)
    if last is None:
        return
    stretches = [(0, start - 1)]  # a clock that was put back
    stretches += [(from_s, from_s + CHUNK_S - 1) for from_s in range(start, last + 1, CHUNK_S)]
    for from_s, to_s in stretches:
        for tally in store.tallies(run.id, from_s=from_s, to_s=to_s):
            row: Row = {"time": datetime.fromtimestamp(tally.at_s, UTC).isoformat()}
            row |= {name: getattr(tally, name) for name in TALLY_FIELDS}
            row["error_kinds"] = {each.kind: each.count for each in tally.error_kinds}
            yield row | _percentiles("ttft", tally.ttft) | _percentiles("e2e", tally.e2e)


def _request_rows(store: "Store", run: Run) -> Iterator[Row]:
    """In the words of `toolkit capture --json`, so that `toolkit workload --from` reads them."""
    from toolkit.capture.jsonl import NumberedRequest, as_object

    prompts: set[str] = set()
    for seen in store.seen(run.id):
        key = None if seen.asked is None else seen.asked.prompt_key
        is_new = None if key is None else key not in prompts
        if key is not None:
            prompts.add(key)
        yield as_object(NumberedRequest(seen, is_new, len(prompts)))


def _percentiles(name: str, blob: bytes | None) -> Row:
    """By nearest rank, within 1 %, in milliseconds; None where nothing was counted."""
    from toolkit.stats import Sketch

    try:
        sketch = Sketch.from_bytes(blob or b"")
    except ValueError as error:
        raise ToolkitError(f"a row of the run cannot be read: {error}") from error
    found = {each: sketch.quantile(each / 100) for each in PERCENTILES}
    return {
        f"{name}_p{each}_ms": None if value is None else round(value, 3)
        for each, value in found.items()
    }


def _cell(value: object) -> object:
    """A value as it stands in a CSV file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, dict):
        return " ".join(f"{kind}={count}" for kind, count in value.items())
    return value


# --- merge --------------------------------------------------------------------------------------------


@command.command("merge", short_help="Take over another database's runs.")
@click.argument(
    "others",
    nargs=-1,
    required=True,
    metavar="OTHER.db...",
    type=click.Path(dir_okay=False, path_type=Path),
)
@database_option
@click.pass_context
def merge(context: click.Context, others: tuple[Path, ...], database: Path) -> None:
    """Copy all runs of other databases into this one, with everything that belongs to them, and scout's sightings.

    A run that is here already is skipped, and so is one that is still running. The other files keep what they have.

    \b
      toolkit runs merge other-machine.db
      toolkit runs merge one.db two.db --db data/toolkit.db
    """
    from toolkit.store import Store

    database = _database(context, database)
    for other in others:
        if other.exists() and database.exists() and other.samefile(database):
            raise ToolkitError(f"`{other}` is the database itself", "Name another machine's file")
        try:
            Store.open_existing(other).close()  # brings it up to date
        except ToolkitError as error:
            # --db is another file here
            another = "Name the database of another machine, one that you may write: it is brought up to date"
            hint = another if "--db" in error.hint else error.hint
            raise ToolkitError(error.message, hint) from error

    with Store.open(database) as store:
        for other in others:
            with waiting_for("Counting"), Store.open_readonly(other) as theirs:
                runs = listed(theirs, reversed(theirs.runs()))
            copied = 0
            with waiting_for("Copying"), store.beside(other):
                for run in runs:
                    if store.run(run.run):
                        click.echo(f"Skipped {run}: it is here already", err=True)
                    elif run.state == "on":
                        click.echo(
                            f"Skipped {run}: it is still running, so merge again when it is over",
                            err=True,
                        )
                    else:
                        store.copy_run(run.run)
                        copied += 1
                        click.echo(f"Copied {run}", err=True)
                sightings = store.copy_sightings()
            click.echo(
                f"From `{other}`: {counted(copied, 'run')} and {counted(sightings, 'sighting')}",
                err=True,
            )


# --- prune --------------------------------------------------------------------------------------------

Kept = tuple[Literal["runs", "seconds", "bytes"], float]


def kept(text: str) -> Kept | None:
    """So many runs, those of so long, or those that fit so many bytes: `5`, `7d` or `2GB`."""
    if text.isascii() and text.isdecimal() and len(text) < 9:
        return "runs", float(text)
    if seconds := seconds_of(text):
        return "seconds", seconds
    size = bytes_of(text)
    return ("bytes", float(size)) if size else None


def is_terminal() -> bool:
    """Whether a person can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


@command.command("prune", short_help="Forget the oldest runs, and give their room back.")
@click.option(
    "--keep",
    type=Written("keep", kept, "is no amount; write e.g. `5` runs, `7d` or `2GB`"),
    required=True,
    metavar="5|7d|2GB",
    help="Keep this many of the newest runs, those begun within this time, or as many as fit.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@database_option
@click.pass_context
def prune(context: click.Context, keep: Kept, yes: bool, database: Path) -> None:
    """Delete the oldest runs with everything of them, then write the file anew without the room they took.

    With a time, what scout saw before then goes, too. Nothing is deleted before you say yes, and never a run that
    is still running. Writing the file anew takes up to twice as much disk again as is kept, for a moment.

    \b
      toolkit runs prune --keep 7d
      toolkit runs prune --keep 2GB --yes
    """
    from toolkit.store import Store

    database = _database(context, database)
    how, amount = keep
    before = time.time() - amount if how == "seconds" else None
    with Store.open_existing(database) as store:
        with waiting_for("Counting"):
            runs, sightings = store.runs(), 0
            if how == "runs":
                doomed = runs[int(amount) :]
            elif before is not None:
                doomed = [run for run in runs if run.started_at < before]
                sightings = store.sightings_before(before)
            elif store.used_bytes() <= amount:
                doomed = []
            else:
                # the newest stays even where it alone is too large: a slip of the finger must not cost everything
                oldest = [run.id for run in reversed(runs[1:])]
                sizes = store.used_bytes_without(oldest, enough=int(amount))
                doomed = runs[len(runs) - len(sizes) :]
            found = listed(store, reversed(doomed))
        for run in found:
            if run.state == "on":
                raise ToolkitError(
                    f"run `{run.run}` is still running, and would be deleted",
                    "Wait until it is over, or keep more with `--keep`. Nothing was deleted",
                )
        if not found and not sightings:
            size = file_size(store.used_bytes())
            click.echo(
                f"Nothing to delete: `{database}` has {counted(len(runs), 'run')} in {size}",
                err=True,
            )
            return

        if not yes:
            for run in found:
                click.echo(f"  {run}", err=True)
            what = [f"{len(found):,} of {counted(len(runs), 'run')}"] if found else []
            if before is not None and sightings:
                since = date_and_time(before)
                what.append(f"{counted(sightings, 'sighting')} from before {since}")
            if not is_terminal():
                raise ToolkitError(
                    f"there is no terminal to confirm deleting {' and '.join(what)}",
                    "Add `--yes` to delete without a question",
                )
            if not click.confirm(f"Delete {' and '.join(what)}?", err=True):
                click.echo("Nothing was deleted", err=True)
                return

        with waiting_for("Deleting"):
            for run in found:
                store.remove_run(run.run)
                click.echo(f"Deleted {run}", err=True)
            if before is not None and sightings:
                gone = store.remove_sightings(before)
                click.echo(f"Deleted {counted(gone, 'sighting')}", err=True)

        with waiting_for("Writing the file anew"):
            if any(run.state == "on" for run in listed(store, store.runs())):
                click.echo(
                    f"`{database}` keeps its size while a run is on; new rows fill the room, and another "
                    "`toolkit runs prune` gives it back later",
                    err=True,
                )
                return
            size_before = database.stat().st_size
            try:
                store.shrink()
            except ToolkitError as error:
                click.echo(f"The room is left for new rows: {error.message}", err=True)
                return
            click.echo(
                f"`{database}`: {file_size(size_before)} before, {file_size(database.stat().st_size)} now",
                err=True,
            )
