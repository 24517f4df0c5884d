"""`toolkit example`: files that work as they stand, and never go over another."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main
from toolkit.cli.example import CHECKED_BY


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)
    return tmp_path


def toolkit(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


@pytest.mark.parametrize("name", CHECKED_BY)
def test_an_example_is_written_once_and_its_own_command_takes_it(name: str, folder: Path) -> None:
    told = toolkit(f"example {name}")
    assert told.exit_code == 0, told.stderr
    text = (folder / name).read_text()
    assert text.startswith(f"# {name}: ")
    assert toolkit(f"example {name} -o -").stdout == text
    (folder / name).write_text("mine")
    refused = toolkit(f"example {name}")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"Error: `{name}` is there already, and stays as it is\n")
    assert (folder / name).read_text() == "mine"

    other = f"other/{name}"
    assert toolkit(f"example {name} -o {other}").exit_code == 0
    assert toolkit("example hosts.txt -o hosts.txt").exit_code == int(name == "hosts.txt")
    if name == "hosts.txt":
        # nobody listens there: one row, and exit code 1
        scouted = toolkit(f"scout {other} --no-store --timeout 1s")
        assert "alice" in scouted.stdout
    else:
        command = CHECKED_BY[name].format(other).removeprefix("toolkit ")
        checked = toolkit(command)
        assert checked.exit_code == 0, checked.stderr
