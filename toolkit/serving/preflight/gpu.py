"""Are the GPUs there, free, awake, and at their full clock? NVIDIA's library NVML says it."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolkit.serving.preflight import kernel
from toolkit.serving.preflight.check import (
    Check,
    Needs,
    as_root,
    bad,
    container,
    doubtful,
    good,
    started_with,
)
from toolkit.serving.preflight.vllm import InstalledVllm
from toolkit.units import counted, size

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
PROHIBITED = 2
"""NVML's compute mode that lets nobody compute."""
NAMED = 3
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    used_bytes: int | None = None
    command: str | None = None
    """None: it cannot be seen from here, e.g., it is another container's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU, or a MIG slice of one, as NVML shows it; what it does not say is None."""

    index: int
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    persistence: bool | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    busy_share: float | None = None
    limits: tuple[str, ...] | None = None
    """Why its clocks are held down at this moment, in the words of LIMITS."""
    temperature_c: int | None = None
    compute_mode: int | None = None
    """0 default, 1 and 3 exclusive, 2 prohibited."""
    mig: bool = False
    slices: tuple["NvmlGpu", ...] = ()
    ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded."""
    pages_pending: bool = False
    """Memory that the GPU wants to replace at its next reset."""
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
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    try:
        import pynvml as nvml  # noqa: PLC0415 (8,000 lines that other commands need not read)
    except ImportError as error:
        return Gpus(error=f"`nvidia-ml-py` is missing: {error}", visible=visible)
    try:
        nvml.nvmlInit()
        number = _tried(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return Gpus(
            driver=_text(_tried(nvml.nvmlSystemGetDriverVersion)),
            # 13000 is CUDA 13.0, 12080 is 12.8
            cuda=(number // 1000, number % 1000 // 10) if number else None,
            gpus=tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())),
            visible=visible,
        )
    except nvml.NVMLError as error:
        return Gpus(error=_plain(error), visible=visible)
    finally:
        _tried(nvml.nvmlShutdown)


def _tried(ask: Callable[..., Value], *arguments: Any) -> Value | None:
    """What NVML answers; None where this GPU, this driver or this user does not get an answer."""
    import pynvml as nvml  # noqa: PLC0415

    try:
        return ask(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None


def _gpu(nvml: Any, index: int) -> NvmlGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return NvmlGpu(index=index, error=_plain(error))
    busy = _tried(nvml.nvmlDeviceGetUtilizationRates, handle)
    mode = _tried(nvml.nvmlDeviceGetMigMode, handle)
    persistence = _tried(nvml.nvmlDeviceGetPersistenceMode, handle)
    # the call was renamed with driver 535, and both names are there since
    reasons = _tried(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        reasons = _tried(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    # memory that waits for the next reset to be replaced: rows since the A100, pages before
    rows = _tried(nvml.nvmlDeviceGetRemappedRows, handle)
    pending = (
        _tried(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle) if rows is None else rows[2]
    )
    slices: list[NvmlGpu] = []
    if mode is not None and mode[0]:
        for place in range(_tried(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            # a place without a slice answers `not found`
            device = _tried(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            if device is not None:
                slices.append(NvmlGpu(index=len(slices), **_memory(nvml, device)))
    return NvmlGpu(
        index=index,
        **_memory(nvml, handle),
        persistence=None if persistence is None else bool(persistence),
        sm_mhz=_tried(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        sm_max_mhz=_tried(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        busy_share=None if busy is None else busy.gpu / 100,
        limits=None if reasons is None else tuple(word for bit, word in LIMITS if reasons & bit),
        temperature_c=_tried(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        compute_mode=_tried(nvml.nvmlDeviceGetComputeMode, handle),
        mig=bool(mode and mode[0]),
        slices=tuple(slices),
        ecc_errors=_tried(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        pages_pending=bool(pending),
    )


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:
    """What a GPU and a slice both say."""
    memory = _tried(nvml.nvmlDeviceGetMemoryInfo, handle)
    running = _tried(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return {
        "name": _text(_tried(nvml.nvmlDeviceGetName, handle)),
        "uuid": _text(_tried(nvml.nvmlDeviceGetUUID, handle)),
        "total_bytes": None if memory is None else int(memory.total),
        "free_bytes": None if memory is None else int(memory.free),
        "processes": tuple(
            GpuProcess(
                pid=each.pid, used_bytes=each.usedGpuMemory, command=kernel.command(each.pid)
            )
            for each in running
        ),
    }


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _plain(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _keep_awake(index: int) -> tuple[bool, str]:
    """Switch persistence mode on."""
    import pynvml as nvml  # noqa: PLC0415

    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceSetPersistenceMode(handle, nvml.NVML_FEATURE_ENABLED)
    except nvml.NVMLError as error:
        return False, f"GPU {index} refuses: {_plain(error)}"
    finally:
        _tried(nvml.nvmlShutdown)
    return True, f"GPU {index} stays awake now"


# --- which of them the engine will see ------------------------------------------------------------------------


def visible(found: Gpus) -> tuple[NvmlGpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves: `0,2`, `GPU-ab12`, `MIG-...`; like CUDA it stops at the first bad word."""
    if found.visible is None:
        return found.gpus
    chosen: list[NvmlGpu] = []
    for word in (each.strip() for each in found.visible.split(",")):
        by_number = word.isascii() and word.isdigit()
        gpu = next(
            (
                gpu
                for gpu in found.gpus
                if (gpu.index == int(word) if by_number else _is_called(gpu, word))
            ),
            None,
        )
        if gpu is None:
            break
        chosen += [gpu] if gpu not in chosen else []
    return tuple(chosen)


