"""Rules over GPUs: are they there, free, awake, and at their full clock? Facts in, checks out. Pure."""

from collections.abc import Iterator, Sequence

from toolkit.serving.fit.facts import Facts, Gpu, GpuProcess, Gpus, Slice
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check, anew, as_root, bad, doubtful, good, size

FULL_SPEED = 0.95
"""Of the highest clock; steps are 15 MHz of 1,410 to 1,980."""
IDLE_SHARE = 0.01
HELD_DOWN = ("hardware slowdown", "heat (software)", "heat (hardware)", "power brake")
"""Not a power cap, which is usual at full load; not a clock that somebody set, which is the cure."""
PROHIBITED = 2
"""NVML's compute mode that lets nobody compute."""
NAMED = 3


def checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """The machine's GPUs as a whole, then each one that the engine will see."""
    if not needs.gpu:
        yield good("gpu", "no GPU is asked for: the CPU or the simulator serves")
        return
    found = facts.gpus
    used = visible(found)
    yield _presence(facts, used, needs)
    for gpu in used:
        yield from _gpu_checks(gpu, facts, needs)


def visible(found: Gpus) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves: `0,2`, `GPU-ab12`, `MIG-...`; like CUDA it stops at the first bad word."""
    if found.visible is None:
        return found.gpus
    chosen: list[Gpu] = []
    for word in found.visible.split(","):
        gpu = _named(found.gpus, word.strip())
        if gpu is None:
            break
        chosen += [gpu] if gpu not in chosen else []
    return tuple(chosen)


def _named(gpus: Sequence[Gpu], word: str) -> Gpu | None:
    if word.isascii() and word.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(word)), None)
    for gpu in gpus:
        names = [gpu.uuid, *(part.uuid for part in gpu.slices)]
        if word and any(name is not None and name.startswith(word) for name in names):
            return gpu
    return None


def parts(found: Gpus) -> Iterator[tuple[str, Gpu | Slice]]:
    """What the engine may take memory of, by name: whole GPUs, and of a divided one the slices that are named."""
    for gpu in visible(found):
        if not gpu.mig:
            yield f"GPU {gpu.index}", gpu
            continue
        for number, part in enumerate(gpu.slices):
            if _is_wanted(part, found.visible):
                yield f"slice {number} of GPU {gpu.index}", part


def _presence(facts: Facts, used: tuple[Gpu, ...], needs: Needs) -> Check:
    found = facts.gpus
    if used:
        names = ", ".join(dict.fromkeys(gpu.name or "GPU" for gpu in used))
        cuda = "" if found.cuda is None else f", runs CUDA up to {_dotted(found.cuda)}"
        return good("gpu", f"{len(used)} x {names}; driver {found.driver or 'unknown'}{cuda}")
    if found.gpus:
        return _hidden(found, needs)
    if found.on_the_bus:
        many = f"{found.on_the_bus} NVIDIA device{'s' * (found.on_the_bus > 1)} on the PCI bus"
        return bad(
            "gpu",
            f"{many}, but the driver does not answer: {found.error or 'no GPU is told'}",
            _driver_fix(facts),
        )
    if (found.error or "").startswith("`nvidia-ml-py`"):
        return doubtful("gpu", f"unknown: {found.error}", "pip install nvidia-ml-py")
    return _no_gpu(facts)


def _no_gpu(facts: Facts) -> Check:
    engine = facts.engine
    told = facts.gpus.error or "NVML names none"
    if engine is not None and engine.version and engine.cuda is None and not engine.error:
        return doubtful(
            "gpu", f"no GPU ({told}); this vLLM was built for the CPU and serves there, slowly"
        )
    why = f"no GPU ({told}): a model of any size is served far too slowly; practise with the simulator"
    return bad("gpu", why, "toolkit serve --sim gptq-int4")


def _hidden(found: Gpus, needs: Needs) -> Check:
    why = (
        f"CUDA_VISIBLE_DEVICES is `{found.visible}`, which hides"
        f" {'the GPU' if len(found.gpus) == 1 else f'all {len(found.gpus)} GPUs'} from the engine"
    )
    return bad("gpu", why, "unset CUDA_VISIBLE_DEVICES" if needs.gpus is None else None)


def _driver_fix(facts: Facts) -> str | None:
    error = (facts.gpus.error or "").lower()
    if facts.container:
        return anew(facts.container, "--gpus all --ipc=host")
    if "mismatch" in error:  # the library was updated under the loaded kernel module
        return as_root("reboot", root=facts.root)
    if "not loaded" in error:
        return as_root("modprobe nvidia", root=facts.root)
    return as_root("apt-get install -y nvidia-driver", root=facts.root)


def _gpu_checks(gpu: Gpu, facts: Facts, needs: Needs) -> Iterator[Check]:
    if gpu.error:
        yield bad(
            f"gpu_{gpu.index}", f"GPU {gpu.index} does not answer: {gpu.error}", _reset(gpu, facts)
        )
        return
    yield from _mig(gpu, facts, needs) if gpu.mig else _memory(gpu, facts, needs)
    yield from _mode(gpu, facts)
    yield _persistence(gpu, facts)
    yield _clocks(gpu, facts)
    yield from _errors(gpu, facts)


def _memory(gpu: Gpu, facts: Facts, needs: Needs) -> Iterator[Check]:
    code = f"gpu_{gpu.index}_memory"
    if gpu.total_bytes is None or gpu.free_bytes is None:
        yield doubtful(code, f"unknown: GPU {gpu.index} does not tell its memory")
        return
    yield _room(code, f"GPU {gpu.index}", gpu, facts, needs)


def _room(code: str, name: str, part: Gpu | Slice, facts: Facts, needs: Needs) -> Check:
    """A vLLM refuses to start when less is free than the share of all that it asks for."""
    total, free = part.total_bytes or 0, part.free_bytes or 0
    asked = needs.gpu_memory_utilization * total
    told = f"{name} has {size(free)} of {size(total)} free"
    others = tuple(part.processes or ())
    if needs.gpu_bytes is not None and needs.gpu_bytes > asked:
        why = f"{told}, and the weights alone take {size(needs.gpu_bytes)} of the {size(asked)} that vLLM may use"
        return bad(code, why, f"toolkit plan {needs.model}" if needs.model else None)
    if free < asked:
        held = f": {_listed(others)} hold{'s' * (len(others) == 1)} the rest" if others else ""
        why = f"{told}{held}; vLLM asks for {size(asked)} and ends at once"
        return bad(code, why, _end(others, facts))
    if others:
        why = f"{told}, and {_listed(others)} use{'s' * (len(others) == 1)} it, too: both slow each other"
        return doubtful(code, why, _end(others, facts))
    return good(code, f"{told}; nobody else uses it")


def _listed(processes: Sequence[GpuProcess]) -> str:
    named = [
        f"{f'`{each.command[:40]}`' if each.command else 'a process'} (pid {each.pid}"
        f"{'' if each.used_bytes is None else f', {size(each.used_bytes)}'})"
        for each in processes[:NAMED]
    ]
    more = len(processes) - NAMED
    return " and ".join(named) + (f" and {more} more" if more > 0 else "")


def _end(processes: Sequence[GpuProcess], facts: Facts) -> str:
    """End those that can be seen from here; a pid of another container would be somebody else's here."""
    pids = sorted({each.pid for each in processes if each.command and each.pid > 1})
    if pids:
        return "kill " + " ".join(map(str, pids))
    return as_root("fuser -v /dev/nvidia*", root=facts.root)


