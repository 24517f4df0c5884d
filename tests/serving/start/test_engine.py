"""One engine is launched, warmed and ended; the simulator, as a process of its own, stands for it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.served import TOOLKIT, free_ports, runs

from toolkit.errors import ToolkitError
from toolkit.serving.stack import EngineSetting, WarmSetting
from toolkit.serving.start import engine as room
from toolkit.serving.start.engine import Engine, Outfit
from toolkit.serving.start.engine_words import Speller

FLAGS = (("time-scale", "0.01"),)


def made(folder: Path, said: list[str]) -> Engine:
    (port,) = free_ports(1)
    setting = EngineSetting(name="e", kind="sim", model="gptq-int4", port=port, flags=FLAGS)
    outfit = Outfit(
        speller=Speller(toolkit=TOOLKIT, folder=folder),
        folder=folder,
        warm=WarmSetting(concurrency=(1, 2), rounds=2),
        stop_s=10.0,
    )
    return Engine(setting, "e.a", outfit, said.append)


class Deadly(list[str]):
    """What is said; at the first round of the warm-up the engine is killed."""

    engine: Engine

    def append(self, line: str) -> None:
        super().append(line)
        process = self.engine.process
        if "(cold)" in line and process is not None and runs(process.pid):
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_one_that_dies_in_its_warm_up_is_not_warm_however_well_it_began(tmp_path: Path) -> None:
    said = Deadly()
    said.engine = made(tmp_path, said)

    async def scene() -> None:
        await said.engine.start()
        try:
            with pytest.raises(ToolkitError, match="`e` ended while it was warmed up"):
                await said.engine.warm()
        finally:
            await said.engine.stop()

    asyncio.run(scene())
    assert said.engine.warmed is None


def test_a_folder_that_takes_no_log_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.Process, "start", full)
    with pytest.raises(ToolkitError, match="cannot be written: no space left on device"):
        asyncio.run(made(tmp_path, []).start())
