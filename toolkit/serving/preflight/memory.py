"""Memory: what is free, of the machine and of the container, and engines without a server that hold it."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from toolkit.serving.preflight import kernel
from toolkit.serving.preflight.check import Check, as_root, fail, ok, warn
from toolkit.units import size

LEAST = 2 * 2**30
"""vLLM 0.32.0 with a model of half a million parameters took 1.6 GB over its three processes."""
ENGINE = "VLLM::"
"""What vLLM calls its engine and worker processes, since 0.10."""
REAPERS = "systemd init tini docker-init dumb-init catatonit".split()
"""Who adopts processes whose parent is gone, beside process 1."""
ENDING_S = 1.0
"""A server that is just ending leaves its processes alone for a moment; those are no orphans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """None is unknown."""

    total_bytes: int | None = None
    """The machine's; a container sees it, too, whatever its limit is."""
    free_bytes: int | None = None
    """What may still be taken, by the machine and by the container's limit."""
    limit_bytes: int | None = None
    """The container's limit, where that leaves less than the machine has."""


def memory() -> Memory:
    """As it is now."""
    total = free = None
    with suppress(OSError, psutil.Error):
        machine = psutil.virtual_memory()
        total, free = machine.total, machine.available
    limit, used = kernel.memory_limit()
    if limit is None or (free is not None and free <= max(0, limit - used)):
        return Memory(total_bytes=total, free_bytes=free)
    return Memory(total_bytes=total, free_bytes=max(0, limit - used), limit_bytes=limit)


def checks(wanted: int | None) -> Iterator[Check]:
    """Whether enough is free, and who holds some for nothing."""
    found, wanted, left = memory(), wanted or LEAST, orphans()
    fix = as_root("kill -9 " + " ".join(str(each.pid) for each, _ in left)) if left else None
    whose = ""
    if found.limit_bytes is not None:
        machine = f" (the machine has {size(found.total_bytes)})" if found.total_bytes else ""
        whose = f" of the {size(found.limit_bytes)} that this container may use{machine}"
    if found.free_bytes is None:
        yield warn("memory", "unknown: `/proc/meminfo` cannot be read")
    elif found.free_bytes < wanted:
        why = "the kernel ends a process that takes more, often without a word in vLLM's log"
        said = f"{size(found.free_bytes)} free{whose}, and {size(wanted)} are needed"
        yield fail("memory", f"{said}: {why}", fix)
    else:
        yield ok("memory", f"{size(found.free_bytes)} free{whose}; {size(wanted)} are needed")
    if left:
        held = 0
        for each, _ in left:
            with suppress(psutil.Error):
                held += each.memory_info().rss
        named = ", ".join(f"{name} ({each.pid})" for each, name in left[:4])
        many, them = "1 engine process", "it"
        if len(left) > 1:
            many, them = f"{len(left)} engine processes", "them"
        why = f"{size(held)} of memory, and the GPU's, stay taken until somebody ends {them}"
        yield warn("orphans", f"{many} without a server: {named}; {why}", fix)


def orphans() -> list[tuple[psutil.Process, str]]:
    """Engine processes whose server is gone: killed by SIGKILL it leaves them running, with all their memory.

    Only those that are still there a moment later: a server that ends in order needs one, too.
    """
    if found := _without_server():
        time.sleep(ENDING_S)
        found = {each: name for each, name in _without_server().items() if each in found}
    return sorted(found.items(), key=lambda item: item[0].pid)


def _without_server() -> dict[psutil.Process, str]:
    """Engines that process 1 or another reaper adopted, and the workers below them."""
    engines: dict[psutil.Process, str] = {}
    parents: dict[int, int] = {}
    try:
        everyone = list(psutil.process_iter())
    except IndexError:  # psutil's own, where /proc shows nobody
        return {}
    for each in everyone:
        name = kernel.command(each) or ""
        with suppress(psutil.Error):
            if name.startswith(ENGINE) and each.status() != psutil.STATUS_ZOMBIE:
                engines[each], parents[each.pid] = name, each.ppid()
    alone = {pid for pid, parent in parents.items() if _only_adopts(parent)}
    while more := {pid for pid, parent in parents.items() if parent in alone} - alone:
        alone |= more
    return {each: name for each, name in engines.items() if each.pid in alone}


def _only_adopts(parent: int) -> bool:
    """Whether it is no server; a container's process 1 may well be the server itself, in Python."""
    words = (kernel.command(parent) or "").split() if parent else []
    name = words[0].rpartition("/")[2] if words else ""
    is_server = "python" in name or any("vllm" in word.lower() for word in words)
    return not is_server and (parent == 1 or name.rstrip(":") in REAPERS)
