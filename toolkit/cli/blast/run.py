"""What `toolkit blast` does once its command line is read: check, start the load, look beside it, show who leads."""

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from toolkit.blast import checks, limits
from toolkit.blast.neutrality import neighbours, sentence
from toolkit.board.feed import Feed
from toolkit.board.standings import Board
from toolkit.cli.blast.beside import look_beside
from toolkit.cli.blast.child import LoadProcess, locustfile
from toolkit.cli.blast.command import command_line, hosts_file
from toolkit.cli.blast.drive import Drive, Ended, environment
from toolkit.cli.blast.options import BlastOptions
from toolkit.cli.blast.plan import BlastPlan, ReadyBlast, Resumed, plan_of, refuse_other_hosts
from toolkit.cli.blast.progress import BlastProgress, Look
from toolkit.cli.exit_codes import INTERRUPTED, WORKED
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host
from toolkit.store import Store
from toolkit.units import counted, stopwatch

MEET_EVERY_S = 0.25
KNOWN_RUNS = 5
"""So many of the newest are named after one that is not known."""
NOT_RELAYED = (
    # its introduction, and its words to whoever sits before it
    *("Blast of ", "Profile ", "The hosts' /metrics", "Run ", "Waiting "),
    # told at the end, with our own figures
    "CPU usage ",
    # told as our own error; and a traceback
    *("Error: ", "Hint: ", "Traceback ", " "),
    # gevent's word for our own interrupt, and Python's where that meets it still starting
    *("KeyboardInterrupt", "Fatal Python error", "Python runtime state"),
)
"""How lines of the load's output begin that are kept for the case of its failure."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
"""A line of gevent's below each exception."""


def run_blast(options: BlastOptions) -> int:
    """Blast every host; the exit code. The first Ctrl-C ends the load cleanly, a second one everything."""
    try:
        return _blast(options)
    except KeyboardInterrupt:
        return INTERRUPTED


def _blast(options: BlastOptions) -> int:
    hosts = hosts_from(options.hosts)
    if options.dry_run:
        from toolkit.cli.blast.dry import show

        show(plan_of(options, hosts), options, _not_neutral(hosts, ask_resolver=False))
        return WORKED
    blast = _prepared(options, hosts)
    with Store.open(options.database) as store:
        return _run(blast, store)


def _prepared(options: BlastOptions, hosts: Sequence[Host]) -> ReadyBlast:
    """Check everything that can be checked before the first request. Raises ToolkitError."""
    keys = keys_for(hosts)
    tls_for(insecure=options.insecure, ca=options.ca)
    locustfile()
    not_neutral = _not_neutral(hosts)
    if not_neutral and not options.non_neutral:
        raise ToolkitError(
            f"{not_neutral}: the load would take CPU from the server it measures, and no network lies between",
            "Start the load from another machine; `--non-neutral` runs it all the same and marks the run",
        )
    allow_open_files()
    occupy_standard_files()
    with Store.open(options.database) as store:
        old = _old_run(options, hosts, store)
        newest = store.runs(limit=1)
    plan = plan_of(options, hosts, old)
    _check_machine(plan, options.database, newest[0].started_at if newest else None)
    for note in plan.notes:
        click.echo(note, err=True)
    return ReadyBlast(
        options=options,
        run=options.resume or secrets.token_hex(6),
        plan=plan,
        keys=keys,
        not_neutral=not_neutral,
    )


def _not_neutral(hosts: Sequence[Host], *, ask_resolver: bool = True) -> str | None:
    found = neighbours(checks.targets(hosts, ask_resolver=ask_resolver), checks.own_names())
    return sentence(found) if found else None


def _old_run(options: BlastOptions, hosts: Sequence[Host], store: Store) -> Resumed | None:
    run_id = options.resume
    if run_id is None:
        return None
    run = store.run(run_id)
    if run is None or run.verb != "blast":
        known = ", ".join(f"`{each.id}`" for each in store.runs(verb="blast", limit=KNOWN_RUNS))
        raise ToolkitError(
            f"`{options.database}` has no blast `{run_id}` to go on with",
            f"Known blasts: {known or 'none yet'}",
        )
    refuse_other_hosts(run, hosts, list(store.hosts_of(run_id).values()))
    try:
        settings = json.loads(run.settings)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ToolkitError(
            f"the settings of run `{run_id}` are not as the toolkit writes them", "Begin a new one"
        )
    return Resumed(
        run=run,
        settings=settings,
        under_load_s=len({second.at_s for _, second in store.loader_seconds(run_id)}),
    )


