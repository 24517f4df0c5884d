"""The installed vLLM: asked by its command for version and flags, once; told plainly where there is none."""

import asyncio
import sys
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving import engine_command
from toolkit.serving.engine_command import Installed, found, installed, interpreter

HELP = "usage: vllm serve\n\noptions:\n  --max-model-len MAX_MODEL_LEN\n  --enforce-eager\n"

# Plays `vllm`: notes each call, knows `--help=all` or only `--help`, and may be of a broken installation.
FAKE = """#!{python}
import sys
from pathlib import Path
open({calls!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:] == ["--version"]:
    print("INFO a line before", "0.8.2", sep="\\n")
elif sys.argv[1:] == ["serve", {word!r}]:
    print({text!r})
else:
    sys.exit("error: ignored explicit argument 'all'")
"""


class Machine:
    """A folder with a vLLM in it, and a home for notes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.command = folder / "vllm"
        self.calls = folder / "calls.txt"
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        self.put()
        self.new_process()

    def put(self, word: str = "--help=all", text: str = HELP) -> None:
        source = FAKE.format(python=sys.executable, calls=str(self.calls), word=word, text=text)
        self.command.write_text(source)
        self.command.chmod(0o755)

    def new_process(self) -> None:
        engine_command._seen.clear()

    def ask(self) -> Installed:
        return asyncio.run(installed(str(self.command)))

    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_version_flags_and_python_are_what_the_command_says(machine: Machine) -> None:
    there = machine.ask()
    assert there.command == str(machine.command)
    assert interpreter(machine.command) == sys.executable
    # this Python has no vLLM to ask for its version, so the command is
    assert there.version == "0.8.2"
    assert there.known.names == {"--max-model-len", "--enforce-eager"}
    assert there.arguments([("max-model-len", "4k")]).argv == ("--max-model-len", "4000")


def test_it_is_asked_once_a_process(machine: Machine) -> None:
    assert machine.ask() is machine.ask()
    assert machine.asked() == ["serve --help=all", "--version"]


def test_another_installation_at_the_same_place_is_asked_anew(machine: Machine) -> None:
    machine.ask()
    machine.new_process()
    machine.put(text=HELP + "  --new-flag\n")
    assert "--new-flag" in machine.ask().known.names


def test_a_version_that_knows_no_groups_of_flags_is_asked_for_plain_help(machine: Machine) -> None:
    machine.put(word="--help")
    assert "--enforce-eager" in machine.ask().known.names


def test_one_that_cannot_tell_its_help_is_refused(machine: Machine) -> None:
    machine.put(text="Traceback (most recent call last):")
    with pytest.raises(ToolkitError, match="does not name its flags"):
        machine.ask()


def test_a_known_version_is_read_from_a_note_in_the_next_process(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_command, "_VERSION", "print('0.32.0')")
    first = machine.ask()
    machine.new_process()
    assert machine.ask() == first
    assert first.version == "0.32.0"
    # and a version that the package tells is never asked of the command
    assert machine.asked() == ["serve --help=all"]


def test_a_note_that_is_damaged_costs_time_and_nothing_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_command, "_VERSION", "print('0.32.0')")
    first = machine.ask()
    (kept,) = (machine.command.parent / "cache").rglob("*.json")
    kept.write_text('"--max-mo')
    machine.new_process()
    assert machine.ask() == first


def test_a_home_that_cannot_be_written_keeps_no_note(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.command.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine.command.parent / "file"))
    assert "--enforce-eager" in machine.ask().known.names


def test_where_there_is_none_the_way_to_one_is_told() -> None:
    with pytest.raises(ToolkitError) as caught:
        found("/nowhere/bin/vllm")
    assert caught.value.message == "there is no vLLM at `/nowhere/bin/vllm`"
    assert "pip install vllm" in caught.value.hint


def test_a_script_without_a_line_for_its_python_has_the_one_beside_it(tmp_path: Path) -> None:
    script, beside = tmp_path / "vllm", tmp_path / "python"
    beside.symlink_to(sys.executable)
    # what pip writes where a path is too long for the first line
    script.write_text("#!/bin/sh\n'''exec' /a/long/path \"$0\" \"$@\"\n' '''\n")
    assert interpreter(script) == str(beside)


def test_what_pip_writes_for_a_long_path_is_read_though_the_command_is_a_link(
    tmp_path: Path,
) -> None:
    # the kernel takes no first line of more than 127 bytes, so that a shell starts Python there
    script, link = tmp_path / "venv" / "vllm", tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    link.parent.mkdir()
    script.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n")
    link.symlink_to(script)
    assert interpreter(link) == sys.executable
