"""What `toolkit demo` does once its command line is read: a fleet, then the toolkit's own commands, the story, the page."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from toolkit.cli.blast.child import locustfile
from toolkit.cli.children import TOOLKIT, command, environment, refuse_dead, server
from toolkit.cli.demo.cast import (
    BENCH_REQUESTS,
    CANARY_PERCENT,
    CAST,
    SCOUT_EVERY,
    SPEED,
    SWITCHER,
    USERS_PER_HOST,
    Scenes,
    fleet_words,
    scenes,
)
from toolkit.cli.demo.options import DemoOptions
from toolkit.cli.exit_codes import INTERRUPTED, WORKED
from toolkit.cli.leaderboard import page_file, page_log, page_port, page_url, served
from toolkit.cli.places import DATABASE
from toolkit.cli.real_vllm import NAME, real_host, vllm_home
from toolkit.errors import ToolkitError

ENDING = (signal.SIGTERM, signal.SIGHUP)
FLEET_LIMIT_S = 30.0
LOOK_EVERY_S = 0.1
HOSTS = "hosts.txt"


def run_demo(options: DemoOptions) -> int:
    """Play it; the exit code. Ctrl-C, SIGTERM and a closed terminal end it, and what it made goes."""
    ours = [each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN]  # nohup's
    before = {each: signal.signal(each, _end) for each in ours}
    try:
        _demo(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return WORKED


def _end(number: int, _: FrameType | None) -> NoReturn:
    # of one closed terminal its shell tells and then the kernel: the second must not disturb the clearing away
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(128 + number)  # as a shell tells it


def _demo(options: DemoOptions) -> None:
    # what is missing is told before anything begins
    home = vllm_home() if options.real else None
    locustfile()
    if options.page:
        page_file()
        page_port(options.port)
    with _folder(keep=options.keep) as folder:
        _play(DemoStage(folder=folder, scene=scenes(options.seconds)), home)
        if options.page:
            _show_page(folder, page_port(options.port), scenes(options.seconds))


class DemoStage:
    """Where a demo plays: its folder, its times, and a counter of steps."""

    def __init__(self, *, folder: Path, scene: Scenes) -> None:
        self.folder, self.scene = folder, scene
        self._step = 0

    @property
    def database(self) -> Path:
        """Where the commands keep what they see, as they stand in the folder."""
        return self.folder / DATABASE

    def step(self, sentence: str) -> None:
        """Say what comes now."""
        self._step += 1
        click.echo()
        _headline(f"{self._step}. {sentence}")

    def run(self, *words: str) -> None:
        """Run a command of the toolkit in the folder and let it print."""
        with self.begun(*words) as process:
            process.wait()

    def whisper(self, *words: str) -> None:
        """Run a command that has nothing to print beside one that has."""
        subprocess.run(  # noqa: S603 (our own words)
            [*TOOLKIT, *words], cwd=self.folder, env=environment(), capture_output=True, check=False
        )

    @contextlib.contextmanager
    def begun(self, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Show a command and start it; what it prints is its own. Raises ToolkitError unless it works."""
        click.echo(f"   $ toolkit {' '.join(words)}\n")
        with command([*TOOLKIT, *words], self.folder) as process:
            yield process
        if process.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        if process.returncode:
            raise ToolkitError(
                f"`toolkit {words[0]}` ended with exit code {process.returncode}",
                "Its own words are above; `--keep` leaves its files",
            )


def _play(stage: DemoStage, home: Path | None) -> None:
    click.echo(
        f"A contest in small: {len(CAST)} simulated servers on this machine, {SPEED} times as fast as real ones.\n"
        f"Its hosts file and database lie in {stage.folder} until it ends; --keep leaves them there."
    )
    with contextlib.ExitStack() as running:
        lines = ""
        if home:
            click.echo("A real vLLM starts on the CPU, which takes up to a minute ...")
            lines = running.enter_context(real_host(home, stage.folder))
        fleet = running.enter_context(_fleet(stage, lines))
        stage.step("Look: what is behind each address, and what changed since the last look?")
        stage.run("scout", HOSTS)
        stage.step(
            "Time all of them at the same moment, and explain what is fast for another reason than speed."
        )
        stage.run("bench", HOSTS, "--requests", str(BENCH_REQUESTS))
        _blast(stage, fleet, hosts=len(CAST) + bool(lines))
    _tell(stage, with_real=home is not None)


