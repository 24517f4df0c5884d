"""`toolkit demo`: the whole job in small on this machine, with no GPU and no network."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.cli.help_page import Command
from toolkit.cli.output import say
from toolkit.cli.places import DATABASE
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import subprocess

LEAST_SECONDS, MOST_SECONDS = 12, 3600
HOSTS = "hosts.txt"
FLEET_LIMIT_S = 30.0
LOOK_EVERY_S = 0.1
CAST = {
    "alice": "gptq-int4",
    "bob": "awq",
    "carol": "fp8",
    "dave": "cached",
    "erin": "first-token",
    "frank": "switcher",
    "grace": "flaky",
}
"""Host -> personality: the contest's. `cold`, which thinks for 89 s, and `drip`, which never ends, would fill the minute
with waiting."""
SWITCHER = "frank"
SPEED = 4
"""So many times as fast as the contest's servers: three seconds for an answer would leave a minute few of them."""
CACHE_HIT_S = 0.02
"""Of the simulator's time, so 5 ms as in the contest."""
USERS_PER_HOST = 4
CANARY_PERCENT = 10
"""A minute is short: of the usual 1 % there would be one pair at a host of five requests a second, and what cuts its
answers is known by what the others answer to the same canaries."""
BENCH_REQUESTS = 32
SCOUT_EVERY = "1s"
FALL_SHARE = 0.6
"""Of the blast is over when the switcher falls: the board's window, which is half of it, must hold the whole downtime at the end."""
DOWN_SHARE = 1 / 6
"""Of the blast the switcher is down for."""
OWN_HOSTS = "For your own hosts write hosts.txt, a URL a line, and run the same commands on a machine that serves none of them."


