"""A wheel in an environment of its own, used from an empty folder: what a newcomer has after `pip install .`, no checkout.

The wheel is built from a copy, so that neither an old `build/` nor a checkout's own files are met. The environment reads the
dependencies of this one through a .pth file: no network, and the toolkit itself can only come from the wheel. It must write
nothing into it: in many a place site-packages is read-only.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.harness.browser import chromium
from support.board_page import board, hosts
from support.browser import tab_of

from toolkit.store import Store

ROOT = Path(__file__).parents[2]
TAKEN = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "toolkit",
    "locustfiles",
    "dashboards",
    "docs",
)
WAIT_S = 120

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("plain install")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment with the wheel in it."""

    folder: Path
    packages: Path

    def words(self, *words: str) -> list[str]:
        return [str(self.folder / "bin" / "toolkit"), *words]

    def files(self) -> dict[str, int]:
        """When each file of the installed package was written."""
        return {
            str(file): file.stat().st_mtime_ns
            for file in (self.packages / "toolkit").rglob("*")
            if file.is_file()
        }


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("installed")
    source, environment = folder / "source", folder / "environment"
    source.mkdir()
    for name in TAKEN:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "-q"]
    built = [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(built, check=True, timeout=WAIT_S)
    (wheel,) = folder.glob("*.whl")
    venv.create(environment)
    python = environment / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", *offline, str(wheel)], check=True, timeout=WAIT_S
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shutil.rmtree(source)
    it = Installed(folder=environment, packages=packages)
    before = it.files()
    yield it
    assert it.files() == before, "it wrote into site-packages"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user's without settings: what points at files of ours, or at the checkout, is left out."""
    (tmp_path / "home").mkdir()
    own = ("PYTHONPATH", "TOOLKIT_DB", "TOOLKIT_HOSTS", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"HOME": str(tmp_path / "home")}


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_the_toolkit_comes_from_the_wheel(
    installed: Installed, environ: dict[str, str], empty: Path
) -> None:
    done = subprocess.run(
        [installed.folder / "bin" / "python", "-c", "import toolkit; print(toolkit.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=empty,
        env=environ,
    )
    assert Path(done.stdout.strip()) == installed.packages / "toolkit" / "__init__.py"


def test_examples_come_with_it_and_the_package_runs_as_a_module(
    installed: Installed, environ: dict[str, str], empty: Path
) -> None:
    python = str(installed.folder / "bin" / "python")
    for name in ("hosts.txt", "stack.toml"):
        words = [python, "-m", "toolkit", "example", name]
        subprocess.run(words, check=True, cwd=empty, env=environ, timeout=WAIT_S)
        assert (empty / name).read_text() == (ROOT / "docs" / "examples" / name).read_text()


def test_a_blast_counts_and_the_page_shows_it(
    installed: Installed, environ: dict[str, str], empty: Path
) -> None:
    load = ["blast", "{hosts}", "--duration", "4s", "--users", "4", "--non-neutral", "--json"]
    fleet = ["sim", "fleet", "alice=cached", "bob=fp8", "--time-scale", "0.05", "--"]
    done = subprocess.run(
        [*installed.words(*fleet), *installed.words(*load)],
        capture_output=True,
        text=True,
        check=False,
        cwd=empty,
        env=environ,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["name"] for row in rows} == {"alice", "bob"}
    assert all(row["ok"] > 0 for row in rows)
    database = empty / "data" / "toolkit.db"
    with Store.open_readonly(database) as store:
        (run,) = store.runs(verb="blast")
        assert run.ended_at is not None
    with subprocess.Popen(
        installed.words("board", "--serve", "--rank-by", "p95"),
        stdout=subprocess.PIPE,
        text=True,
        cwd=empty,
        env=environ,
    ) as page:
        assert page.stdout
        link = page.stdout.readline().strip()
        with urllib.request.urlopen(link, timeout=WAIT_S) as answer:
            assert answer.status == 200
        with chromium() as browser, tab_of(browser) as tab:
            tab.page.goto(link)
            board(tab).wait_for()
            assert set(hosts(tab)) == {"alice", "bob"}
            assert tab.strangers() == set()
        page.terminate()
        assert page.wait(WAIT_S) == 0


def test_the_demo_plays_to_its_end(
    installed: Installed, environ: dict[str, str], empty: Path, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    done = subprocess.run(
        installed.words("demo", "--seconds", "12"),
        capture_output=True,
        text=True,
        check=False,
        cwd=empty,
        env=environ | {"TMPDIR": str(tmp_path / "files")},
        timeout=250,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "The leaderboard answers at http://127.0.0.1:" in done.stdout
    assert list((tmp_path / "files").iterdir()) == []
    assert list(empty.iterdir()) == []
