"""The leaderboard page as `toolkit board --serve` and a demo serve it: started, awaited, stopped."""

import contextlib
import errno
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.children import LOOPBACK, answers, environment, free_port, server, wait_until_up
from toolkit.cli.places import PACKAGE, front_end
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import subprocess

PORT = 8501
"""Streamlit's own."""
START_LIMIT_S = 60.0


def page_file(package: Path = PACKAGE) -> Path:
    """Where the page is. Raises ToolkitError."""
    return front_end("dashboards", "leaderboard.py", "is the leaderboard", package)


def page_port(wanted: int | None, host: str = LOOPBACK) -> int:
    """The port that is wanted, else the usual one, else a free one. Raises ToolkitError for one that cannot be had."""
    port = wanted or PORT
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # as Streamlit does: a port of connections that were just closed is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EACCES:
                raise ToolkitError(
                    f"port {port} is kept for root", "Choose one from 1024 on with `--port`"
                ) from error
            if error.errno != errno.EADDRINUSE:
                raise ToolkitError(
                    f"nothing can listen on `{host}`: {(error.strerror or str(error)).lower()}",
                    "Name an address of this machine; `ip addr` lists them",
                ) from error
            if wanted:
                raise ToolkitError(
                    f"port {wanted} is taken", "Leave `--port` out, and a free one is found"
                ) from error
            return free_port()
    return port


def page_url(port: int, host: str = LOOPBACK) -> str:
    """Where it is served, as this machine reaches it."""
    found = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 (asked for by name)
    return f"http://[{found}]:{port}" if ":" in found else f"http://{found}:{port}"


def page_log(folder: Path) -> Path:
    """Where it writes what it has to say."""
    return folder / "page.log"


@contextlib.contextmanager
def served(
    database: Path, port: int, folder: Path, host: str = LOOPBACK
) -> Iterator["subprocess.Popen[bytes]"]:
    """The page over a database until the end of the block, which begins once it answers."""
    words = [sys.executable, "-m", "streamlit", "run", str(page_file())]
    words += ["--server.port", str(port), "--server.address", host]
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
