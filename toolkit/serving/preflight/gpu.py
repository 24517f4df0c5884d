"""Are the GPUs there, free, awake, and at their full clock? NVIDIA's library NVML says it."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.serving.preflight import kernel
from toolkit.serving.preflight.check import Check, Needs, as_root, fail, ok, unless_contained, warn
from toolkit.serving.preflight.vllm import InstalledVllm
from toolkit.units import counted, size, spoken_list

PCI = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
GRAPHICS = "0x03"
"""PCI's class of display controllers: VGA (0x0300) and 3D (0x0302), as which compute cards stand there."""
LIMITS = (
    # bit of NVML's clocks event reasons, and what it means; idle (0x1) holds nobody down
    (0x2, "clocks set by somebody"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "heat (software)"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake"),
)
HELD_DOWN = ("hardware slowdown", "heat (software)", "heat (hardware)", "power brake")
"""Not a power cap, which is usual at full load; not a clock that somebody set, which is the cure."""
FULL_SPEED = 0.95
"""Of the highest clock; steps are 15 MHz of 1,410 to 1,980."""
IDLE_SHARE = 0.01
# NVML's own numbers: the compute mode that lets nobody compute, the clock of the multiprocessors, the GPU's own sensor of heat,
# errors that ECC could not correct, and those since the driver was loaded
PROHIBITED, SM, SENSOR, UNCORRECTED, VOLATILE = 2, 1, 0, 1, 0
NAMED = 3
LONGEST_COMMAND = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU, or a MIG slice of one, as NVML shows it; what it does not say is None."""

    index: int
    handle: Any = None
    """NVML's own, to ask it more while NVML is open."""
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: Mapping[int, int | None] = field(default_factory=dict)
    """Who holds its memory: the bytes of each pid, which may be one of another container."""
    busy_share: float | None = None
    limits: tuple[str, ...] | None = None
    """Why its clocks are held down at this moment, in the words of LIMITS."""
    mig: bool = False
    slices: tuple["NvmlGpu", ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All GPUs of the machine, or why there are none."""

    driver: str | None = None
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs, e.g., (13, 0)."""
    gpus: tuple[NvmlGpu, ...] = ()
    error: str | None = None
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES as the engine will inherit it; None: not set."""


# --- what NVML says -------------------------------------------------------------------------------------------


def gpus(visible: str | None = None) -> Gpus:
    """Every GPU of this machine; `visible` is what CUDA_VISIBLE_DEVICES will be, None: as it is here."""
    with opened(visible) as found:
        return found


@contextmanager
def opened(visible: str | None = None) -> Iterator[Gpus]:
    """As `gpus`, while NVML stays open: without persistence mode it would take seconds to open it again."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    with ExitStack() as until_closed:
        try:
            import pynvml as nvml  # noqa: PLC0415 (8,000 lines that other commands need not read)

            nvml.nvmlInit()
            until_closed.callback(nvml.nvmlShutdown)
            number = _ask("nvmlSystemGetCudaDriverVersion_v2")
            found = Gpus(
                driver=_ask("nvmlSystemGetDriverVersion"),
                # 13000 is CUDA 13.0, 12080 is 12.8
                cuda=(number // 1000, number % 1000 // 10) if number else None,
                gpus=tuple(_gpu(index) for index in range(nvml.nvmlDeviceGetCount())),
                visible=visible,
            )
        except ImportError as error:
            found = Gpus(error=f"`nvidia-ml-py` is missing: {error}", visible=visible)
        except nvml.NVMLError as error:
            found = Gpus(error=str(error), visible=visible)
        yield found


def _ask(call: str, *arguments: Any) -> Any:
    """What NVML answers; None where this GPU, this driver or this user does not get an answer."""
    import pynvml as nvml  # noqa: PLC0415

    try:
        return getattr(nvml, call)(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None


def _gpu(index: int) -> NvmlGpu:
    import pynvml as nvml  # noqa: PLC0415

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return NvmlGpu(index=index, error=str(error))
    busy = _ask("nvmlDeviceGetUtilizationRates", handle)
    # the call was renamed with driver 535, and both names are there since
    reasons = _ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    mode = _ask("nvmlDeviceGetMigMode", handle)
    is_divided = bool(mode and mode[0])
    places = _ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0 if is_divided else 0
    # a place without a slice answers `not found`
    asked = (_ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in range(places))
    slices = [each for each in asked if each is not None]
    return NvmlGpu(
        index=index,
        **_facts(handle),
        busy_share=None if busy is None else busy.gpu / 100,
        limits=None if reasons is None else tuple(word for bit, word in LIMITS if reasons & bit),
        mig=is_divided,
        slices=tuple(NvmlGpu(index=i, **_facts(each)) for i, each in enumerate(slices)),
    )


def _facts(handle: Any) -> dict[str, Any]:
    """What a GPU and a slice both say."""
    memory = _ask("nvmlDeviceGetMemoryInfo", handle)
    running = _ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return {
        "handle": handle,
        "name": _ask("nvmlDeviceGetName", handle),
        "uuid": _ask("nvmlDeviceGetUUID", handle),
        "total_bytes": None if memory is None else int(memory.total),
        "free_bytes": None if memory is None else int(memory.free),
        "processes": {each.pid: each.usedGpuMemory for each in running},
    }


# --- which of them the engine will see ------------------------------------------------------------------------


def visible(found: Gpus) -> tuple[NvmlGpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves: `0,2`, `GPU-ab12`, `MIG-...`; like CUDA it stops at the first bad word."""
    if found.visible is None:
        return found.gpus
    chosen: list[NvmlGpu] = []
    for word in found.visible.split(","):
        gpu = next((each for each in found.gpus if _is_meant(each, word.strip())), None)
        if gpu is None:
            break
        if gpu not in chosen:
            chosen.append(gpu)
    return tuple(chosen)


def _is_meant(gpu: NvmlGpu, word: str) -> bool:
    if word.isascii() and word.isdigit():
        return gpu.index == int(word)
    return bool(word) and any((each.uuid or "").startswith(word) for each in (gpu, *gpu.slices))


def parts(found: Gpus) -> Iterator[tuple[str, str, NvmlGpu]]:
    """What the engine may take memory of, with its code and its name: whole GPUs, and of a divided one the slices that are named."""
    words = [word.strip() for word in (found.visible or "").split(",")]
    named = [word for word in words if word.startswith("MIG")]
    for gpu in visible(found):
        if not gpu.mig and not gpu.error:
            yield f"gpu_{gpu.index}", f"GPU {gpu.index}", gpu
        for part in gpu.slices:
            if not named or any(_is_meant(part, word) for word in named):
                code = f"gpu_{gpu.index}_slice_{part.index}"
                yield code, f"slice {part.index} of GPU {gpu.index}", part


# --- what that means ------------------------------------------------------------------------------------------


def checks(needs: Needs, found: Gpus, engine: InstalledVllm | None) -> Iterator[Check]:
    """The machine's GPUs as a whole, then each one that the engine will see; NVML is open."""
    yield _presence(needs, found, engine)
    if not needs.gpu:
        return
    for code, name, part in parts(found):
        yield _memory(f"{code}_memory", name, part, needs)
    for gpu in visible(found):
        name, code, reset = f"GPU {gpu.index}", f"gpu_{gpu.index}", _smi(gpu, "--gpu-reset")
        if gpu.error:
            yield fail(code, f"{name} does not answer: {gpu.error}", reset)
            continue
        if gpu.mig and not gpu.slices:
            why = f"{name} is in MIG mode and has no slices: nothing can run there"
            yield fail(f"{code}_mig", why, _smi(gpu, "-mig 0"))
        elif gpu.mig:
            named = ", ".join(part.name or part.uuid or "?" for part in gpu.slices)
            yield ok(f"{code}_mig", f"{name} is divided into {len(gpu.slices)} slices: {named}")
        if _ask("nvmlDeviceGetComputeMode", gpu.handle) == PROHIBITED:
            why = f"{name} is in compute mode `prohibited`: no process may use it"
            yield fail(f"{code}_mode", why, _smi(gpu, "-c 0"))

        persistence = _ask("nvmlDeviceGetPersistenceMode", gpu.handle)
        if persistence is None:
            yield warn(f"{code}_persistence", f"unknown: {name} does not report persistence mode")
        elif persistence:
            yield ok(f"{code}_persistence", f"{name} stays awake between processes")
        else:
            why = f"{name} sleeps while no process uses it: each start waits for it, and locked clocks are forgotten"
            repair = partial(_keep_awake, gpu.index) if os.geteuid() == 0 else None
            yield warn(f"{code}_persistence", why, _smi(gpu, "-pm 1"), repair)

        yield _clocks(f"{code}_clocks", name, gpu)

        # memory that waits for the next reset to be replaced: rows since the A100, pages before
        rows = _ask("nvmlDeviceGetRemappedRows", gpu.handle)
        pages = _ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu.handle)
        # a GPU without ECC has no count
        errors = _ask("nvmlDeviceGetTotalEccErrors", gpu.handle, UNCORRECTED, VOLATILE)
        if pages if rows is None else rows[2]:
            why = f"{name} has broken memory that it replaces at its next reset: until then answers may be wrong"
            yield fail(f"{code}_ecc", why, reset)
        elif errors:
            why = f"{name} counted {errors:,} uncorrected memory errors since its driver was loaded"
            yield warn(f"{code}_ecc", f"{why}: a process that meets one ends", reset)
        elif errors == 0:
            yield ok(f"{code}_ecc", f"{name} counted no uncorrected memory error")


def _presence(needs: Needs, found: Gpus, engine: InstalledVllm | None) -> Check:
    """Whether there is a GPU, and why not; the PCI bus shows what the driver does not."""
    if not needs.gpu:
        return ok("gpu", "no GPU is needed: the CPU or the simulator serves")
    if used := visible(found):
        kinds = Counter(gpu.name or "unknown GPU" for gpu in used)
        names = ", ".join(f"{count} x {name}" for name, count in kinds.items())
        cuda = "" if found.cuda is None else ", runs CUDA up to {}.{}".format(*found.cuda)
        return ok("gpu", f"{names}; driver {found.driver or 'unknown'}{cuda}")
    if found.gpus:
        hidden = "the GPU" if len(found.gpus) == 1 else f"all {len(found.gpus)} GPUs"
        why = f"CUDA_VISIBLE_DEVICES is `{found.visible}`, which hides {hidden} from the engine"
        return fail("gpu", why, "unset CUDA_VISIBLE_DEVICES" if needs.gpus is None else None)

    error = found.error or "NVML names none"
    on_the_bus = sum(
        (kernel.text(device / "vendor") or "").strip() == NVIDIA
        and (kernel.text(device / "class") or "").startswith(GRAPHICS)
        for device in (PCI.iterdir() if PCI.is_dir() else ())
    )
    if on_the_bus:
        mend = "apt-get install -y nvidia-driver"
        if "mismatch" in error.lower():  # the library was updated under the loaded kernel module
            mend = "reboot"
        elif "not loaded" in error.lower():
            mend = "modprobe nvidia"
        fix = unless_contained(mend, "--gpus all --ipc=host")
        many = f"{counted(on_the_bus, 'NVIDIA device')} on the PCI bus"
        return fail("gpu", f"{many}, but the driver does not answer: {error}", fix)
    if error.startswith("`nvidia-ml-py`"):
        return warn("gpu", f"unknown: {error}", "pip install nvidia-ml-py")
    if engine is not None and engine.version and engine.cuda is None and not engine.error:
        why = f"no GPU ({error}); this vLLM was built for the CPU and serves there, slowly"
        return warn("gpu", why)
    return fail("gpu", f"no GPU ({error}), and a CPU serves far too slowly")


def _smi(gpu: NvmlGpu, words: str) -> str:
    return as_root(f"nvidia-smi -i {gpu.index} {words}")


def _memory(code: str, name: str, part: NvmlGpu, needs: Needs) -> Check:
    """A vLLM refuses to start when less is free than the share of all that it asks for."""
    if part.total_bytes is None or part.free_bytes is None:
        return warn(code, f"unknown: {name} does not report its memory")
    asked = needs.gpu_memory_utilization * part.total_bytes
    said = f"{name} has {size(part.free_bytes)} of {size(part.total_bytes)} free"
    if needs.gpu_bytes is not None and needs.gpu_bytes > asked:
        why = f"{said}, and the weights alone take {size(needs.gpu_bytes)} of the {size(asked)} that vLLM may use"
        return fail(code, why, f"toolkit plan {needs.model}" if needs.model else None)

    commands = {pid: kernel.command(pid, LONGEST_COMMAND) for pid in part.processes}
    # end those that can be seen from here; a pid of another container would be somebody else's here
    pids = sorted(pid for pid, command in commands.items() if command and pid > 1)
    end = "kill " + " ".join(map(str, pids)) if pids else as_root("fuser -v /dev/nvidia*")
    named = []
    for pid, used in part.processes.items():
        who = f"`{commands[pid]}`" if commands[pid] else "a process"
        named.append(f"{who} (pid {pid}{'' if used is None else f', {size(used)}'})")
    others, s = spoken_list(named, NAMED), "s" * (len(named) == 1)
    if part.free_bytes < asked:
        held = f": {others} hold{s} the rest" if named else ""
        return fail(code, f"{said}{held}; vLLM asks for {size(asked)} and ends at once", end)
    if named:
        return warn(code, f"{said}, and {others} use{s} it, too: both slow each other", end)
    return ok(code, f"{said}; no other process uses it")


def _clocks(code: str, name: str, gpu: NvmlGpu) -> Check:
    """NVML says the clock, its highest value and what holds it down, but not whether it is locked.

    An idle GPU drops its clock (an H200 to 345 of 1,980 MHz) unless it is locked, which is how one can tell.
    """
    now = _ask("nvmlDeviceGetClockInfo", gpu.handle, SM)
    most = _ask("nvmlDeviceGetMaxClockInfo", gpu.handle, SM)
    if now is None or not most:
        return warn(code, f"unknown: {name} does not report its clocks")
    lock, said = _smi(gpu, f"-lgc {most},{most}"), f"{name} runs at {now:,} of {most:,} MHz"
    if held := [word for word in gpu.limits or () if word in HELD_DOWN]:
        degrees = _ask("nvmlDeviceGetTemperature", gpu.handle, SENSOR)
        heat = "" if degrees is None else f" at {degrees} \N{DEGREE SIGN}C"
        why = f"{said}{heat}, held down by {', '.join(held)}: it serves slower and slower, which looks like a leak in software"
        return warn(code, why, lock)
    if now >= FULL_SPEED * most:
        return ok(code, said)
    if gpu.busy_share is not None and gpu.busy_share <= IDLE_SHARE:
        why = f"{said} while it idles, so its clock is not locked: under load it drifts, which looks like slow software"
        return warn(code, why, lock)
    by = f" ({', '.join(gpu.limits)})" if gpu.limits else ""
    return warn(code, f"{said} under load{by}: a locked clock would hold it steady", lock)


def _keep_awake(index: int) -> tuple[bool, str]:
    """Switch persistence mode on."""
    import pynvml as nvml  # noqa: PLC0415

    with opened() as found:
        try:
            nvml.nvmlDeviceSetPersistenceMode(found.gpus[index].handle, nvml.NVML_FEATURE_ENABLED)
        except (nvml.NVMLError, IndexError) as error:
            return False, f"GPU {index} refuses: {found.error or error}"
    return True, f"GPU {index} stays awake now"