def _mig(gpu: Gpu, facts: Facts, needs: Needs) -> Iterator[Check]:
    """MIG divides a GPU; the engine gets one slice, by its UUID in CUDA_VISIBLE_DEVICES."""
    code = f"gpu_{gpu.index}_mig"
    if not gpu.slices:
        fix = as_root(f"nvidia-smi -i {gpu.index} -mig 0", root=facts.root)
        yield bad(
            code, f"GPU {gpu.index} is in MIG mode and has no slices: nothing can run there", fix
        )
        return
    named = ", ".join(part.name or part.uuid or "?" for part in gpu.slices)
    yield good(code, f"GPU {gpu.index} is divided into {len(gpu.slices)} slices: {named}")
    for number, part in enumerate(gpu.slices):
        if _is_wanted(part, facts.gpus.visible) and part.total_bytes is not None:
            name = f"slice {number} of GPU {gpu.index}"
            yield _room(f"gpu_{gpu.index}_slice_{number}_memory", name, part, facts, needs)


def _is_wanted(part: Slice, words: str | None) -> bool:
    named = [word.strip() for word in (words or "").split(",") if word.strip().startswith("MIG")]
    return not named or any((part.uuid or "").startswith(word) for word in named)


def _mode(gpu: Gpu, facts: Facts) -> Iterator[Check]:
    if gpu.compute_mode == PROHIBITED:
        fix = as_root(f"nvidia-smi -i {gpu.index} -c 0", root=facts.root)
        yield bad(f"gpu_{gpu.index}_mode", f"GPU {gpu.index} is set to let nobody compute", fix)


