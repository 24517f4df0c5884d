"""The process of the load: read line by line, interrupted once, cleared away with all that it forked, ended with its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from contract.harness.programs import runs, until

from toolkit.cli.blast.load import STOPPING, LoadProcess, drive, environment, failure, locustfile
from toolkit.errors import ToolkitError


def script(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


WAITS_FOR_AN_INTERRUPT = """
    import signal, sys, time
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    print("ready", flush=True)
    while not seen:
        time.sleep(0.01)
    print("clean end", flush=True)
"""
DEAF = """
    import os, signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not os.fork():
        print("forked", os.getpid(), flush=True)
    while True:
        time.sleep(1)
"""


def driven(
    command: list[str],
    on_said: Callable[[str], None] = lambda _: None,
    besides: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
) -> tuple[tuple[int, bool], LoadProcess, list[str]]:
    """How the load ended, the load, and what was said meanwhile: its own lines among it."""
    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        on_said(sentence)

    child = LoadProcess(command)
    return asyncio.run(drive(child, os.environ, besides, say=say)), child, said


def dies(number: int) -> bool:
    return bool(until(lambda: not runs(number)))


# --- its end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "lines"),
    [
        ("print('one'); print('two', end='')", 0, ["one", "two"]),
        ("import sys; print('no', file=sys.stderr); sys.exit(3)", 3, ["no"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, []),
        # in a session of its own: a terminal's interrupt would reach it twice, and end it in the middle of its last second
        ("import os; print(os.getpgid(0) == os.getpid() == os.getsid(0))", 0, ["True"]),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\n' + b'x' * 10**6 + b'\\nlast')", 0, ["\ufffd", "x" * 2000, "last"]),
    ],
)  # fmt: skip
def test_a_load_that_ends_by_itself_was_not_stopped(text: str, code: int, lines: list[str]) -> None:
    ended, child, said = driven(script(text))
    assert ended == (code, False)
    assert list(child.lines) == said == lines


def test_what_a_killed_load_forked_is_gone_with_it() -> None:
    forked: list[int] = []

    def on_said(line: str) -> None:
        if line.startswith("forked"):
            forked.append(int(line.split()[1]))
            os.kill(os.getpgid(forked[0]), signal.SIGKILL)

    ended, _, _ = driven(script(DEAF), on_said)
    assert ended[0] == -signal.SIGKILL
    assert dies(forked[0])


# --- stopping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_the_load_to_end_cleanly(number: signal.Signals) -> None:
    def on_said(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), number)

    ended, child, said = driven(script(WAITS_FOR_AN_INTERRUPT), on_said)
    assert ended == (0, True)
    assert list(child.lines) == ["ready", "clean end"]
    assert said == ["ready", STOPPING, "clean end"]


def test_a_work_beside_that_listens_to_sigterm_itself_does_not_keep_it_from_the_load() -> None:
    """As scout's watch does."""

    async def listens() -> None:
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        await asyncio.Event().wait()

    def on_said(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)

    ended, _, _ = driven(script(WAITS_FOR_AN_INTERRUPT), on_said, besides=[listens])
    assert ended == (0, True)


def test_a_second_signal_quits_at_once_and_leaves_nothing_running() -> None:
    forked: list[int] = []

    def on_said(line: str) -> None:
        if not line.startswith("forked"):
            return
        forked.append(int(line.split()[1]))
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        driven(script(DEAF), on_said)
    assert dies(forked[0])


def test_the_second_sign_of_a_closed_terminal_is_nobodys_haste() -> None:
    """The shell sends one and the kernel another."""

    def on_said(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), signal.SIGHUP)
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGHUP)

    ended, child, said = driven(script(WAITS_FOR_AN_INTERRUPT), on_said)
    assert ended == (0, True)
    assert list(child.lines) == ["ready", "clean end"]
    assert said == ["ready", STOPPING, "clean end"]


# --- beside it --------------------------------------------------------------------------------------


def test_what_goes_on_beside_ends_with_the_load_and_its_failure_costs_no_measurement() -> None:
    steps: list[str] = []

    async def beside() -> None:
        steps.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    async def failing() -> None:
        raise ToolkitError("the disk is full", "hint")

    ended, _, said = driven(script("print(1)"), besides=[beside, failing])
    assert ended[0] == 0
    assert steps == ["began", "ended"]
    assert "Warning: the disk is full; the load goes on" in said


