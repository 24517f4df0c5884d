"""The GPUs as NVIDIA's own library NVML tells them. No GPU is a fact, not an error; it changes nothing but `keep_awake`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from toolkit.serving.fit import kernel
from toolkit.serving.fit.facts import Gpu, GpuProcess, Gpus, Slice

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
Value = TypeVar("Value")


def gpus(visible: str | None = None) -> Gpus:
    """Every GPU of this machine; `visible` is what CUDA_VISIBLE_DEVICES will be, None: as it is here."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    bus = on_the_bus()
    try:
        import pynvml  # noqa: PLC0415 (8,000 lines that a machine without GPUs need not read)
    except ImportError as error:
        return Gpus(error=f"`nvidia-ml-py` is missing: {error}", on_the_bus=bus, visible=visible)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus(error=_plain(error), on_the_bus=bus, visible=visible)
    try:
        return Gpus(
            driver=_text(_tried(pynvml.nvmlSystemGetDriverVersion)),
            cuda=_version(_tried(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
            gpus=tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())),
            on_the_bus=bus,
            visible=visible,
        )
    except pynvml.NVMLError as error:
        return Gpus(error=_plain(error), on_the_bus=bus, visible=visible)
    finally:
        _tried(pynvml.nvmlShutdown)


def on_the_bus(pci: Path = PCI) -> int | None:
    """How many graphics devices of NVIDIA there are, driver or not; None: the bus cannot be read."""
    try:
        devices = list(pci.iterdir())
    except OSError:
        return None
    return sum(
        (kernel.text(device / "vendor") or "").strip() == NVIDIA
        and (kernel.text(device / "class") or "").startswith(GRAPHICS)
        for device in devices
    )


def keep_awake(index: int) -> str | None:
    """Switch persistence mode on; None, or why not."""
    import pynvml  # noqa: PLC0415

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceSetPersistenceMode(handle, pynvml.NVML_FEATURE_ENABLED)
    except pynvml.NVMLError as error:
        return _plain(error)
    finally:
        _tried(pynvml.nvmlShutdown)
    return None


def _tried(ask: Callable[..., Value], *arguments: Any) -> Value | None:
    """What NVML answers; None where this GPU, this driver or this user does not get an answer."""
    import pynvml  # noqa: PLC0415

    try:
        return ask(*arguments)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None


def _gpu(index: int) -> Gpu:
    import pynvml as nvml  # noqa: PLC0415

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Gpu(index=index, error=_plain(error))
    memory = _tried(nvml.nvmlDeviceGetMemoryInfo, handle)
    busy = _tried(nvml.nvmlDeviceGetUtilizationRates, handle)
    mode = _tried(nvml.nvmlDeviceGetMigMode, handle)
    mig = None if mode is None else bool(mode[0])
    return Gpu(
        index=index,
        name=_text(_tried(nvml.nvmlDeviceGetName, handle)),
        uuid=_text(_tried(nvml.nvmlDeviceGetUUID, handle)),
        total_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        processes=_processes(handle),
        persistence=_truth(_tried(nvml.nvmlDeviceGetPersistenceMode, handle)),
        sm_mhz=_tried(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        sm_max_mhz=_tried(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        busy_share=None if busy is None else busy.gpu / 100,
        limits=_limits(handle),
        temperature_c=_tried(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        compute_mode=_tried(nvml.nvmlDeviceGetComputeMode, handle),
        mig=mig,
        slices=_slices(handle) if mig else (),
        ecc_errors=_tried(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        pages_pending=_pending(handle),
    )


def _limits(handle: Any) -> tuple[str, ...] | None:
    """Why the clocks are held down; the call was renamed with driver 535, and both names are there since."""
    import pynvml as nvml  # noqa: PLC0415

    reasons = _tried(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        reasons = _tried(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if reasons is None else tuple(word for bit, word in LIMITS if reasons & bit)


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    import pynvml as nvml  # noqa: PLC0415

    running = _tried(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if running is None:
        return None
    return tuple(
        GpuProcess(
            pid=each.pid,
            used_bytes=each.usedGpuMemory,
            command=kernel.command(each.pid),
        )
        for each in running
    )


def _slices(handle: Any) -> tuple[Slice, ...]:
    """The MIG devices of a GPU; a place without one answers `not found`."""
    import pynvml as nvml  # noqa: PLC0415

    found = []
    for number in range(_tried(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = _tried(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if device is None:
            continue
        memory = _tried(nvml.nvmlDeviceGetMemoryInfo, device)
        found.append(
            Slice(
                uuid=_text(_tried(nvml.nvmlDeviceGetUUID, device)),
                name=_text(_tried(nvml.nvmlDeviceGetName, device)),
                total_bytes=None if memory is None else int(memory.total),
                free_bytes=None if memory is None else int(memory.free),
                processes=_processes(device) or (),
            )
        )
    return tuple(found)


def _pending(handle: Any) -> bool | None:
    """Whether memory waits for the next reset to be replaced: rows since the A100, pages before."""
    import pynvml as nvml  # noqa: PLC0415

    rows = _tried(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        return bool(rows[2])
    return _truth(_tried(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle))


def _truth(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _version(number: int | None) -> tuple[int, int] | None:
    """13000 is CUDA 13.0, 12080 is 12.8."""
    return None if not number else (number // 1000, number % 1000 // 10)


def _plain(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
