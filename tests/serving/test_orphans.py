"""What a killed serve left behind is found, ended and told; real processes."""

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.served import runs, wait_until

from toolkit.errors import ToolkitError
from toolkit.serving.orphans import answered, end_orphans, write_answered

SERVE = """
import asyncio, os, sys
from pathlib import Path
from toolkit.serving.launch import Process

async def main():
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = await Process.start(words, os.environ, Path(sys.argv[1]))
    print(process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def killed_serve(folder: Path, *, reaper_too: bool) -> int:
    """Start an engine as serve does, and kill whoever started it; the engine's pid."""
    command = [sys.executable, "-c", SERVE, str(folder / "qwen.a.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as serve:
        assert serve.stdout is not None
        pid = int(serve.stdout.readline())
        reaper = psutil.Process(pid).parent()
        assert reaper is not None
        if reaper_too:
            reaper.suspend()
        serve.kill()
        if reaper_too:
            reaper.kill()
    return pid


def test_one_whose_reaper_has_ended_it_is_told_as_well(tmp_path: Path) -> None:
    pid = killed_serve(tmp_path, reaper_too=False)
    wait_until(lambda: not runs(pid))
    (told,) = asyncio.run(end_orphans(tmp_path))
    assert told.endswith(f"(pid {pid}) has ended by itself")


@pytest.mark.parametrize("text", ["[1]", "{", ""])
def test_a_note_that_cannot_be_read_is_somebody_elses(tmp_path: Path, text: str) -> None:
    """Of one that is damaged nobody knows whose answers are stored: none of them may be shown."""
    (tmp_path / "answered.json").write_text(text)
    assert answered(tmp_path) == {}


def test_a_folder_that_takes_nothing_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "answered.json").mkdir()
    with pytest.raises(ToolkitError, match="cannot be written") as told:
        write_answered(tmp_path, {"e": "one"})
    assert f"df -h {tmp_path}" in told.value.hint