def _check_machine(plan: BlastPlan, database: Path, newest_s: float | None) -> None:
    """Compare what the blast needs with what this machine has. Raises ToolkitError for what cannot work."""
    concerns = limits.known(
        limits.open_files(checks.open_files_limit(), users=plan.users, processes=plan.processes),
        limits.ports(checks.ports_for_one_host(), users_per_host=plan.users_per_host),
        limits.disk(
            checks.free_bytes(database),
            expected_bytes=limits.growth_bytes(hosts=len(plan.hosts), duration_s=plan.duration_s),
        ),
        limits.clock(time.time(), newest_s=newest_s),
    )
    for concern in concerns:
        if concern.stops:
            raise ToolkitError(concern.text, concern.fix)
        click.echo(f"Warning: {concern.text}. {concern.fix}", err=True)


# --- run -------------------------------------------------------------------------------------------


class Following:
    """Reads the run that the child writes."""

    def __init__(self, blast: ReadyBlast, store: Store) -> None:
        self.begun_at: float | None = None
        """When the load began, or went on, by the wall clock."""
        self._blast, self._store = blast, store
        self._earlier = len(self._beginnings())
        self._feed: Feed | None = None

    async def meet(self) -> None:
        """Wait until the load has begun, and leave a mark at the run if it is not neutral."""
        while self.begun_at is None:
            await asyncio.sleep(MEET_EVERY_S)
            self.begun_at = next(iter(await asyncio.to_thread(self._new_beginnings)), None)
        if self._blast.not_neutral:
            text = f"not neutral: {self._blast.not_neutral}"
            mark = Event(run=self._blast.run, at=self.begun_at, kind="mark", text=text)
            await asyncio.to_thread(self._store.add_event, mark)

    def has_begun(self) -> bool:
        """Whether this load has; what a run that it resumes had before does not count."""
        return bool(self._new_beginnings())

    def board(self) -> Board | None:
        """The newest standings; None: the run is not in the database. Raises ToolkitError."""
        if self._feed is None:
            run = self._store.run(self._blast.run)
            if run is None:
                return None
            self._feed = Feed(self._store, run, everything=True)
        self._feed.refresh()
        return self._feed.board(window_s=max(1, round(self._blast.options.window)))

    def _beginnings(self) -> list[float]:
        return [
            event.at
            for _, event in self._store.events(self._blast.run)
            if event.kind in ("start", "resume")
        ]

    def _new_beginnings(self) -> list[float]:
        """Told apart by their number: a clock that is set back would place a new one before an old one."""
        return self._beginnings()[self._earlier :]


def _run(blast: ReadyBlast, store: Store) -> int:
    plan = blast.plan
    following = Following(blast, store)
    progress = BlastProgress(plan.duration_s, plan.users)
    with hosts_file(plan.hosts) as file, progress:
        for line in _beginning(blast):
            progress.say(line)
        ended, lines = asyncio.run(_drive(blast, store, file, following, progress))
    from toolkit.cli.blast.end import tell

    return tell(blast, store, following.board, ended, lines, has_begun=following.has_begun())


async def _drive(
    blast: ReadyBlast, store: Store, file: Path, following: Following, progress: BlastProgress
) -> tuple[Ended, list[str]]:
    options, plan = blast.options, blast.plan
    words = command_line(plan, options, run=blast.run, hosts=file, not_neutral=blast.not_neutral)
    child = LoadProcess(words, secrets=blast.keys.values())
    besides = [following.meet, lambda: progress.watch(_looks(following))]
    if not options.no_scout:
        tls = tls_for(insecure=options.insecure, ca=options.ca)
        besides.append(
            lambda: look_beside(
                plan.hosts,
                blast.keys,
                store,
                tls=tls,
                every_s=options.scout_every,
                warn=progress.say,
            )
        )
    drive = Drive(
        child,
        environment(os.environ, {host.api_key_env or "" for host in plan.hosts}),
        besides,
        on_line=lambda line: _relay(line, progress.say),
        say=progress.say,
    )
    return await drive.run(), list(child.lines)


def _looks(following: Following) -> Look:
    def look() -> tuple[Board, float] | None:
        board = None if following.begun_at is None else following.board()
        return (
            None
            if board is None or following.begun_at is None
            else (board, time.time() - following.begun_at)
        )

    return look


def _relay(line: str, say: Callable[[str], None]) -> None:
    """Show what the load has to say to a person while it goes on, and not what is said here already."""
    if line.strip() and not line.startswith(NOT_RELAYED) and not MOMENT.match(line):
        say(line)


def _beginning(blast: ReadyBlast) -> Iterator[str]:
    plan, told = blast.plan, "resumes" if blast.options.resume else "begins"
    users, hosts = plan.users_per_host, len(plan.hosts)
    load = f"{counted(users, 'user')} on {f'each of {hosts:,} hosts' if hosts > 1 else 'one host'}"
    yield f"Blast `{blast.run}` {told}: {load}, {stopwatch(plan.duration_s)}"
    if blast.not_neutral:
        yield f"Not neutral: {blast.not_neutral}; the run is marked, and its figures rank nobody"