def _persistence(gpu: Gpu, facts: Facts) -> Check:
    code = f"gpu_{gpu.index}_persistence"
    if gpu.persistence is None:
        return doubtful(code, f"unknown: GPU {gpu.index} does not tell its persistence mode")
    if gpu.persistence:
        return good(code, f"GPU {gpu.index} stays awake between processes")
    return doubtful(
        code,
        f"GPU {gpu.index} goes to sleep when no process uses it: each start waits for it, and locked clocks are forgotten",
        as_root(f"nvidia-smi -i {gpu.index} -pm 1", root=facts.root),
    )


def _clocks(gpu: Gpu, facts: Facts) -> Check:
    """NVML tells the clock, its highest value and what holds it down, but not whether it is locked.

    An idle GPU drops its clock (an H200 to 345 of 1,980 MHz) unless it is locked, which is how one can tell.
    """
    code = f"gpu_{gpu.index}_clocks"
    now, most = gpu.sm_mhz, gpu.sm_max_mhz
    if now is None or not most:
        return doubtful(code, f"unknown: GPU {gpu.index} does not tell its clocks")
    lock = as_root(f"nvidia-smi -i {gpu.index} -lgc {most},{most}", root=facts.root)
    told = f"GPU {gpu.index} runs at {now:,} of {most:,} MHz"
    held = [word for word in gpu.limits or () if word in HELD_DOWN]
    if held:
        heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} \N{DEGREE SIGN}C"
        why = f"{told}{heat}, held down by {', '.join(held)}: it serves slower by the minute, like a leak in software"
        return doubtful(code, why, lock)
    if now >= FULL_SPEED * most:
        return good(code, f"{told}")
    if gpu.busy_share is not None and gpu.busy_share <= IDLE_SHARE:
        why = f"{told} while it idles, so its clock is not locked: under load it drifts, which looks like slow software"
        return doubtful(code, why, lock)
    by = f" ({', '.join(gpu.limits)})" if gpu.limits else ""
    return doubtful(code, f"{told} under load{by}: a locked clock would hold it steady", lock)


def _errors(gpu: Gpu, facts: Facts) -> Iterator[Check]:
    code = f"gpu_{gpu.index}_ecc"
    if gpu.pages_pending:
        why = f"GPU {gpu.index} has broken memory that it replaces at its next reset: until then answers may be wrong"
        yield bad(code, why, _reset(gpu, facts))
    elif gpu.ecc_errors:
        why = f"GPU {gpu.index} counted {gpu.ecc_errors:,} uncorrected memory errors since its driver was loaded"
        yield doubtful(code, f"{why}: a process that meets one ends", _reset(gpu, facts))
    elif gpu.ecc_errors == 0:
        yield good(code, f"GPU {gpu.index} counted no uncorrected memory error")


def _reset(gpu: Gpu, facts: Facts) -> str:
    return as_root(f"nvidia-smi -i {gpu.index} --gpu-reset", root=facts.root)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
