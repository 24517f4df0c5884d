"""`toolkit blast`: the same load on every host at once, for minutes or hours, with the standings live."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.bench.plan import ENDPOINTS
from toolkit.blast.pacing import MOST_RATE, MOST_TIMEOUT_S
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.help_page import Command, advanced, option
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.cli.options import (
    DURATION,
    PROFILE,
    UP_TO_A_DAY,
    database_option,
    hosts_argument,
    hosts_words,
    length_options,
    run_word,
    tls_options,
)
from toolkit.cli.output import print_json, say
from toolkit.cli.places import command_on, words_for
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from toolkit.cli.blast.progress import StoredBlast
    from toolkit.records import Host, LoaderSecond, Sighting
    from toolkit.store import Store

DEFAULT_PROFILE = "contest"
WINDOW_S = 900.0
"""What the standings look back on."""
DURATION_S = WINDOW_S
"""One window of the board."""
LONGEST_S = 365 * 86_400.0
"""Of a blast: more is a slip."""
SCOUT_EVERY_S = 5.0
LOOK_TIMEOUT_S = 5.0
"""Of scout, for all pages of one host, as its own."""
MOST_WAITING = 10_000
"""Sightings that wait for a store that refuses; beyond it the oldest are given up."""
USERS = 32
MOST_USERS = 1_000_000


@click.command("blast", cls=Command, short_help="Load every host at once, and watch who leads.")
@hosts_argument
@click.option("--duration", type=DURATION, help="Length of the load.  [default: 15m]")
@click.option(
    "--users",
    type=click.IntRange(1, MOST_USERS),
    help="For all hosts together, each with one request in flight; rounded up to a multiple of the hosts.  "
    f"[default: {USERS}]",
)
@advanced(
    "--spawn-rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Users started per second, for all hosts together.  [default: all at once, up to 100]",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests per second and host, sent on schedule; `--users` is the most in flight.",
)
@option(
    "--profile",
    aliases=["--dataset-path"],
    metavar="NAME|FILE",
    type=PROFILE,
    help="Prompts: of the catalog, or a file (.toml, .jsonl, .json, else one prompt a line).  "
    f"[default: {DEFAULT_PROFILE}]",
)
@advanced(
    "--endpoint",
    type=click.Choice(ENDPOINTS),
    help="Endpoint to ask; of embeddings only E2E is known.  [default: /v1/chat/completions]",
)
@length_options
@advanced(
    "--mix", type=click.IntRange(0, 100), metavar="PERCENT", help="Share of streamed answers."
)
@advanced(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Most tokens per answer.  [default: the profile's]",
)
@advanced(
    "--model", metavar="NAME", help="Ask for this model.  [default: what each host lists or serves]"
)
@advanced(
    "--canaries",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Unique prompts, each sent twice, which show who answers from a cache; never ranked, "
    "0 for none.  [default: 1]",
)
@advanced(
    "--timeout",
    "request_timeout_s",
    type=DURATION,
    help="Time limit of one answer.  [default: 60s]",
)
@advanced(
    "--processes",
    type=click.IntRange(1, 256),
    help="Processes that generate the load, one core each.  [default: 1]",
)
@advanced(
    "--window",
    type=UP_TO_A_DAY,
    default=f"{WINDOW_S / 60:g}m",
    show_default=True,
    help="Time window of the standings.",
)
@click.option(
    "--resume",
    metavar="RUN",
    type=run_word("blast"),
    help="Go on with a run that was cut off; options not given are as they were.",
)
@click.option("--dry-run", is_flag=True, help="Show what each host would be sent; send nothing.")
@advanced("--no-scout", is_flag=True, help="Do not scrape the hosts during the load.")
@advanced(
    "--scout-every",
    type=DURATION,
    default=f"{SCOUT_EVERY_S:g}s",
    show_default=True,
    help="How often scout scrapes each host.",
)
@advanced(
    "--non-neutral",
    is_flag=True,
    help="Run although a host is on this machine; the run is marked as not valid for ranking.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per host of the final standings."
)
@click.option("--is-demo", is_flag=True, hidden=True, help="Its database is gone at its end.")
@database_option
@tls_options
def command(
    *,
    hosts: tuple[str, ...],
    listed_in: str | None,
    only: tuple[str, ...],
    window: float,
    resume: str | None,
    dry_run: bool,
    no_scout: bool,
    scout_every: float,
    non_neutral: bool,
    as_json: bool,
    is_demo: bool,
    database: Path,
    insecure: bool,
    ca: str | None,
    **load: Any,
) -> None:
    """Load every host at once with the same number of users, count every answer, and show who leads.
    HOSTS are names of hosts.txt, files (`-`: standard input) or URLs; without any, all of hosts.txt.
    Ctrl-C ends it cleanly; what was counted is kept, and `--resume` goes on.

    \b
      toolkit blast hosts.txt --dry-run   what would be sent; sends nothing
      toolkit blast hosts.txt --duration 2h --users 32
    \f
    \b
      toolkit blast hosts.txt --rate 4 --duration 10m
          4 requests per second to each host
      toolkit blast hosts.txt --profile bench --mix 100
          other prompts, all answers streamed
      toolkit blast hosts.txt --input-len 512 --output-len 256:512
          random prompts and answers of so many tokens
      toolkit blast hosts.txt --resume 3f2a9c01d4e7
          go on with a run that was cut off
      toolkit blast hosts.txt --json      the final standings, one object a host

    Watch from elsewhere with `toolkit board --watch` or `toolkit board --serve`. Exits with 1 when nobody
    answered anything, 130 when it was interrupted.
    """
    # `load`: what plan_of takes; None where it was not said
    if dry_run and resume is not None:
        raise click.UsageError("--dry-run shows a new blast; leave --resume out")
    # past all bounds, endless or `nan`: click's own ranges let such a one through
    for name, number, most, limit in (
        ("--duration", load["duration"], LONGEST_S, "a year"),
        ("--spawn-rate", load["spawn_rate"], MOST_USERS, f"{MOST_USERS:,}"),
        ("--rate", load["rate"], MOST_RATE, f"{MOST_RATE:,.0f}"),
        ("--canaries", load["canaries"], 100, "100"),
        ("--timeout", load["request_timeout_s"], MOST_TIMEOUT_S, "an hour"),
    ):
        if number is not None and not number <= most:  # `nan` is neither more nor less
            raise click.UsageError(f"{name} is {limit} at most")

    import asyncio
    import os
    import secrets

    from toolkit.blast import machine
    from toolkit.cli.blast.load import LoadProcess, drive, environment, locustfile
    from toolkit.cli.blast.plan import command_line, hosts_file, plan_of, refuse_other_hosts
    from toolkit.cli.blast.progress import BlastProgress, StoredBlast
    from toolkit.cli.named_run import chosen_run
    from toolkit.store import Store
    from toolkit.units import counted, stopwatch

    found = hosts_from(hosts, listed_in, only)
    with waiting_for("Looking up the hosts' addresses"):
        here = machine.local_hosts(found, ask_resolver=not dry_run)
    not_neutral = machine.sentence(here) if here else None
    if dry_run:
        from toolkit.cli.blast.dry import show

        plan = plan_of(found, **load)
        for note in plan.notes:
            say(note, err=True)
        if not_neutral and not non_neutral:
            say(
                f"Warning: {not_neutral}; without `--non-neutral` the blast will not begin",
                err=True,
            )
        show(plan, scout_every_s=None if no_scout else scout_every, as_json=as_json)
        return

    # all that can be checked before the first request
    keys, tls = keys_for(found), tls_for(insecure=insecure, ca=ca)
    locustfile()
    if not_neutral and not non_neutral:
        raise ToolkitError(
            f"{not_neutral}: the load would take CPU from the server it measures, with no network between them",
            "Start the load from another machine; `--non-neutral` runs it all the same, marked as not valid for ranking",
        )
    allow_open_files()
    occupy_standard_files()
    with Store.open(database) as store:
        resumed, under_load_s = None, 0
        if resume is not None:
            resumed = chosen_run(store, resume, database, "blast")
            refuse_other_hosts(resumed, found, list(store.hosts_of(resume).values()))
            under_load_s = len({second.at_s for _, second in store.loader_seconds(resume)})
        plan = plan_of(found, resumed=resumed, under_load_s=under_load_s, **load)
        newest = store.runs(limit=1)
        for lack in machine.lacks(
            hosts=len(found),
            users=plan.users,
            processes=plan.processes,
            duration_s=plan.duration_s,
            database=database,
            newest_s=newest[0].started_at if newest else None,
        ):
            if lack.stops:
                raise ToolkitError(lack.text, lack.fix)
            say(f"Warning: {lack.text}. {lack.fix}", err=True)
        for note in plan.notes:
            say(note, err=True)

        # the load in a process of its own, and what goes on beside it
        run = resume or secrets.token_hex(6)
        stored = StoredBlast(store, run, window)
        progress = BlastProgress(plan.duration_s, plan.users)

        def scout() -> "Coroutine[Any, Any, None]":
            return _scout(found, keys, store, tls, every_s=scout_every, warn=progress.say)

        besides = [lambda: progress.watch(stored.look), *([] if no_scout else [scout])]
        many = f"each of {len(found):,} hosts" if len(found) > 1 else "one host"
        try:
            with hosts_file(found) as file, progress:
                progress.say(
                    f"Blast `{run}` {'resumes' if resume else 'begins'}: "
                    f"{counted(plan.users_per_host, 'user')} on {many}, {stopwatch(plan.duration_s)}"
                )
                if not_neutral:
                    progress.say(f"Not valid for ranking: {not_neutral}; the run is marked as such")
                words = command_line(
                    plan,
                    run=run,
                    is_resumed=resume is not None,
                    hosts=file,
                    database=database,
                    not_neutral=not_neutral,
                    insecure=insecure,
                    ca=ca,
                )
                child = LoadProcess(words, secrets=keys.values())
                keys_in = {host.api_key_env or "" for host in found}
                code, was_stopped = asyncio.run(
                    drive(child, environment(os.environ, keys_in), besides, say=progress.say)
                )
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

        again = resume_command(
            hosts_words(hosts, listed_in, only),
            run,
            database=database,
            non_neutral=non_neutral,
            no_scout=no_scout,
            insecure=insecure,
            ca=ca,
            window=window,
            scout_every=scout_every,
        )
        exit_code = _show_end(
            store,
            stored,
            code,
            list(child.lines),
            was_stopped=was_stopped,
            database=database,
            not_neutral=not_neutral,
            again=again,
            as_json=as_json,
            is_demo=is_demo,
        )
    sys.exit(exit_code)


async def _scout(
    hosts: "Sequence[Host]",
    keys: "Mapping[str, str]",
    store: "Store",
    tls: "ssl.SSLContext",
    *,
    every_s: float,
    warn: "Callable[[str], None]",
) -> None:
    """Look at each host again and again until cancelled: what it tells of itself under load is kept as sightings."""
    from toolkit.scout.scrape import Pacing, Scout
    from toolkit.scout.watch import HostWatch

    waiting: list[Sighting] = []
    is_warned = False

    def keep(batch: "Sequence[Sighting]") -> None:
        """What the store refuses waits: a locked or full file ends neither look nor load."""
        nonlocal waiting, is_warned
        waiting = [*waiting, *batch][-MOST_WAITING:]
        try:
            store.add_sightings(waiting, hosts)
        except ToolkitError as error:
            if not is_warned:
                warn(f"Warning: {error.message}; scraping goes on and is stored later")
            is_warned = True
        else:
            waiting = []

    pacing = Pacing()
    last = {host.name: store.last_telling(host.name, host.url) for host in hosts}
    watch = HostWatch(
        [Scout(host, tls, keys.get(host.name), LOOK_TIMEOUT_S, pacing) for host in hosts],
        before={name: sighting for name, sighting in last.items() if sighting},
        keep=keep,
        show=lambda _: None,
    )
    await watch.run(None, every_s)


def _show_end(
    store: "Store",
    stored: "StoredBlast",
    code: int,
    lines: "Sequence[str]",
    *,
    was_stopped: bool,
    database: Path,
    not_neutral: str | None,
    again: str,
    as_json: bool,
    is_demo: bool,
) -> int:
    """Show how it came out; the exit code. `code`, `lines`: the load's, `again`: what goes on with it.

    Raises ToolkitError when the load did not end by itself.
    """
    from toolkit.board.reveal import without_steps
    from toolkit.board.standings import json_rows
    from toolkit.cli.blast.load import failure
    from toolkit.cli.board.table import print_board

    run = stored.run
    if not stored.has_begun():
        # of a run that was to go on, neither its old standings nor its old end say anything of this load
        if not was_stopped:
            raise failure(code, lines, run=run, is_begun=False, resume_command=again)
        say("Stopped before the first request", err=True)
        return INTERRUPTED
    with waiting_for("Reading"):
        last = stored.board()
    if last is not None and last.at_s is not None:
        if as_json:
            for row in json_rows(last):
                print_json(row)
        else:
            print_board(last, list(without_steps(event for _, event in store.events(run))))
        strain = strain_of([second for _, second in store.loader_seconds(run)])
        if strain:
            say(f"Warning: {strain}", err=True)
        if not_neutral and as_json:  # the board says so itself
            say(f"Not valid for ranking: {not_neutral}", err=True)
        if not is_demo:
            board = command_on(database, "board", "--run", run)
            say(f"Kept in `{database}`; `{board}` shows these standings again", err=True)
    ended = store.run(run)
    if ended is None or ended.ended_at is None:
        raise failure(code, lines, run=run, is_begun=True, resume_command=again)
    if was_stopped:
        say(f"Stopped; go on with `{again}`", err=True)
        return INTERRUPTED
    # of the whole run: the window of the standings may hold no answer
    sums = store.tally_sums(run)
    if not any(one.ok for (_, _, kind), one in sums.items() if kind == "ranked"):
        say("No host answered any request; `toolkit scout` shows why", err=True)
        return FAILED
    return WORKED


def resume_command(
    hosts: "Sequence[str]",
    run: str,
    *,
    database: Path,
    non_neutral: bool = False,
    no_scout: bool = False,
    insecure: bool = False,
    ca: str | None = None,
    window: float = WINDOW_S,
    scout_every: float = SCOUT_EVERY_S,
) -> str:
    """What goes on with this run: whom it loads, and what the run does not remember."""
    words = ["toolkit", "blast", *hosts, "--resume", run]
    words += ["--non-neutral"] if non_neutral else []
    words += ["--no-scout"] if no_scout else []
    words += ["--insecure"] if insecure else []
    words += ["--ca", ca] if ca else []
    words += ["--window", f"{window:g}s"] if window != WINDOW_S else []
    words += ["--scout-every", f"{scout_every:g}s"] if scout_every != SCOUT_EVERY_S else []
    return shlex.join([*words, *words_for(database)])


def strain_of(seconds: "Sequence[LoaderSecond]") -> str | None:
    """In how many seconds the load generator itself was the limit, by what, and the way out; None: in none."""
    limited = [second for second in seconds if second.limited]
    if not limited:
        return None
    # a second counts once, however many workers were at their limit
    limited_s = len({second.at_s for second in limited})
    total_s = len({second.at_s for second in seconds})
    cpu = max(second.cpu_share or 0.0 for second in limited)
    lag_ms = max(second.lag_ms or 0.0 for second in limited)
    why = [f"used up to {cpu:.0%} of a core"] if cpu else []
    why += [f"was up to {lag_ms:,.0f} ms late"] if lag_ms else []
    by = f": a process {' and '.join(why)}" if why else ""
    return (
        f"this machine was the limit in {limited_s:,} of {total_s:,} s ({limited_s / total_s:.0%}){by}. "
        "These seconds describe it and not the hosts; use fewer users, more `--processes`, or a quieter machine"
    )
