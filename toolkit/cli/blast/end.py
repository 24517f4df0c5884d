"""How `toolkit blast` ends: the final standings, what the load generator was the limit of, and why a load died."""

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from toolkit.board.standings import Board
from toolkit.cli.blast.child import locustfile, told_error
from toolkit.cli.blast.drive import Ended
from toolkit.cli.blast.options import SCOUT_EVERY_S, WINDOW_S
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.places import command_on, words_for
from toolkit.errors import ToolkitError
from toolkit.records import Event, LoaderSecond
from toolkit.store import Store

if TYPE_CHECKING:
    from toolkit.cli.blast.plan import ReadyBlast

TOLD_LINES = 8
"""Of the output of a load that failed without a word of its own."""


def tell(
    blast: "ReadyBlast",
    store: Store,
    board: Callable[[], Board | None],
    ended: Ended,
    lines: Sequence[str],
    *,
    has_begun: bool,
) -> int:
    """Show how it came out; the exit code. Raises ToolkitError when the load did not end by itself."""
    if not has_begun:
        # of a run that was to go on, neither its old standings nor its old end say anything of this load
        if not ended.was_stopped:
            raise _failure(blast, ended, lines, is_begun=False)
        click.echo("Stopped before the first request", err=True)
        return INTERRUPTED
    last = board()
    if last is not None and last.at_s is not None:
        events = [event for _, event in store.events(blast.run)]
        _show(last, events, as_json=blast.options.as_json)
        for sentence in _notes(blast, store):
            click.echo(sentence, err=True)
    run = store.run(blast.run)
    if run is None or run.ended_at is None:
        raise _failure(blast, ended, lines, is_begun=True)
    if ended.was_stopped:
        click.echo(f"Stopped; go on with `{resume_command(blast)}`", err=True)
        return INTERRUPTED
    if not _answered(blast, store):
        click.echo("No host answered a single request; `toolkit scout` tells why", err=True)
        return FAILED
    return WORKED


def _answered(blast: "ReadyBlast", store: Store) -> bool:
    """Whether any ranked request of the whole run was ok; the window of the standings may hold none."""
    sums = store.tally_sums(blast.run)
    return any(one.ok for (_, _, kind), one in sums.items() if kind == "ranked")


def _show(last: Board, events: Sequence[Event], *, as_json: bool) -> None:
    if as_json:
        from toolkit.cli.board.verb import print_json_board

        print_json_board(last)
    else:
        from toolkit.cli.board.table import print_board

        print_board(last, events)


def resume_command(blast: "ReadyBlast") -> str:
    """What goes on with this run: whom it loads, and what the run does not remember."""
    options = blast.options
    not_kept = {
        "--non-neutral": options.non_neutral,
        "--no-scout": options.no_scout,
        "--insecure": options.insecure,
    }
    again = [name for name, is_said in not_kept.items() if is_said]
    values = {
        "--ca": options.ca,
        "--window": f"{options.window:g}s" if options.window != WINDOW_S else None,
        "--scout-every": f"{options.scout_every:g}s"
        if options.scout_every != SCOUT_EVERY_S
        else None,
    }
    again += [word for name, value in values.items() if value for word in (name, value)]
    words = ["toolkit", "blast", *options.hosts, "--resume", blast.run, *again]
    return shlex.join([*words, *words_for(options.database)])


def _notes(blast: "ReadyBlast", store: Store) -> Iterator[str]:
    seconds = [second for _, second in store.loader_seconds(blast.run)]
    strain = strain_of(seconds)
    if strain:
        yield f"Warning: {strain.sentence}"
    if blast.not_neutral:
        yield f"Not neutral: {blast.not_neutral}; these figures rank nobody"
    again = command_on(blast.options.database, "board", "--run", blast.run)
    yield f"Kept in `{blast.options.database}`; `{again}` shows these standings again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """In how many seconds the load generator itself was the limit, and by what."""

    limited_s: int
    total_s: int
    most_cpu_share: float | None
    most_lag_ms: float | None

    @property
    def sentence(self) -> str:
        """All of it, and the way out."""
        cpu, lag = self.most_cpu_share, self.most_lag_ms
        why = [
            *([f"used up to {cpu:.0%} of a core"] if cpu else []),
            *([f"was up to {lag:,.0f} ms late"] if lag else []),
        ]
        told = f": a process {' and '.join(why)}" if why else ""
        return (
            f"this machine was the limit in {self.limited_s:,} of {self.total_s:,} s "
            f"({self.limited_s / self.total_s:.0%}){told}. These seconds describe it and not the hosts; use fewer "
            "users, more `--processes`, or a quieter machine"
        )


def strain_of(seconds: Sequence[LoaderSecond]) -> Strain | None:
    """Sum up the seconds that any worker was limited in; None: there is none."""
    limited = [second for second in seconds if second.limited]
    if not limited:
        return None
    return Strain(
        limited_s=len({second.at_s for second in limited}),
        total_s=len({second.at_s for second in seconds}),
        most_cpu_share=max((second.cpu_share or 0.0 for second in limited), default=None),
        most_lag_ms=max((second.lag_ms or 0.0 for second in limited), default=None),
    )


def _failure(
    blast: "ReadyBlast", ended: Ended, lines: Sequence[str], *, is_begun: bool
) -> ToolkitError:
    """Why the load is over before its time, and how to go on."""
    told = told_error(lines)
    if told and not is_begun:
        return told
    how = _how(ended.code)
    if not is_begun:
        said = "\n".join(lines[-TOLD_LINES:]).strip()
        return ToolkitError(
            f"the load {how} before its first request" + (f"; it said:\n{said}" if said else ""),
            f"Run it by hand to see more: `locust -f {locustfile()} --headless`",
        )
    why = f": {told.message}" if told else ""
    return ToolkitError(
        f"the load of run `{blast.run}` {how}{why}; what it had counted up to then is kept",
        f"Go on with `{resume_command(blast)}`",
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
