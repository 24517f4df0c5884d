"""TAB: what is offered where, by real shells too, and that nobody waits for a library to load meanwhile."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from toolkit.cli import VERBS, main
from toolkit.cli.options import Word
from toolkit.records import Run
from toolkit.store import Store

WAIT_S = 60


def offered(line: str) -> list[tuple[str, str]]:
    """Kind and value of each thing that is offered for the last word of a line, which may be empty."""
    *words, begun = line.split(" ")
    asked = ShellComplete(main, {}, "toolkit", "_TOOLKIT_COMPLETE")
    return [(item.type, item.value) for item in asked.get_completions(words, begun)]


def names(line: str) -> list[str]:
    return [value for kind, value in offered(line) if kind == "plain"]


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from commands(found, *path, name)


# --- what is offered where ------------------------------------------------------------------------------


def test_verbs_orders_and_options_are_offered() -> None:
    assert names("") == list(VERBS)
    assert names("b") == ["bench", "blast", "board"]
    assert names("serve s") == ["status", "swap", "stop"]
    assert names("board --ra") == ["--rank-by"]
    assert names("serve --pre") == ["--preset"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bench a", ["alice"]),
        ("blast alice --only team=", ["team=red", "team=blue"]),
        ("scout --hosts prod --only ", ["erin"]),
        ("warmup --hosts missing x", []),
    ],
)
def test_hosts_are_offered_by_the_names_of_the_hosts_file(
    line: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)
    Path("hosts.txt").write_text("alice 10.0.0.4 team=red\nbob 10.0.0.5 team=blue\n")
    Path("prod").write_text("erin 10.0.0.6\n")
    assert names(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bench --profile con", ["contest"]),
        ("blast --profile sh", ["shared-prefix", "short-answer"]),
        ("serve --preset mu", ["multi-team"]),
        ("serve swap --preset thr", ["throughput"]),
        ("plan --gpu l", ["l4", "l40s"]),
        ("plan qwen3-", ["Qwen3-8B", "Qwen3-30B-A3B", "Qwen3-Coder-30B-A3B-Instruct",
                         "Qwen3-Next-80B-A3B-Instruct"]),
        ("plan --quantization aw", ["awq"]),
        ("plan --kv-cache-dtype fp8_d", ["fp8_ds_mla"]),
        ("sweep ba", ["batch-sizes"]),
        ("sim fleet alice=ca", ["alice=cached"]),
        ("serve --sim awq", ["awq"]),
        ("runs --verb wo", ["workload"]),
        ("board --rank-by ttft_p5", ["ttft_p50"]),
        ("completion f", ["fish"]),
    ],
)  # fmt: skip
def test_the_catalogs_names_are_offered(line: str, expected: list[str]) -> None:
    assert names(line) == expected


def test_a_models_other_names_are_offered_where_none_of_the_first_fits() -> None:
    assert names("plan qwen2.5-7b-instruct-a") == ["Qwen2.5-7B-Instruct-AWQ"]


@pytest.mark.parametrize(
    "line",
    [
        *("scout ho", "blast ho", "scout --ca ho", "capture ho", "bench --profile ./ho"),
        *("plan ./ho", "serve ./ho", "sweep ./ho", "diagnose ho", "proxy --log ho"),
    ],
)
def test_a_file_may_stand_where_one_is_meant(line: str) -> None:
    assert ("file", line.rpartition(" ")[2]) in offered(line)


def test_no_option_that_means_a_file_a_run_or_a_profile_is_left_out() -> None:
    """By its placeholder: who adds one says what a shell offers for it."""
    placeholders = {"FILE", "NAME|FILE", "RUN", "[RUN]", "VAR", "PERSONALITY"}
    silent = {
        f"{' '.join(path)} {parameter.opts[0]}"
        for path, command in commands(main)
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and parameter.make_metavar(click.Context(command)) in placeholders
        and parameter._custom_shell_complete is None
        and not isinstance(parameter.type, click.Path | Word)
    }
    assert silent == set()


# --- what the database and the machine know -------------------------------------------------------------


def test_runs_of_the_right_verb_are_offered_the_newest_first(tmp_path: Path) -> None:
    database = tmp_path / "some.db"
    with Store.open(database) as store:
        for name, verb, at in (("aa1", "blast", 1.0), ("aa2", "bench", 2.0), ("aa3", "blast", 3.0)):
            store.add_run(Run(id=name, verb=verb, started_at=at, settings="{}"))
    assert names(f"board --db {database} --run ") == ["aa3", "aa1"]
    assert names(f"runs export --db {database} aa") == ["aa3", "aa2", "aa1"]


def test_without_a_database_no_run_is_offered_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)
    assert names("board --run ") == []
    assert names("scout --history ") == []
    assert list(tmp_path.iterdir()) == []


def test_a_variable_is_offered_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_TEST_KEY", "sk-secret")
    told = offered("watchdog --api-key-env OF_A_TEST")
    assert told == [("plain", "OF_A_TEST_KEY")]


def test_this_machines_interfaces_are_offered() -> None:
    assert names("capture --iface l") == ["lo"]
    assert names("capture --iface an") == ["any"]


# --- the scripts, in real shells ------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script_for_the_command_toolkit(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="anything")
    assert result.exit_code == 0
    assert f"_TOOLKIT_COMPLETE={shell}_complete" in result.stdout
    assert "anything" not in result.stdout


def test_another_shell_is_a_wrong_command_line() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def environ(folder: Path) -> dict[str, str]:
    """With this environment's `toolkit` first, and nothing of this user's shell."""
    binaries = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {"PATH": binaries, "HOME": str(folder), "TERM": "dumb", "LANG": "C.UTF-8"}


class Terminal:
    """A shell that believes that somebody types."""

    def __init__(self, number: int) -> None:
        self._number, self.said = number, ""

    def type(self, keys: str, until: str) -> None:
        """Press keys; wait until the screen says a thing."""
        self.said = ""
        os.write(self._number, keys.encode())
        give_up = time.monotonic() + WAIT_S
        while not re.search(until, self.said):
            assert time.monotonic() < give_up, f"no {until!r} in {self.said!r}"
            if select.select([self._number], [], [], 0.1)[0]:
                self.said += os.read(self._number, 4096).decode(errors="replace")


@contextmanager
def typing(words: list[str], folder: Path) -> Iterator[Terminal]:
    pid, number = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(words[0], words, environ(folder))
    try:
        yield Terminal(number)
    finally:
        os.kill(pid, 9)
        os.close(number)
        os.waitpid(pid, 0)


@pytest.mark.slow
def test_a_real_bash_completes_verbs_options_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "hosts-of-mine.txt").touch()
    with typing(["bash", "--norc", "--noprofile", "-i"], tmp_path) as shell:
        shell.type('PS1="@ "; eval "$(toolkit completion bash)"; echo rea""dy\n', r"ready\r?\n@ ")
        for keys, until in (
            ("toolkit bla\t", "toolkit blast "),
            ("--prof\t", "--profile "),
            ("conte\t", "contest "),
            ("hosts-o\t", r"hosts-of-mine\.txt "),
        ):
            shell.type(keys, until)


# --- nobody waits ---------------------------------------------------------------------------------------


def test_what_is_asked_at_the_keyboard_loads_nothing_heavy() -> None:
    """A shell waits for it: every suggestion is asked in one process, and what that loaded is told."""
    heavy = (
        "aiohttp httpx rich scapy matplotlib numpy uvloop sqlite_utils asyncio orjson jinja2 locust"
    )
    code = (
        "import sys\n"
        "from click.shell_completion import ShellComplete\n"
        "from toolkit.cli import main\n"
        "asked = ShellComplete(main, {}, 'toolkit', '_TOOLKIT_COMPLETE')\n"
        "for line in ('', 'bench --profile', 'serve', 'serve --preset', 'plan', 'plan --gpu',\n"
        "             'plan --quantization', 'plan --kv-cache-dtype', 'sweep', 'sim fleet',\n"
        "             'board --run', 'scout --history', 'capture --iface', 'watchdog --api-key-env'):\n"
        "    asked.get_completions(line.split(), '')\n"
        f"print(sorted(set({heavy!r}.split()) & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert done.stdout == "[]\n"
