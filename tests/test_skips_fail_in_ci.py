"""tests/conftest.py: in CI a skipped test fails the run, elsewhere it does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# sources of the files that the tests below run in a pytest of their own; nothing is skipped here
SKIPPED_TEST = "import pytest\ndef test_without_its_part():\n    pytest.skip('no real part')\n"
SKIPPED_FILE = "import pytest\npytest.skip('no real part', allow_module_level=True)\n"
PASSING = "def test_it_holds():\n    assert True\n"


def run(folder: Path, source: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", folder]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("source", [SKIPPED_TEST, SKIPPED_FILE, SKIPPED_TEST + PASSING])
def test_a_skip_fails_the_run_in_ci_and_keeps_its_reason(tmp_path: Path, source: str) -> None:
    done = run(tmp_path, source, ci="true")
    assert done.returncode != 0
    assert "no real part" in done.stdout


def test_a_run_without_skips_passes_in_ci(tmp_path: Path) -> None:
    assert run(tmp_path, PASSING, ci="true").returncode == 0
