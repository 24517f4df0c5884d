"""The leaderboard page as a demo serves it: started, awaited, stopped."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.demo_children import LOOPBACK, answers, environment, free_port, refuse_dead, server
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import subprocess

PAGE = Path("dashboards", "leaderboard.py")
PORT = 8501
"""Streamlit's own."""
START_LIMIT_S = 60.0


def page_file(root: Path = Path(__file__).parents[2]) -> Path:
    """Where the page is: beside the package. Raises ToolkitError."""
    path = root / PAGE
    if not path.is_file():
        raise ToolkitError(
            f"`{path}` is not there, which is the leaderboard",
            "Run the toolkit from its checkout, or leave the page out: `--no-page`",
        )
    return path


def page_port(wanted: int | None) -> int:
    """The port that is wanted, else the usual one, else a free one. Raises ToolkitError for a taken one."""
    if _is_free(wanted or PORT):
        return wanted or PORT
    if wanted:
        raise ToolkitError(f"port {wanted} is taken", "Leave `--port` out, and a free one is found")
    return free_port()


def page_url(port: int) -> str:
    """Where it is served."""
    return f"http://{LOOPBACK}:{port}"


def page_log(folder: Path) -> Path:
    """Where it writes what it has to say."""
    return folder / "page.log"


@contextlib.contextmanager
def served(database: Path, port: int, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The page over a database until the end of the block, which begins once it answers."""
    words = [sys.executable, "-m", "streamlit", "run", str(page_file())]
    words += ["--server.port", str(port)]
    log, url = page_log(folder), page_url(port)
    with server(words, folder, log, environment(TOOLKIT_DB=str(database))) as process:
        give_up_s = time.monotonic() + START_LIMIT_S
        while not (answers(f"{url}/_stcore/health") and answers(url)):
            refuse_dead(process, "the leaderboard", log)
            if time.monotonic() > give_up_s:
                raise ToolkitError(f"the leaderboard did not answer within {START_LIMIT_S:.0f} s")
            time.sleep(0.1)
        yield process


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as Streamlit does: a port of connections that were just closed is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