# --- its parent's death -----------------------------------------------------------------------------


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)
def test_the_load_ends_cleanly_when_its_parent_is_killed(tmp_path: Path) -> None:
    load = tmp_path / "load.py"
    load.write_text(
        textwrap.dedent("""
            import os, signal, sys, time
            def end(*_):
                open("ended", "w").close()
                sys.exit(0)
            signal.signal(signal.SIGTERM, end)
            print(os.getpid(), flush=True)
            while True:
                time.sleep(1)
        """)
    )
    parent = script(f"""
        import asyncio, os, sys
        from toolkit.cli.blast.load import LoadProcess
        async def main():
            child = LoadProcess([sys.executable, {str(load)!r}])
            await child.start(os.environ, lambda line: print(line, flush=True))
            await child.ended()
        asyncio.run(main())
    """)
    with subprocess.Popen(parent, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stdout is not None
        number = int(running.stdout.readline())
        running.kill()
    assert dies(number)
    assert (tmp_path / "ended").exists()


def test_a_load_whose_parent_died_before_it_began_never_begins() -> None:
    starter = Path(__file__).parents[2] / "toolkit" / "cli" / "parent_death.py"
    done = subprocess.run(
        [sys.executable, str(starter), "1", sys.executable, "-c", "print('loading')"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


# --- what it prints ---------------------------------------------------------------------------------


def test_a_secret_is_never_repeated_and_only_the_last_lines_are_kept() -> None:
    lines: list[str] = []

    async def main() -> list[str]:
        text = r"""
            print('\x1b[31m key=hunter2! hunter2!')
            [print(n, 'x' * 5000) for n in range(199)]
        """
        child = LoadProcess(script(text), secrets=["hunter2!", ""])
        await child.start(os.environ, lines.append)
        await child.ended()
        return list(child.lines)

    kept = asyncio.run(main())
    # nothing that moves a cursor, and no endless line
    assert lines[0] == kept[0] == "[31m key=*** ***"
    assert kept[-1].startswith("198 xxx")
    assert (len(kept), max(map(len, kept))) == (200, 2_000)


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("The last seconds could not be stored and are lost", True),
        *(
            (line, False)
            for line in (
                "Blast of 2 hosts: a, b",
                "Run 3f: 2 users a host, 4 together",
                "Waiting up to 30 s for 2 answers; Ctrl-C leaves them",
                "Error: x",
                "  File x",
                "",
                "KeyboardInterrupt",
                "Fatal Python error: init_import_site: Failed to import the site module",
                "2026-11-21T11:34:57Z",
            )
        ),
    ],
)
def test_what_only_the_load_knows_is_passed_on(line: str, is_shown: bool) -> None:
    _, child, said = driven(script(f"print({line!r})"))
    assert (list(child.lines), said) == ([line], [line] if is_shown else [])


AGAIN = "toolkit blast --resume r1"
KEPT = "; what it had counted up to then is kept"


@pytest.mark.parametrize(
    ("code", "lines", "is_begun", "message", "hint"),
    [
        # the last error is the load's own word, with its hint
        (1, ["Profile x", "Error: no hosts", "", "Hint: write some"], False, "no hosts", "write some"),
        (1, ["Error: first", "Hint: a", "Error: second"], False, "second", ""),
        (1, ["Hint: alone", "Error: late"], False, "late", ""),
        # what is none of the toolkit's is quoted
        (1, ["[2026] ERROR/root: x", "Hint: y"], False,
         "the load ended with exit code 1 before its first request; it said:\n[2026] ERROR/root: x\nHint: y", None),
        (2, [*map(str, range(20)), "ImportError"], False,
         "the load ended with exit code 2 before its first request; it said:\n13\n14\n15\n16\n17\n18\n19\nImportError", None),
        (3, [], False, "the load ended with exit code 3 before its first request", None),
        # in the midst it says how, and how to go on
        (-9, ["Traceback (most recent call last):"], True, f"the load of run `r1` was killed by SIGKILL{KEPT}", f"Go on with `{AGAIN}`"),
        (-63, [], True, f"the load of run `r1` was killed by signal 63{KEPT}", f"Go on with `{AGAIN}`"),
        (1, ["Error: the disk is full", "Hint: free some"], True,
         f"the load of run `r1` ended with exit code 1: the disk is full{KEPT}", f"Go on with `{AGAIN}`"),
    ],
)  # fmt: skip
def test_a_load_that_dies_says_why_and_how_to_go_on(
    code: int, lines: list[str], is_begun: bool, message: str, hint: str | None
) -> None:
    error = failure(code, lines, run="r1", is_begun=is_begun, resume_command=AGAIN)
    assert error.message == message
    assert hint is None or error.hint == hint


def test_the_childs_environment_holds_keys_and_no_words_for_a_plain_locust() -> None:
    own = {"PATH": "/bin", "LOCUST_HOST": "http://x", "LOCUST_KEY": "k", "TOOLKIT_MODEL": "m"}
    passed = environment(own | {"TOOLKIT_REQUEST_TIMEOUT": "1"}, {"LOCUST_KEY"})
    assert passed.keys() & {*own, "TOOLKIT_REQUEST_TIMEOUT"} == {"PATH", "LOCUST_KEY"}


def test_a_toolkit_without_its_locustfile_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        locustfile(tmp_path)
    assert str(tmp_path / "locustfiles" / "blast.py") in caught.value.message
    assert "pip install" in caught.value.hint
