"""One engine is launched, warmed and ended; the simulator, as a process of its own, stands for it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.served import TOOLKIT, free_ports, runs

from toolkit.errors import ToolkitError
from toolkit.serving import engine as module
from toolkit.serving.engine import ManagedEngine
from toolkit.serving.engine_command import LaunchConfig
from toolkit.serving.gate import TrafficGate
from toolkit.serving.stack import EngineSetting, GuardSetting, WarmSetting

FLAGS = (("time-scale", "0.01"),)


def made(folder: Path, said: list[str]) -> ManagedEngine:
    (port,) = free_ports(1)
    setting = EngineSetting(name="e", kind="sim", model="gptq-int4", port=port, flags=FLAGS)
    config = LaunchConfig(
        toolkit=TOOLKIT,
        folder=folder,
        warm=WarmSetting(concurrency=(1, 2), rounds=2),
        guard=GuardSetting(),
        tell=lambda _: None,
        say=said.append,
    )
    return ManagedEngine(setting, "a", config, TrafficGate())


class Deadly(list[str]):
    """What is said; at the first round of the warm-up the engine is killed."""

    engine: ManagedEngine

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

    monkeypatch.setattr(module.Process, "start", full)
    with pytest.raises(ToolkitError, match="cannot be written: no space left on device"):
        asyncio.run(made(tmp_path, []).start())


def test_the_watchdog_of_one_that_serves_must_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        engine, now = made(tmp_path, []), module.time.monotonic()
        assert engine.is_well_watched, "nobody has to look yet"
        await engine.serve()
        # until it looked for the first time nothing is known
        await asyncio.sleep(0)
        assert engine.is_well_watched
        longest_s = 2 * GuardSetting().look_s + module.UNSEEN_S
        monkeypatch.setattr(module.time, "monotonic", lambda: now + longest_s + 10.0)
        assert not engine.is_well_watched, "it hangs"
        # on its way back it is started and warmed, which takes minutes without a look
        engine.be("warming")
        assert engine.is_well_watched
        watching = engine._watching
        assert watching is not None
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert not engine.is_well_watched, "it ended by a fault"
        engine.be("down")
        assert engine.is_well_watched, "given up, it has nothing to do any more"
        await engine.unwatch()

    asyncio.run(scene())
