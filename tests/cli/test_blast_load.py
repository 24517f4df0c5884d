"""The process of the load: on a leash, read line by line, interrupted once, cleared away with all that it forked."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

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


def died(code: int, lines: list[str], *, is_begun: bool) -> ToolkitError:
    again = "toolkit blast --resume r1"
    return failure(code, lines, run="r1", is_begun=is_begun, resume_command=again)


def is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(is_so: Callable[[], object]) -> None:
    for _ in range(6_000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that within 60 s")


def interrupt_self(line: str) -> None:
    if line == "ready":
        os.kill(os.getpid(), signal.SIGINT)


# --- its end ----------------------------------------------------------------------------------------


def test_a_load_that_ends_by_itself_was_not_stopped() -> None:
    ended, child, said = driven(script("print('one'); print('two', end='')"))
    assert ended == (0, False)
    assert list(child.lines) == said == ["one", "two"]


def test_its_exit_code_and_its_errors_are_heard() -> None:
    ended, child, _ = driven(script("import sys; print('no', file=sys.stderr); sys.exit(3)"))
    assert ended == (3, False)
    assert list(child.lines) == ["no"]


def test_a_killed_load_is_told_by_its_signal() -> None:
    ended, _, _ = driven(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert ended == (-signal.SIGKILL, False)


def test_what_a_killed_load_forked_is_gone_with_it() -> None:
    forked: list[int] = []

    def on_said(line: str) -> None:
        if line.startswith("forked"):
            forked.append(int(line.split()[1]))
            os.kill(os.getpgid(forked[0]), signal.SIGKILL)

    ended, _, _ = driven(script(DEAF), on_said)
    assert ended[0] == -signal.SIGKILL
    until(lambda: not is_alive(forked[0]))


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
    until(lambda: not is_alive(forked[0]))


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


def test_a_terminals_interrupt_does_not_reach_the_load_by_itself() -> None:
    """It would get two, and the second one ends it in the middle of its last second."""
    text = "import os; print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())"
    _, child, _ = driven(script(text))
    assert list(child.lines) == ["True True"]


# --- beside it --------------------------------------------------------------------------------------


def test_what_goes_on_beside_ends_with_the_load() -> None:
    steps: list[str] = []

    async def beside() -> None:
        steps.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    driven(script("print(1)"), besides=[beside])
    assert steps == ["began", "ended"]


def test_a_failure_beside_is_told_and_costs_no_measurement() -> None:
    async def beside() -> None:
        raise ToolkitError("the disk is full", "hint")

    ended, _, said = driven(script("print(1)"), besides=[beside])
    assert ended[0] == 0
    assert "Warning: the disk is full; the load goes on" in said


# --- the leash --------------------------------------------------------------------------------------


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
            child.start(os.environ, lambda line: print(line, flush=True))
            await child.ended()
        asyncio.run(main())
    """)
    with subprocess.Popen(parent, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stdout is not None
        number = int(running.stdout.readline())
        running.kill()
    until(lambda: not is_alive(number))
    assert (tmp_path / "ended").exists()


def test_a_load_whose_parent_died_before_the_leash_was_on_never_begins() -> None:
    starter = Path(__file__).parents[2] / "toolkit" / "cli" / "parent_death.py"
    done = subprocess.run(
        [sys.executable, str(starter), "1", sys.executable, "-c", "print('loading')"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


# --- what it says -----------------------------------------------------------------------------------


def test_a_secret_is_never_repeated() -> None:
    lines: list[str] = []

    async def main() -> None:
        child = LoadProcess(script("print('key=hunter2! hunter2!')"), secrets=["hunter2!", ""])
        child.start(os.environ, lines.append)
        await child.ended()
        assert list(child.lines) == ["key=*** ***"]

    asyncio.run(main())
    assert lines == ["key=*** ***"]


def test_only_the_last_lines_are_kept_and_nothing_that_moves_a_cursor() -> None:
    _, child, _ = driven(script(r"[print('\x1b[31m', n, 'x' * 5000) for n in range(300)]"))
    assert len(child.lines) == 200
    assert child.lines[-1].startswith("[31m 299 xxx")
    assert max(map(len, child.lines)) == 2_000


def test_bytes_that_are_no_text_and_a_line_without_end_harm_nobody() -> None:
    text = "import sys; sys.stdout.buffer.write(b'\\xff\\n' + b'x' * 10**6 + b'\\nlast')"
    _, child, _ = driven(script(text))
    assert child.lines[0] == "�"
    assert child.lines[-1] == "last"


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        (["Error: no hosts", "", "Hint: write some"], "no hosts", "write some"),
        (["Error: first", "Hint: a", "Error: second"], "second", ""),
        (["Hint: alone", "Error: told"], "told", ""),
    ],
)
def test_the_last_error_is_told_with_its_hint(lines: list[str], message: str, hint: str) -> None:
    error = died(1, lines, is_begun=False)
    assert (error.message, error.hint) == (message, hint)


def test_what_is_no_error_of_the_toolkits_is_quoted() -> None:
    error = died(1, ["[2026] ERROR/root: x", "Hint: y"], is_begun=False)
    assert error.message == (
        "the load ended with exit code 1 before its first request; it said:\n"
        "[2026] ERROR/root: x\nHint: y"
    )


# --- what is passed on ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Blast of 2 hosts: a, b",
        "Run 3f: 2 users a host, 4 together",
        "Waiting up to 30 s for 2 answers; Ctrl-C leaves them",
        "Error: x",
        "  File x",
        "",
        "KeyboardInterrupt",
        "Fatal Python error: init_import_site: Failed to import the site module",
        "Python runtime state: initialized",
        "2026-11-21T11:34:57Z",
    ],
)
def test_what_is_said_here_already_is_not_passed_on(line: str) -> None:
    _, child, said = driven(script(f"print({line!r})"))
    assert (list(child.lines), said) == ([line], [])