@click.command(
    "demo", cls=Command, short_help="A small example contest on this machine, without a GPU."
)
@click.option(
    "--seconds",
    type=click.IntRange(LEAST_SECONDS, MOST_SECONDS),
    default=60,
    help="Length of the blast.",
)
@click.option(
    "--page/--no-page",
    default=True,
    show_default=False,
    help="Serve the leaderboard at the end: on a terminal until Ctrl-C, else only to see that it answers.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the leaderboard.  [default: 8501, or a free one]",
)
@click.option("--real", is_flag=True, help="Put a real vLLM on the CPU among the hosts.")
@click.option("--keep", is_flag=True, help="Keep the folder with hosts file and database.")
def command(*, seconds: int, page: bool, port: int | None, real: bool, keep: bool) -> None:
    """Play a contest on this machine: seven simulated servers, each of another kind, are scouted, benched
    and blasted; one of them restarts in the middle; then the result is explained and the leaderboard served.
    Each step shows the command that does it for your own hosts. No other machine is contacted,
    and nothing is kept without --keep.

    \b
      toolkit demo
      toolkit demo --no-page              end with the explanation
      toolkit demo --seconds 300 --keep   a longer blast, whose database stays
      toolkit demo --real
          with a real vLLM on this machine's CPU among the hosts
    """
    # Ctrl-C, SIGTERM and a closed terminal end it, and what it made goes
    if port is not None and not page:
        raise click.UsageError("--port is the leaderboard's, and --no-page serves none")

    from toolkit.cli.blast.load import locustfile
    from toolkit.cli.leaderboard import page_file, page_port
    from toolkit.cli.real_vllm import vllm_home
    from toolkit.cli.signals import signals_raise

    try:
        with signals_raise(lambda number: SystemExit(128 + number)):  # as a shell tells it
            # what is missing is told before anything begins
            home = vllm_home() if real else None
            locustfile()
            if page:
                page_file()
                page_port(port)
            with _folder(keep=keep) as folder:
                _play(folder, home, seconds)
                if page:
                    _show_page(folder, page_port(port), seconds // 2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextlib.contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    """A folder of the demo's own, so that the user's database learns nothing of it."""
    import shutil
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="toolkit-demo-"))
    except OSError as error:
        raise ToolkitError(
            "there is no folder for temporary files that can be written to",
            "Name one in the variable TMPDIR",
        ) from error
    try:
        yield folder
    finally:
        if keep:
            click.echo(f"\nHosts file and database stay in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            click.echo(f"\n{folder} was deleted with all runs in it; --keep keeps it.")


def _play(folder: Path, home: Path | None, seconds: int) -> None:
    """A fleet, then the toolkit's own commands on it, then the summary. `home`: of a real vLLM that plays, too."""
    from toolkit.cli.children import TOOLKIT, server, wait_until_up
    from toolkit.cli.real_vllm import NAME, real_host

    say(
        f"A contest in small: {len(CAST)} simulated servers on this machine, {SPEED} times as fast as real ones."
    )
    say(f"Its hosts file and database lie in {folder} until it ends; --keep leaves them there.")
    with contextlib.ExitStack() as running:
        real_line = ""
        if home:
            click.echo("A real vLLM starts on the CPU, which takes up to a minute ...")
            real_line = running.enter_context(real_host(home, folder))

        path, log = folder / HOSTS, folder / "fleet.log"
        settings = {
            "cache_hit_s": f"{CACHE_HIT_S:g}",
            "down_after_s": "none",  # the switcher waits for the signal
            "down_for_s": f"{seconds * DOWN_SHARE * SPEED:g}",  # in the simulator's time
        }
        words = [*TOOLKIT, "sim", "fleet", *(f"{name}={kind}" for name, kind in CAST.items())]
        words += ["--time-scale", f"{1 / SPEED:g}", "--out", HOSTS]
        words += [word for each in settings.items() for word in ("--set", "=".join(each))]
        fleet = running.enter_context(server(words, folder, log))
        wait_until_up(
            fleet,
            "the simulated fleet",
            log,
            path.is_file,  # it appears whole, once all of them listen
            limit_s=FLEET_LIMIT_S,
            hint="Is the machine overloaded? `--keep` leaves the fleet's log",
        )
        path.write_text(path.read_text() + real_line)

        _headline(
            "\n1. Scout: what is behind each address, and what changed since the last scrape?"
        )
        with _begun(folder, "scout", HOSTS):
            pass
        _headline(
            "\n2. Time all of them at the same moment, and explain what looks fast for another reason."
        )
        with _begun(folder, "bench", HOSTS, "--num-prompts", str(BENCH_REQUESTS)):
            pass
        _blast(folder, fleet, len(CAST) + bool(home), seconds)

    _headline("\n4. What it means:")
    click.echo()
    cast = [f"{name} {kind}" for name, kind in CAST.items()]
    cast += [f"{NAME} a vLLM on the CPU"] if home else []
    for line in (
        *_summary(folder / DATABASE, seconds // 2),
        "",
        f"What they were (`toolkit sim list`): {', '.join(cast)}.",
        OWN_HOSTS,
    ):
        say(f"   {line}".rstrip())


def _blast(folder: Path, fleet: "subprocess.Popen[bytes]", hosts: int, seconds: int) -> None:
    """Blast them; in the midst of it the switcher falls, and a mark says why."""
    import subprocess

    from toolkit.cli.children import TOOLKIT, environment
    from toolkit.store import Store

    fall_at_s = seconds * FALL_SHARE
    _headline(
        f"\n3. Blast all of them for {seconds} s; after {fall_at_s:.0f} s {SWITCHER} restarts with another model."
    )
    say(
        "   (--non-neutral: here the load generator is on the same machine as the hosts; yours should not be)"
    )
    words = ["blast", HOSTS, "--duration", f"{seconds}s", "--window", f"{seconds // 2}s"]
    words += ["--users", str(USERS_PER_HOST * hosts), "--canaries", str(CANARY_PERCENT)]
    words += ["--scout-every", SCOUT_EVERY, "--non-neutral"]
    with _begun(folder, *words, unseen=["--is-demo"]) as process:
        began: float | None = None
        """By the blast's own clock."""
        has_fallen = False
        while process.poll() is None:
            if began is None:
                with (
                    contextlib.suppress(ToolkitError),
                    Store.open_readonly(folder / DATABASE) as store,
                ):
                    runs = store.runs(verb="blast", limit=1)
                    began = runs[0].started_at if runs else None
            elif not has_fallen and time.time() >= began + fall_at_s:
                fleet.send_signal(signal.SIGUSR1)
                # it has nothing to print beside one that has
                subprocess.run(  # noqa: S603 (our own words)
                    [*TOOLKIT, "mark", SWITCHER, "AWQ goes, GPTQ comes"],
                    cwd=folder,
                    env=environment(),
                    capture_output=True,
                    check=False,
                )
                has_fallen = True
            time.sleep(LOOK_EVERY_S)


@contextlib.contextmanager
def _begun(
    folder: Path, *words: str, unseen: Sequence[str] = ()
) -> "Iterator[subprocess.Popen[bytes]]":
    """Show a command of the toolkit and start it in the folder; what it prints is its own. Raises ToolkitError unless it works."""
    from toolkit.cli.children import TOOLKIT, command

    click.echo(f"   $ toolkit {' '.join(words)}\n")
    with command([*TOOLKIT, *words, *unseen], folder) as process:
        yield process
    if process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        raise ToolkitError(
            f"`toolkit {words[0]}` ended with exit code {process.returncode}",
            "Its own words are above; `--keep` leaves its files",
        )


def _summary(database: Path, window_s: int) -> list[str]:
    """What the standings, the verdicts and the outage mean together, a sentence each."""
    from toolkit.board.feed import Feed
    from toolkit.board.summary import summary
    from toolkit.store import Store
    from toolkit.units import time_of_day

    with Store.open_readonly(database) as store:
        (blast,) = store.runs(verb="blast", limit=1)
        (bench,) = store.runs(verb="bench", limit=1)
        feed = Feed(store, blast)
        return summary(
            feed.board(window_s=window_s),
            clock=time_of_day,
            bench={name: found for (name, _), found in store.verdicts(bench.id).items()},
            outages={host.name: feed.outages(host.name)[1] for host in feed.hosts},
            events=feed.events(),
        )


def _show_page(folder: Path, port: int, window_s: int) -> None:
    """Serve the leaderboard until Ctrl-C; where nobody watches, see only that it answers."""
    from toolkit.cli.children import refuse_dead
    from toolkit.cli.leaderboard import page_log, page_url, served

    with served(folder / DATABASE, port, folder) as process:
        link = f"{page_url(port)}/?window={window_s}s"
        if not all(file and file.isatty() for file in (sys.stdin, sys.stdout)):
            click.echo(f"\nThe leaderboard answers at {link}")
            return
        _headline(f"\nThe leaderboard: {link}")
        with contextlib.suppress(KeyboardInterrupt):
            # in here: whoever reads it may press at once
            click.echo("Ctrl-C ends it.")
            process.wait()
            refuse_dead(process, "the leaderboard", page_log(folder))


def _headline(text: str) -> None:
    """In bold on a terminal."""
    from rich.text import Text

    from toolkit.report.tables import screen

    screen().print(Text(text, style="bold"))
