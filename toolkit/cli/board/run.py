"""Which blast a board is of: the one that is named, else the newest."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.help_page import advanced
from toolkit.cli.options import run_word
from toolkit.cli.output import print_json
from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.units import clock

if TYPE_CHECKING:
    from toolkit.store import Store

run_option = advanced(
    "--run",
    "run_id",
    metavar="RUN",
    type=run_word("blast"),
    help="Which blast.  [default: the newest]",
)


def run_of(
    store: "Store",
    run_id: str | None,
    database: Path,
    at: float | None = None,
    *,
    as_json: bool = False,
) -> Run:
    """The run that is named, else the newest blast, or the newest that had begun by a moment.

    Raises ToolkitError when there is none, and says what else there is, with `as_json` as an object, too.
    """
    from toolkit.cli.named_run import chosen_run

    if run_id is None and not store.runs(verb="blast", limit=1):
        from toolkit.board.inventory import inventory

        there = inventory(store)
        if as_json:
            print_json(asdict(there) | {"next": command_on(database, *there.next_step)})
        if there.words:
            raise ToolkitError(
                f"`{database}` holds no blast yet, only {there.words}",
                f"`{command_on(database, *there.next_step)}` comes next. `{command_on(database, 'board', '--serve')}` shows "
                "what is there as a page, which turns into the leaderboard once a blast begins",
            )
    run = chosen_run(store, run_id, database, "blast")
    if at is None:
        return run
    if run_id is None:
        run = next((each for each in store.runs(verb="blast") if each.started_at < at), run)
    if at <= run.started_at:
        raise ToolkitError(
            f"the run `{run.id}` began only at {clock(run.started_at)}",
            "Give a later time with `--at`",
        )
    return run
