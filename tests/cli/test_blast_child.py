"""The process of the load: on a leash, read line by line, interrupted once, cleared away with all that it forked."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.cli.blast import child as blast_child
from toolkit.cli.blast.child import LoadProcess, told_error
from toolkit.cli.blast.drive import STOPPING, Drive, Ended, environment
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
    on_line: Callable[[str], None] = lambda _: None,
    **changes: object,
) -> tuple[Ended, LoadProcess, list[str]]:
    said: list[str] = []
    child = LoadProcess(command)
    words = {"besides": [], "on_line": on_line, "say": said.append} | changes
    drive = Drive(child, os.environ, **words)
    return asyncio.run(drive.run()), child, said


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
    assert ended == Ended(code=0, was_stopped=False)
    assert list(child.lines) == ["one", "two"]
    assert said == []


def test_its_exit_code_and_its_errors_are_heard() -> None:
    ended, child, _ = driven(script("import sys; print('no', file=sys.stderr); sys.exit(3)"))
    assert ended == Ended(code=3, was_stopped=False)
    assert list(child.lines) == ["no"]


def test_a_killed_load_is_told_by_its_signal() -> None:
    ended, _, _ = driven(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert ended == Ended(code=-signal.SIGKILL, was_stopped=False)


def test_what_a_killed_load_forked_is_gone_with_it() -> None:
    forked: list[int] = []

    def on_line(line: str) -> None:
        if line.startswith("forked"):
            forked.append(int(line.split()[1]))
            os.kill(os.getpgid(forked[0]), signal.SIGKILL)

    ended, _, _ = driven(script(DEAF), on_line)
    assert ended.code == -signal.SIGKILL
    until(lambda: not is_alive(forked[0]))


# --- stopping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_the_load_to_end_cleanly(number: signal.Signals) -> None:
    def on_line(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), number)

    ended, child, said = driven(script(WAITS_FOR_AN_INTERRUPT), on_line)
    assert ended == Ended(code=0, was_stopped=True)
    assert list(child.lines) == ["ready", "clean end"]
    assert said == [STOPPING]


def test_a_work_beside_that_listens_to_sigterm_itself_does_not_keep_it_from_the_load() -> None:
    """As scout's watch does."""

    async def listens() -> None:
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        await asyncio.Event().wait()

    def on_line(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)

    ended, _, _ = driven(script(WAITS_FOR_AN_INTERRUPT), on_line, besides=[listens])
    assert ended == Ended(code=0, was_stopped=True)


def test_a_second_signal_quits_at_once_and_leaves_nothing_running() -> None:
    forked: list[int] = []

    def on_line(line: str) -> None:
        forked.append(int(line.split()[1]))
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        driven(script(DEAF), on_line)
    until(lambda: not is_alive(forked[0]))


def test_the_second_sign_of_a_closed_terminal_is_nobodys_haste() -> None:
    """The shell sends one and the kernel another."""

    def on_line(line: str) -> None:
        if line == "ready":
            os.kill(os.getpid(), signal.SIGHUP)
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGHUP)

    ended, child, said = driven(script(WAITS_FOR_AN_INTERRUPT), on_line)
    assert ended == Ended(code=0, was_stopped=True)
    assert list(child.lines) == ["ready", "clean end"]
    assert said == [STOPPING]


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
    assert ended.code == 0
    assert said == ["Warning: the disk is full; the load goes on"]


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
        from toolkit.cli.blast.child import LoadProcess
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
    leash = Path(__file__).parents[2] / "toolkit" / "cli" / "blast" / "leash.py"
    done = subprocess.run(
        [sys.executable, str(leash), "1", sys.executable, "-c", "print('loading')"],
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
    error = told_error(lines)
    assert error is not None
    assert (error.message, error.hint) == (message, hint)


def test_lines_without_an_error_tell_none() -> None:
    assert told_error(["[2026] ERROR/root: x", "Hint: y"]) is None


def test_the_childs_environment_holds_keys_and_no_words_for_a_plain_locust() -> None:
    own = {"PATH": "/bin", "LOCUST_HOST": "http://x", "LOCUST_KEY": "k", "TOOLKIT_MODEL": "m"}
    told = environment(own, {"LOCUST_KEY"})
    assert told["LOCUST_KEY"] == "k"
    assert told["PATH"] == "/bin"
    assert not {"LOCUST_HOST", "TOOLKIT_MODEL"} & set(told)


def test_a_toolkit_without_its_locustfile_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        blast_child.locustfile(tmp_path)
    assert str(tmp_path / "locustfiles" / "blast.py") in caught.value.message
    assert "pip install" in caught.value.hint
