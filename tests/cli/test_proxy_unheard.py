"""`toolkit proxy` when nobody reads any more what it says on standard error, as behind `2>&1 | head`."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.proxy_verb import COMMAND, PATIENCE_S


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_signal_ends_it_though_nobody_hears_that_it_does(workers: int, tmp_path: Path) -> None:
    words = f"--upstream http://127.0.0.1:9 --workers {workers} --port 0 --admin-port 0"
    process = subprocess.Popen(
        [*COMMAND, *words.split(), "--cache-file", str(tmp_path / "cache.db")],
        cwd=tmp_path,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while not process.stderr.readline().startswith(b"Ready:"):
            assert process.poll() is None
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_S)
