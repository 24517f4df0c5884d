"""One engine is launched, warmed and ended; what a swap changes, and whether there is room for it. The simulator stands for the engine."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from contract.harness.programs import TOOLKIT, free_port, runs

from toolkit.errors import ToolkitError
from toolkit.serving import engine as module
from toolkit.serving import swap
from toolkit.serving.engine import ManagedEngine
from toolkit.serving.engine_command import LaunchConfig
from toolkit.serving.gate import TrafficGate
from toolkit.serving.preflight.gpu import Gpus, NvmlGpu
from toolkit.serving.preflight.memory import Memory
from toolkit.serving.stack import EngineSetting, GuardSetting, WarmSetting

FLAGS = (("time-scale", "0.01"),)


def made(folder: Path, said: list[str]) -> ManagedEngine:
    setting = EngineSetting(name="e", kind="sim", model="gptq-int4", port=free_port(), flags=FLAGS)
    config = LaunchConfig(
        toolkit=(TOOLKIT,),
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


SETTING = EngineSetting(name="e", kind="sim", model="old", served_name="m", port=1, spare_port=2)
GIB = 2**30
NO_GPU, UNKNOWN = Gpus(), Memory()
ENGINE = EngineSetting(name="e", model="org/m", served_name="m", flags=(("seed", "1"),), port=8001)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 9000},
        {"gpus": "1"},
        {"preset": "wide"},
        {"flags": (("max-num-seqs", "8"), ("seed", "1"))},
        {"flags": (("seed", "1"), ("gpu-memory-utilization", "0.5"))},
    ],
)
def test_more_or_less_room_gives_the_same_answers(changes: dict[str, object]) -> None:
    assert swap.meaning(ENGINE) == swap.meaning(replace(ENGINE, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "org/other"},
        {"served_name": "n"},
        {"kind": "sim"},
        {"flags": (("seed", "2"),)},
        {"flags": ()},
        {"flags": (("seed", "1"), ("quantization", "fp8"))},
        {"flags": (("seed", "1"), ("a-flag-of-tomorrow", "x"))},
        {"env": (("VLLM_ATTENTION_BACKEND", "x"),)},
        {"vllm": "/other/bin/vllm"},
    ],
)
def test_whatever_may_change_an_answer_counts_as_another_model(changes: dict[str, object]) -> None:
    assert swap.meaning(ENGINE) != swap.meaning(replace(ENGINE, **changes))  # type: ignore[arg-type]


def test_what_a_swap_changes_is_told_without_secrets() -> None:
    flags = (("hf-token", "hf_geheim"), ("max-num-seqs", "8"))
    assert swap.words(SETTING, replace(SETTING, flags=flags)) == "--hf-token, --max-num-seqs - -> 8"
    assert swap.words(SETTING, replace(SETTING, model="new")) == "old -> new"
    assert swap.words(SETTING, replace(SETTING, preset="wide")) == "preset none -> wide"
    assert swap.words(SETTING, SETTING) == "the same settings"


# --- is there room? --------------------------------------------------------------------------------------


def why(
    setting: EngineSetting,
    gpus: Gpus = NO_GPU,
    memory: Memory = UNKNOWN,
    *,
    pids: Sequence[int] = (),
) -> str | None:
    members = [SimpleNamespace(pid=pid) for pid in pids]
    old: Any = SimpleNamespace(process=SimpleNamespace(members=lambda: members))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "gpus", lambda chosen: _seen(gpus, chosen))
        patch.setattr(swap, "memory", lambda: memory)
        return swap.why_no_room(old, setting)


def _seen(gpus: Gpus, chosen: str | None) -> Gpus:
    """As preflight.gpu tells them: with what the engine will see, which is inherited where nobody chose."""
    return gpus if chosen is None else replace(gpus, visible=chosen)


def on_gpus(*free_gib: float, **more: Any) -> Gpus:
    return Gpus(
        gpus=tuple(
            NvmlGpu(
                index=i, uuid=f"GPU-{i}", total_bytes=80 * GIB, free_bytes=int(free * GIB), **more
            )
            for i, free in enumerate(free_gib)
        )
    )


VLLM = replace(SETTING, kind="vllm")


@pytest.mark.parametrize(
    ("free_gib", "flags", "fits"),
    [
        # vLLM claims 92 % of 80 GiB by itself: 73.6
        (73.0, (), False),
        (74.0, (), True),
        # and 45 % where it is told so: 36
        (35.0, (("gpu-memory-utilization", "0.45"),), False),
        (37.0, (("gpu-memory-utilization", "0.45"),), True),
    ],
)
def test_there_is_room_where_vllm_finds_free_what_it_claims(
    free_gib: float, flags: tuple[tuple[str, str], ...], fits: bool
) -> None:
    told = why(replace(VLLM, flags=flags), on_gpus(free_gib))
    assert (told is None) is fits
    if told is not None:
        assert told.startswith(f"GPU 0 has {free_gib:.0f} GiB free")


def test_only_the_engines_own_gpus_count() -> None:
    machine = on_gpus(1.0, 79.0)
    assert why(replace(VLLM, gpus="1"), machine) is None
    assert why(replace(VLLM, gpus="GPU-1"), machine) is None
    assert why(replace(VLLM, gpus="0,1"), machine) is not None
    assert why(VLLM, machine) is not None
    # of an engine that names none those count that it inherits
    assert why(VLLM, replace(machine, visible="1")) is None


def test_a_slice_is_measured_by_itself() -> None:
    part = NvmlGpu(index=0, uuid="MIG-7", name="3g.40gb", total_bytes=40 * GIB, free_bytes=39 * GIB)
    machine = on_gpus(1.0, mig=True, slices=(part,))
    assert why(replace(VLLM, gpus="MIG-7"), machine) is None
    full = replace(part, free_bytes=10 * GIB)
    told = why(replace(VLLM, gpus="MIG-7"), on_gpus(79.0, mig=True, slices=(full,)))
    assert told is not None
    assert told.startswith("slice 0 of GPU 0 has 10 GiB free")


def test_on_the_cpu_the_new_one_needs_as_much_memory_as_the_old_one_has() -> None:
    taken = psutil.Process().memory_info().rss
    # a tenth of 100 GiB stays free for everybody else
    total, spare = 100 * GIB, 10 * GIB
    enough = Memory(total_bytes=total, free_bytes=spare + 2 * taken)
    short = Memory(total_bytes=total, free_bytes=spare + taken // 2)
    pids = [os.getpid()]
    assert why(VLLM, memory=enough, pids=pids) is None
    assert "of memory, and" in (why(VLLM, memory=short, pids=pids) or "")
    # who has gone takes none
    assert why(VLLM, memory=short, pids=[2**22 + 1]) is None