def test_what_only_the_load_knows_is_passed_on() -> None:
    _, _, said = driven(script("print('The last seconds could not be stored and are lost')"))
    assert said == ["The last seconds could not be stored and are lost"]


# --- why it died ------------------------------------------------------------------------------------


def test_what_the_load_refuses_is_told_in_its_own_words() -> None:
    error = died(1, ["Profile x", "Error: no hosts", "", "Hint: write some"], is_begun=False)
    assert (error.message, error.hint) == ("no hosts", "write some")


def test_a_load_that_fails_without_a_word_of_its_own_is_quoted() -> None:
    error = died(2, [*map(str, range(20)), "ImportError: no gevent"], is_begun=False)
    assert error.message.startswith(
        "the load ended with exit code 2 before its first request; it said:\n13\n"
    )
    assert error.message.endswith("\nImportError: no gevent")
    assert died(3, [], is_begun=False).message == (
        "the load ended with exit code 3 before its first request"
    )


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
        (0, "ended with exit code 0"),
    ],
)
def test_a_load_that_dies_in_the_midst_says_how_and_how_to_go_on(code: int, how: str) -> None:
    error = died(code, ["Traceback (most recent call last):"], is_begun=True)
    assert error.message == f"the load of run `r1` {how}; what it had counted up to then is kept"
    assert error.hint == "Go on with `toolkit blast --resume r1`"


def test_its_own_error_in_the_midst_is_told_with_the_way_on() -> None:
    error = died(1, ["Error: the disk is full", "Hint: free some"], is_begun=True)
    assert error.message.startswith(
        "the load of run `r1` ended with exit code 1: the disk is full; "
    )
    assert error.hint.startswith("Go on with")


def test_the_childs_environment_holds_keys_and_no_words_for_a_plain_locust() -> None:
    own = {"PATH": "/bin", "LOCUST_HOST": "http://x", "LOCUST_KEY": "k", "TOOLKIT_MODEL": "m"}
    told = environment(own, {"LOCUST_KEY"})
    assert told["LOCUST_KEY"] == "k"
    assert told["PATH"] == "/bin"
    assert not {"LOCUST_HOST", "TOOLKIT_MODEL"} & set(told)


def test_a_toolkit_without_its_locustfile_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        locustfile(tmp_path)
    assert str(tmp_path / "locustfiles" / "blast.py") in caught.value.message
    assert "pip install" in caught.value.hint
