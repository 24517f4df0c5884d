"""The leaderboard page as `toolkit board --serve` and a demo serve it: started, awaited, stopped; and its modules, for `--publish`."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from toolkit.cli.children import LOOPBACK, answers, environment, server, wait_until_up
from toolkit.cli.places import PACKAGE, front_end
from toolkit.cli.ports import NOT_ALLOWED, TAKEN, free_port, why_taken
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import subprocess

PORT = 8501
"""Streamlit's own."""
START_LIMIT_S = 60.0


def page_file(package: Path = PACKAGE) -> Path:
    """Where the page is. Raises ToolkitError."""
    return front_end("dashboards", "leaderboard.py", "is the leaderboard", package)


def page_module(name: str) -> ModuleType:
    """A module of the page, found as `streamlit run` finds it: the page is a front end of its own, and no part of this package."""
    folder = str(page_file().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(f"leaderboard_page.{name}")


def page_port(wanted: int | None, host: str = LOOPBACK) -> int:
    """The port that is wanted, else the usual one, else a free one. Raises ToolkitError for one that cannot be had."""
    port = wanted or PORT
    refusal = why_taken(host, port)
    if refusal is None:
        return port
    if refusal == NOT_ALLOWED:
        raise ToolkitError(f"port {port} is kept for root", "Choose one from 1024 on with `--port`")
    if refusal != TAKEN:
        raise ToolkitError(
            f"nothing can listen on `{host}`: {refusal}",
            "Name an address of this machine; `ip addr` lists them",
        )
    if wanted:
        raise ToolkitError(f"port {port} is taken", "Leave `--port` out, and a free one is found")
    return free_port()


def page_url(port: int, host: str = LOOPBACK) -> str:
    """Where it is served, as this machine reaches it."""
    found = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 (asked for by name)
    return f"http://[{found}]:{port}" if ":" in found else f"http://{found}:{port}"


def page_log(folder: Path) -> Path:
    """Where it writes what it has to say."""
    return folder / "page.log"


@contextlib.contextmanager
def served(
    database: Path, port: int, folder: Path, host: str = LOOPBACK, asked: Sequence[str] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    """The page over a database until the end of the block, which begins once it answers; `asked`: words for the page itself."""
    words = [sys.executable, "-m", "streamlit", "run", str(page_file())]
    words += ["--server.port", str(port), "--server.address", host, "--", *asked]
    log, url = page_log(folder), page_url(port, host)
    with server(words, folder, log, environment(TOOLKIT_DB=str(database))) as process:
        wait_until_up(
            process,
            "the leaderboard",
            log,
            lambda: answers(f"{url}/_stcore/health") and answers(url),
            limit_s=START_LIMIT_S,
            hint="Is the machine overloaded? `toolkit board --watch` shows the same in a terminal",
        )
        yield process
