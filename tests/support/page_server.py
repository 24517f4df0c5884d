"""The leaderboard page in a process of its own, as `streamlit run dashboards/leaderboard.py` starts it."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psutil
from contract.harness.programs import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "dashboards" / "leaderboard.py"
START_LIMIT_S = 60.0
"""From the start to an answer: 2 s on an idle core."""


class PageServer:
    """Started and stopped at will, always on the same port; what it says goes to a log in its folder."""

    def __init__(self, database: Path, folder: Path, *asked: str) -> None:
        self.database = database
        self.log = folder / "page.log"
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        words = ["-m", "streamlit", "run", str(PAGE), "--server.port", str(port)]
        self._command = [sys.executable, *words, "--", *asked]
        # a home of its own: neither this user's settings nor an answer to Streamlit's first question
        self._environment = os.environ | {"HOME": str(folder), "TOOLKIT_DB": str(database)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Return once it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )
        give_up = time.monotonic() + START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """As a power cut would: it can clean up nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def cpu_s(self) -> float:
        """CPU time that it has used."""
        times = self._seen().cpu_times()
        return times.user + times.system

    def rss_mb(self) -> float:
        """Memory that it holds."""
        return self._seen().memory_info().rss / 1e6

    def _seen(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"{self.url}/_stcore/health", timeout=START_LIMIT_S
            ) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def page_over(database: Path, folder: Path, *asked: str) -> Iterator[PageServer]:
    """A page that answers, and is gone afterwards; `asked`: words for the page, behind `--`."""
    server = PageServer(database, folder, *asked)
    try:
        yield server.start()
    finally:
        server.kill()