@contextlib.contextmanager
def _fleet(stage: DemoStage, more_hosts: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The simulated servers, in a process of their own; hosts.txt names them, and `more_hosts`."""
    path, log = stage.folder / HOSTS, stage.folder / "fleet.log"
    words = [*TOOLKIT, "sim", "fleet", *fleet_words(stage.scene.down_for), "--out", HOSTS]
    with server(words, stage.folder, log) as process:
        give_up_s = time.monotonic() + FLEET_LIMIT_S
        while not path.is_file():  # it appears whole, once all of them listen
            refuse_dead(process, "the simulated fleet", log)
            if time.monotonic() > give_up_s:
                raise ToolkitError(
                    f"the simulated fleet was not up after {FLEET_LIMIT_S:.0f} s",
                    "Is the machine overloaded? `--keep` leaves the fleet's log",
                )
            time.sleep(0.02)
        path.write_text(path.read_text() + more_hosts)
        yield process


def _blast(stage: DemoStage, fleet: "subprocess.Popen[bytes]", *, hosts: int) -> None:
    scene = stage.scene
    stage.step(
        f"Blast all of them for {scene.seconds} s; after {scene.fall_at:.0f} s {SWITCHER} restarts with another model."
    )
    click.echo("   (--non-neutral: load and hosts share this machine here; yours should not)")
    words = ["blast", HOSTS, "--duration", f"{scene.seconds}s", "--window", f"{scene.window}s"]
    words += ["--users", str(USERS_PER_HOST * hosts), "--canaries", str(CANARY_PERCENT)]
    words += ["--scout-every", SCOUT_EVERY, "--non-neutral"]
    with stage.begun(*words) as process:
        began: float | None = None
        has_fallen = False
        while process.poll() is None:
            began = began or _began(stage.database)
            if began and not has_fallen and time.time() >= began + scene.fall_at:
                fleet.send_signal(signal.SIGUSR1)
                stage.whisper("mark", SWITCHER, "AWQ goes, GPTQ comes")
                has_fallen = True
            time.sleep(LOOK_EVERY_S)


def _began(database: Path) -> float | None:
    """When the blast began, by its own clock; None: not yet."""
    from toolkit.store import Store

    with contextlib.suppress(ToolkitError), Store.open_readonly(database) as store:
        for run in store.runs(verb="blast", limit=1):
            return run.started_at
    return None


# --- the end ------------------------------------------------------------------------------------------


def _tell(stage: DemoStage, *, with_real: bool) -> None:
    stage.step("What it means:")
    click.echo()
    cast = ", ".join(
        [
            *(f"{name} {person}" for name, person in CAST.items()),
            *([f"{NAME} a vLLM on the CPU"] if with_real else []),
        ]
    )
    for line in _story(stage.database, stage.scene.window):
        click.echo(_wrapped(line))
    click.echo("\n" + _wrapped(f"What they were (`toolkit sim list`): {cast}."))
    click.echo(
        _wrapped(
            "For your own hosts write hosts.txt, a URL a line, and run the same commands on a machine that serves "
            "none of them."
        )
    )


def _headline(text: str) -> None:
    """In bold on a terminal."""
    from rich.text import Text

    from toolkit.report.tables import screen

    screen().print(Text(text, style="bold"), soft_wrap=True)


def _wrapped(line: str) -> str:
    """Indented, and folded for a terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return f"   {line}"
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, initial_indent="   ", subsequent_indent="   ")


def _story(database: Path, window_s: int) -> Sequence[str]:
    from toolkit.board.feed import Feed
    from toolkit.board.story import story
    from toolkit.store import Store
    from toolkit.units import time_of_day

    with Store.open_readonly(database) as store:
        (blast,) = store.runs(verb="blast", limit=1)
        (bench,) = store.runs(verb="bench", limit=1)
        feed = Feed(store, blast)
        return story(
            feed.board(window_s=window_s),
            clock=time_of_day,
            bench={name: found for (name, _), found in store.verdicts(bench.id).items()},
            outages={host.name: feed.outages(host.name)[1] for host in feed.hosts},
            events=feed.events(),
        )


def _show_page(folder: Path, port: int, scene: Scenes) -> None:
    """Serve the leaderboard until Ctrl-C; where nobody watches, see only that it answers."""
    with served(folder / DATABASE, port, folder) as process:
        link = f"{page_url(port)}/?window={scene.window}s"
        if not all(file and file.isatty() for file in (sys.stdin, sys.stdout)):
            click.echo(f"\nThe leaderboard answers at {link}")
            return
        _headline(f"\nThe leaderboard: {link}")
        with contextlib.suppress(KeyboardInterrupt):
            # in here: whoever reads it may press at once
            click.echo("Ctrl-C ends it.")
            process.wait()
            refuse_dead(process, "the leaderboard", page_log(folder))


@contextlib.contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    """A folder of the demo's own, so that the user's database learns nothing of it."""
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
            click.echo(f"\n{folder} is gone with all runs in it; --keep would have left it.")
