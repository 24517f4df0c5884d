"""`toolkit runs`: what is stored of every run; export, merge and prune."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from toolkit.cli import suggestions
from toolkit.cli.named_run import run_of
from toolkit.cli.options import database_option
from toolkit.errors import ToolkitError
from toolkit.units import bytes_of, seconds_of

if TYPE_CHECKING:
    from toolkit.cli.runs.export import Rows

EXAMPLES = """
List the runs in the database, the last begun first: benches, blasts and all others.

\b
  toolkit runs
  toolkit runs --json
  toolkit runs export 3f9c2a7b1d04 --csv -o blast.csv
  toolkit runs merge other-machine.db   take over another database's runs
  toolkit runs prune --keep 7d          forget what is older than a week
"""


@click.group(
    "runs",
    help=EXAMPLES,
    short_help="List, export, merge and prune what was measured.",
    invoke_without_command=True,
)
@click.option(
    "--verb",
    metavar="VERB",
    shell_complete=suggestions.verb,
    help="Only runs of this command, e.g., `blast`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")
@database_option
@click.pass_context
def command(context: click.Context, verb: str | None, as_json: bool, database: Path) -> None:
    """List all runs, unless a subcommand is called (the help text is EXAMPLES)."""
    if context.invoked_subcommand:
        if verb or as_json:
            raise click.UsageError("--verb and --json are for the list; leave the other word out")
        return
    from toolkit.cli.runs.list import listed, print_list
    from toolkit.cli.waiting import waiting_for
    from toolkit.store import Store

    with waiting_for("Counting"), Store.open_readonly(database) as store:
        runs = listed(store, store.runs(verb=verb), time.time())
    print_list(runs, verb, as_json=as_json)


def _database(context: click.Context, database: Path) -> Path:
    """`--db` may stand before or after the subcommand; the later word counts."""
    above = context.parent
    if above and context.get_parameter_source("database") is not ParameterSource.COMMANDLINE:
        return Path(above.params["database"])
    return database


@command.command("export", short_help="Write a run's rows as CSV or JSON lines.")
@click.argument("run_id", metavar="RUN", shell_complete=suggestions.run())
@click.option("--csv", "format_", flag_value="csv", help="With a header line.  [default]")
@click.option("--jsonl", "format_", flag_value="jsonl", help="One JSON object a line.")
@click.option(
    "--shots",
    "rows",
    flag_value="shots",
    help="A row a timed request: a bench's, a blast's canaries.",
)
@click.option(
    "--tallies", "rows", flag_value="tallies", help="A row a host, second and kind: a blast's."
)
@click.option(
    "--requests", "rows", flag_value="requests", help="A row a request that arrived: a capture's."
)
@click.option(
    "-o",
    "--out",
    "--output",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Into this file.  [default: standard output]",
)
@database_option
@click.pass_context
def export(
    context: click.Context,
    run_id: str,
    format_: Literal["csv", "jsonl"] | None,
    rows: "Rows | None",
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
    """  # noqa: D301 (click reads the character itself)
    from toolkit.cli.runs.export import USUAL_ROWS, run_rows, write_rows
    from toolkit.store import Store

    database = _database(context, database)
    is_jsonl = output is not None and output.suffix in (".jsonl", ".ndjson")
    with Store.open_readonly(database) as store:
        run = run_of(store, run_id, database)
        wanted = rows or USUAL_ROWS.get(run.verb, "shots")
        count = write_rows(
            run_rows(store, run, wanted), format_ or ("jsonl" if is_jsonl else "csv"), output
        )
    if not count:
        usual = USUAL_ROWS.get(run.verb, "shots")
        other = usual if usual != wanted else "shots" if wanted == "tallies" else "tallies"
        click.echo(f"Run {run.id} has no {wanted}; `--{other}` writes its {other}", err=True)
    elif output:
        click.echo(f"{count:,} rows in {output}", err=True)


ANOTHER = "Name the database of another machine, one that you may write: it is brought up to date"


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

    A run that is here already is skipped, and so is one that is still on. The other files keep what they have.

    \b
      toolkit runs merge other-machine.db
      toolkit runs merge one.db two.db --db data/toolkit.db
    """  # noqa: D301 (click reads the character itself)
    from toolkit.cli.runs.merge import merge_from
    from toolkit.store import Store

    database = _database(context, database)
    for other in others:
        if other.exists() and database.exists() and other.samefile(database):
            raise ToolkitError(f"`{other}` is the database itself", "Name another machine's file")
        try:
            Store.open_existing(other).close()  # brings it up to date
        except ToolkitError as error:
            # --db is another file here
            hint = ANOTHER if "--db" in error.hint else error.hint
            raise ToolkitError(error.message, hint) from error
    with Store.open(database) as store:
        for other in others:
            merge_from(store, other, time.time())


class Keep(click.ParamType["Kept"]):
    """What to keep: so many runs, those of so long, or those that fit so many bytes."""

    name = "keep"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> "Kept":
        """Read `5`, `7d` or `2GB`."""
        text = str(value).strip()
        if text.isascii() and text.isdecimal() and len(text) < 9:
            return "runs", float(text)
        seconds, size = seconds_of(text), bytes_of(text)
        if seconds:
            return "seconds", seconds
        if size:
            return "bytes", float(size)
        return self.fail(f"`{value}` is no amount; write e.g. `5` runs, `7d` or `2GB`", param, ctx)


Kept = tuple[Literal["runs", "seconds", "bytes"], float]


@command.command("prune", short_help="Forget the oldest runs, and give their room back.")
@click.option(
    "--keep",
    type=Keep(),
    required=True,
    metavar="5|7d|2GB",
    help="Keep the newest so many runs, those begun within so long, or as many as fit.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@database_option
@click.pass_context
def prune(context: click.Context, keep: Kept, yes: bool, database: Path) -> None:
    """Delete the oldest runs with everything of them, then write the file anew without the room they took.

    With a time, what scout saw before then goes, too. Nothing is deleted before you say yes, and never a run that
    is still on. Writing the file anew takes up to twice as much disk again as is kept, for a moment.

    \b
      toolkit runs prune --keep 7d
      toolkit runs prune --keep 2GB --yes
    """  # noqa: D301 (click reads the character itself)
    from toolkit.cli.runs.prune import prune_by
    from toolkit.store import Store

    database = _database(context, database)
    with Store.open_existing(database) as store:
        prune_by(store, database, keep, is_sure=yes, now=time.time())