def _is_called(gpu: NvmlGpu, word: str) -> bool:
    return bool(word) and any((each.uuid or "").startswith(word) for each in (gpu, *gpu.slices))


def parts(found: Gpus) -> Iterator[tuple[str, str, NvmlGpu]]:
    """What the engine may take memory of, with its code and its name: whole GPUs, and of a divided one the slices that are named."""
    words = [word.strip() for word in (found.visible or "").split(",")]
    named = [word for word in words if word.startswith("MIG")]
    for gpu in visible(found):
        if not gpu.mig:
            yield f"gpu_{gpu.index}_memory", f"GPU {gpu.index}", gpu
        for part in gpu.slices:
            if not named or any(_is_called(part, word) for word in named):
                code = f"gpu_{gpu.index}_slice_{part.index}_memory"
                yield code, f"slice {part.index} of GPU {gpu.index}", part


# --- what that means ------------------------------------------------------------------------------------------


def checks(needs: Needs, found: Gpus, engine: InstalledVllm | None) -> Iterator[Check]:
    """The machine's GPUs as a whole, then each one that the engine will see."""
    if not needs.gpu:
        yield good("gpu", "no GPU is asked for: the CPU or the simulator serves")
        return
    used = visible(found)
    if used:
        names = ", ".join(dict.fromkeys(gpu.name or "GPU" for gpu in used))
        cuda = "" if found.cuda is None else ", runs CUDA up to {}.{}".format(*found.cuda)
        yield good("gpu", f"{len(used)} x {names}; driver {found.driver or 'unknown'}{cuda}")
    elif found.gpus:
        hidden = "the GPU" if len(found.gpus) == 1 else f"all {len(found.gpus)} GPUs"
        why = f"CUDA_VISIBLE_DEVICES is `{found.visible}`, which hides {hidden} from the engine"
        yield bad("gpu", why, "unset CUDA_VISIBLE_DEVICES" if needs.gpus is None else None)
    else:
        yield _none(found, engine)
    rooms = {code: (name, part) for code, name, part in parts(found)}
    for gpu in used:
        if gpu.error:
            why = f"GPU {gpu.index} does not answer: {gpu.error}"
            yield bad(f"gpu_{gpu.index}", why, _smi(gpu, "--gpu-reset"))
            continue
        if gpu.mig and gpu.slices:
            named = ", ".join(part.name or part.uuid or "?" for part in gpu.slices)
            why = f"GPU {gpu.index} is divided into {len(gpu.slices)} slices: {named}"
            yield good(f"gpu_{gpu.index}_mig", why)
        elif gpu.mig:
            why = f"GPU {gpu.index} is in MIG mode and has no slices: nothing can run there"
            yield bad(f"gpu_{gpu.index}_mig", why, _smi(gpu, "-mig 0"))
        for code, (name, part) in rooms.items():
            if code.startswith(f"gpu_{gpu.index}_"):
                yield _room(code, name, part, needs)
        if gpu.compute_mode == PROHIBITED:
            why = f"GPU {gpu.index} is set to let nobody compute"
            yield bad(f"gpu_{gpu.index}_mode", why, _smi(gpu, "-c 0"))
        yield _persistence(gpu)
        yield _clocks(gpu)
        yield from _errors(gpu)


def _none(found: Gpus, engine: InstalledVllm | None) -> Check:
    """Why there is none; the PCI bus shows what the driver does not."""
    error, said = found.error or "", found.error or "NVML names none"
    devices = list(PCI.iterdir()) if PCI.is_dir() else []
    on_the_bus = sum(
        (kernel.text(device / "vendor") or "").strip() == NVIDIA
        and (kernel.text(device / "class") or "").startswith(GRAPHICS)
        for device in devices
    )
    if on_the_bus:
        fix: str | None = as_root("apt-get install -y nvidia-driver")
        if container():
            fix = started_with("--gpus all --ipc=host")
        elif "mismatch" in error.lower():  # the library was updated under the loaded kernel module
            fix = as_root("reboot")
        elif "not loaded" in error.lower():
            fix = as_root("modprobe nvidia")
        many = f"{counted(on_the_bus, 'NVIDIA device')} on the PCI bus"
        return bad("gpu", f"{many}, but the driver does not answer: {said}", fix)
    if error.startswith("`nvidia-ml-py`"):
        return doubtful("gpu", f"unknown: {error}", "pip install nvidia-ml-py")
    if engine is not None and engine.version and engine.cuda is None and not engine.error:
        why = f"no GPU ({said}); this vLLM was built for the CPU and serves there, slowly"
        return doubtful("gpu", why)
    why = f"no GPU ({said}): a model of any size is served far too slowly; practise with the simulator"
    return bad("gpu", why, "toolkit serve --sim gptq-int4")


