"""`toolkit example` writes the files of docs/examples, which tests/docs/test_examples.py tries, and goes over none."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.command_lines import complaint

from toolkit.cli import main
from toolkit.cli.example import CHECKED_BY

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toolkit(line: str) -> Result:
    return CliRunner().invoke(main, shlex.split(line))


@pytest.mark.parametrize("name", CHECKED_BY)
def test_an_example_is_written_where_nothing_is_and_the_next_command_is_told(
    name: str, folder: Path
) -> None:
    told = toolkit(f"example {name}")
    assert (told.exit_code, told.stdout) == (0, "")
    command = CHECKED_BY[name].format(name)
    assert told.stderr == f"Example: {name}\nPut in what is yours, then: {command}\n"
    assert complaint(command.split()[1:]) is None
    text = (EXAMPLES / name).read_text()
    assert (folder / name).read_text() == text
    assert toolkit(f"example {name} -o -").stdout == text
    assert toolkit(f"example {name} -o further/mine").exit_code == 0
    assert (folder / "further" / "mine").read_text() == text


def test_the_next_command_can_be_pasted_whatever_the_file_is_called() -> None:
    told = toolkit("example hosts.txt -o 'my hosts.txt'").stderr
    assert told.endswith(" then: toolkit scout 'my hosts.txt'\n")
    again = toolkit("example hosts.txt -o 'my hosts.txt'").stderr
    assert "`toolkit example hosts.txt -o other.txt`" in again


def test_a_file_that_is_there_stays_as_it_is(folder: Path) -> None:
    (folder / "hosts.txt").write_text("mine")
    refused = toolkit("example hosts.txt")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: `hosts.txt` is there already, and stays as it is\n\n"
        "Hint: Write it elsewhere: `toolkit example hosts.txt -o other.txt`; `-o -` prints it\n"
    )
    assert (folder / "hosts.txt").read_text() == "mine"


def test_the_usage_has_one_word_for_the_name_and_a_mistake_is_told_with_the_choices() -> None:
    assert toolkit("example --help").stdout.splitlines()[0].endswith(" example [OPTIONS] NAME")
    assert "'NAME': 'hosts.toml' is not one of 'hosts.txt'," in toolkit("example hosts.toml").stderr
