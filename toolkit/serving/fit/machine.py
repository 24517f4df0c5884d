"""One look at this machine: everything that serving stumbles over, as facts. It changes nothing and judges nothing.

Whatever cannot be read is unknown; no look may fail because of it. The parts with an I/O of their own stand beside it.
"""

import os
import resource
import time
from pathlib import Path

from toolkit.serving.fit import kernel
from toolkit.serving.fit.cgroups import Limits, limits
from toolkit.serving.fit.clock import clock
from toolkit.serving.fit.disks import disks
from toolkit.serving.fit.facts import Cpu, Facts, Memory, Network, OpenFiles, Orphan
from toolkit.serving.fit.gpus import gpus
from toolkit.serving.fit.needs import Needs
from toolkit.serving.fit.ports import ports
from toolkit.serving.fit.shared_memory import shared_memory
from toolkit.serving.fit.vllm_probe import engine

CORES = Path("/sys/devices/system/cpu")
MAY_MOUNT = 1 << 21
"""CAP_SYS_ADMIN among a process' effective capabilities."""
MAY_LIFT = 1 << 24
"""CAP_SYS_RESOURCE; Docker gives its root neither."""
ENGINE = "VLLM::"
"""What vLLM calls its engine and worker processes, since 0.10."""
REAPERS = "systemd init tini docker-init dumb-init catatonit".split()
"""Who adopts processes whose parent is gone, beside process 1."""
ENDING_S = 1.0
"""A server that is just ending leaves its processes alone for a moment; those are no orphans."""


def look(needs: Needs) -> Facts:
    """Everything at once; it takes as long as vLLM's Python needs to start, and a second or two for full disks."""
    allowed, rights = limits(), capabilities()
    return Facts(
        root=os.geteuid() == 0,
        container=container(),
        may_mount=bool(rights & MAY_MOUNT),
        may_lift=bool(rights & MAY_LIFT),
        open_files=open_files(),
        disks=disks(needs),
        memory=memory(allowed),
        shared=shared_memory(),
        ports=ports(needs.ports, needs.host),
        network=network(),
        gpus=gpus(needs.gpus),
        engine=None if needs.vllm is None else engine(needs.vllm),
        clock=clock(),
        cpu=cpu(allowed),
        orphans=orphans(),
    )


def open_files() -> OpenFiles:
    """This process' limits, which what it starts inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return OpenFiles(soft=None if soft == endless else soft, hard=None if hard == endless else hard)


def memory(allowed: Limits, proc: Path = kernel.PROC) -> Memory:
    """The machine's own figures; a container sees them, too, whatever its limit is."""
    rows = kernel.table(proc / "meminfo")
    return Memory(
        total_bytes=kernel.kilobytes(rows.get("MemTotal")),
        available_bytes=kernel.kilobytes(rows.get("MemAvailable")),
        limit_bytes=allowed.memory_bytes,
        limit_used_bytes=allowed.memory_used_bytes,
        error=None if rows else f"`{proc / 'meminfo'}` cannot be read",
    )


def network(proc: Path = kernel.PROC) -> Network:
    """The kernel's settings for TCP."""
    low, high = _range(kernel.text(proc / "sys/net/ipv4/ip_local_port_range"))
    return Network(
        ephemeral_low=low,
        ephemeral_high=high,
        reserved=(kernel.text(proc / "sys/net/ipv4/ip_local_reserved_ports") or "").strip(),
        tw_reuse=kernel.number(proc / "sys/net/ipv4/tcp_tw_reuse"),
        somaxconn=kernel.number(proc / "sys/net/core/somaxconn"),
        syn_backlog=kernel.number(proc / "sys/net/ipv4/tcp_max_syn_backlog"),
        syncookies=kernel.number(proc / "sys/net/ipv4/tcp_syncookies"),
    )


def _range(text: str | None) -> tuple[int | None, int | None]:
    numbers = [kernel.whole(word) for word in (text or "").split()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (None, None)


def cpu(allowed: Limits, cores: Path = CORES) -> Cpu:
    """Cores that there are, and that may be used."""
    try:
        usable = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # not every system lets a process be bound to cores
        usable = None
    policies = {
        (kernel.text(file) or "").strip()
        for file in cores.glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    return Cpu(
        cores=os.cpu_count(),
        usable=usable,
        quota_cores=allowed.cores,
        governors=tuple(sorted(policies - {""})) if cores.is_dir() else None,
    )


def container(root: Path = Path("/")) -> str | None:
    """What kind of container this is, by the marks that they leave; None: none was found."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return None


def capabilities(proc: Path = kernel.PROC) -> int:
    """What this process may do beyond other users, as the kernel's bits."""
    try:
        return int(kernel.table(proc / "self/status").get("CapEff", "0"), 16)
    except ValueError:
        return 0


def orphans(proc: Path = kernel.PROC, wait_s: float = ENDING_S) -> tuple[Orphan, ...]:
    """Engine processes whose server is gone: killed by SIGKILL it leaves them running, with all their memory.

    Only those that are still there a moment later: a server that ends in order needs one, too.
    """
    found = _alone(proc)
    if found:
        time.sleep(wait_s)
        found &= _alone(proc)
    return tuple(
        Orphan(
            pid=pid,
            command=kernel.command(pid, proc) or ENGINE,
            used_bytes=kernel.used_bytes(pid, proc),
        )
        for pid in sorted(found)
    )


def _alone(proc: Path) -> set[int]:
    """Engines that process 1 or another reaper adopted, and the workers below them."""
    engines = {
        pid
        for pid in kernel.processes(proc)
        if (kernel.command(pid, proc) or "").startswith(ENGINE) and not kernel.is_zombie(pid, proc)
    }
    found = {pid for pid in engines if _is_adopted(pid, proc)}
    while more := {pid for pid in engines - found if kernel.parent(pid, proc) in found}:
        found |= more
    return found


def _is_adopted(pid: int, proc: Path) -> bool:
    """Whether its parent only adopts; a container's process 1 may well be the server itself, in Python."""
    parent = kernel.parent(pid, proc)
    words = (kernel.command(parent, proc) or "").split() if parent else []
    name = words[0].rpartition("/")[2] if words else ""
    is_server = "python" in name or any("vllm" in word.lower() for word in words)
    return not is_server and (parent == 1 or name.rstrip(":") in REAPERS)