def _smi(gpu: NvmlGpu, words: str) -> str:
    return as_root(f"nvidia-smi -i {gpu.index} {words}")


def _room(code: str, name: str, part: NvmlGpu, needs: Needs) -> Check:
    """A vLLM refuses to start when less is free than the share of all that it asks for."""
    if part.total_bytes is None or part.free_bytes is None:
        return doubtful(code, f"unknown: {name} does not tell its memory")
    asked = needs.gpu_memory_utilization * part.total_bytes
    said = f"{name} has {size(part.free_bytes)} of {size(part.total_bytes)} free"
    if needs.gpu_bytes is not None and needs.gpu_bytes > asked:
        why = f"{said}, and the weights alone take {size(needs.gpu_bytes)} of the {size(asked)} that vLLM may use"
        return bad(code, why, f"toolkit plan {needs.model}" if needs.model else None)
    others, is_one = part.processes, len(part.processes) == 1
    # end those that can be seen from here; a pid of another container would be somebody else's here
    pids = sorted({each.pid for each in others if each.command and each.pid > 1})
    end = "kill " + " ".join(map(str, pids)) if pids else as_root("fuser -v /dev/nvidia*")
    if part.free_bytes < asked:
        held = f": {_listed(others)} hold{'s' * is_one} the rest" if others else ""
        return bad(code, f"{said}{held}; vLLM asks for {size(asked)} and ends at once", end)
    if others:
        why = f"{said}, and {_listed(others)} use{'s' * is_one} it, too: both slow each other"
        return doubtful(code, why, end)
    return good(code, f"{said}; nobody else uses it")


def _listed(processes: Sequence[GpuProcess]) -> str:
    named = []
    for each in processes[:NAMED]:
        who = f"`{each.command[:40]}`" if each.command else "a process"
        used = "" if each.used_bytes is None else f", {size(each.used_bytes)}"
        named.append(f"{who} (pid {each.pid}{used})")
    more = len(processes) - NAMED
    return " and ".join(named) + (f" and {more} more" if more > 0 else "")


def _persistence(gpu: NvmlGpu) -> Check:
    code = f"gpu_{gpu.index}_persistence"
    if gpu.persistence is None:
        return doubtful(code, f"unknown: GPU {gpu.index} does not tell its persistence mode")
    if gpu.persistence:
        return good(code, f"GPU {gpu.index} stays awake between processes")
    why = "goes to sleep when no process uses it: each start waits for it, and locked clocks are forgotten"
    repair = partial(_keep_awake, gpu.index) if os.geteuid() == 0 else None
    return doubtful(code, f"GPU {gpu.index} {why}", _smi(gpu, "-pm 1"), repair)


def _clocks(gpu: NvmlGpu) -> Check:
    """NVML says the clock, its highest value and what holds it down, but not whether it is locked.

    An idle GPU drops its clock (an H200 to 345 of 1,980 MHz) unless it is locked, which is how one can tell.
    """
    code = f"gpu_{gpu.index}_clocks"
    now, most = gpu.sm_mhz, gpu.sm_max_mhz
    if now is None or not most:
        return doubtful(code, f"unknown: GPU {gpu.index} does not tell its clocks")
    lock = _smi(gpu, f"-lgc {most},{most}")
    said = f"GPU {gpu.index} runs at {now:,} of {most:,} MHz"
    held = [word for word in gpu.limits or () if word in HELD_DOWN]
    if held:
        heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} \N{DEGREE SIGN}C"
        why = f"{said}{heat}, held down by {', '.join(held)}: it serves slower by the minute, like a leak in software"
        return doubtful(code, why, lock)
    if now >= FULL_SPEED * most:
        return good(code, said)
    if gpu.busy_share is not None and gpu.busy_share <= IDLE_SHARE:
        why = f"{said} while it idles, so its clock is not locked: under load it drifts, which looks like slow software"
        return doubtful(code, why, lock)
    by = f" ({', '.join(gpu.limits)})" if gpu.limits else ""
    return doubtful(code, f"{said} under load{by}: a locked clock would hold it steady", lock)


def _errors(gpu: NvmlGpu) -> Iterator[Check]:
    code, reset = f"gpu_{gpu.index}_ecc", _smi(gpu, "--gpu-reset")
    if gpu.pages_pending:
        why = f"GPU {gpu.index} has broken memory that it replaces at its next reset: until then answers may be wrong"
        yield bad(code, why, reset)
    elif gpu.ecc_errors:
        why = f"GPU {gpu.index} counted {gpu.ecc_errors:,} uncorrected memory errors since its driver was loaded"
        yield doubtful(code, f"{why}: a process that meets one ends", reset)
    elif gpu.ecc_errors == 0:
        yield good(code, f"GPU {gpu.index} counted no uncorrected memory error")
