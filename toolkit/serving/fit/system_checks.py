"""Rules over the machine itself: open files, memory, /dev/shm, cores, clock. Facts in, checks out. Pure."""

import shlex
from collections.abc import Iterator

from toolkit.serving.fit.facts import Facts, Memory, OpenFiles, SharedMemory
from toolkit.serving.fit.gpu_checks import visible
from toolkit.serving.fit.needs import Needs, open_files
from toolkit.serving.outcome import Check, anew, as_root, bad, doubtful, good, size

FILES_WANTED = 65_535
"""What the contest's engineers set after 1,024 had refused their clients."""
MEMORY_LEAST = 2 * 2**30
"""vLLM 0.32.0 with a model of half a million parameters took 1.6 GB over its three processes."""
SHM_LEAST = 512 * 2**20
"""vLLM 0.32.0 laid two files of together 420 MB there; a Docker container has 64 MiB if nobody asks for more."""
SHM_GOOD = 2 * 2**30
"""What vLLM's own Kubernetes example mounts there for tensor parallelism."""
MOST_NAMED = 20
"""Leftovers in a command that a person pastes; of more, one word does it."""
SLOW_GOVERNORS = {"powersave", "conservative", "userspace"}


def open_files_checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """A client's connection is an open file; so is the proxy's to the engine."""
    limit, wanted = facts.open_files, open_files(needs)
    if limit is None:
        yield doubtful("open_files", "unknown: the limit of open files cannot be read")
        return
    if limit.soft is None or limit.soft >= wanted:
        many = "any number of" if limit.soft is None else f"{limit.soft:,}"
        yield good("open_files", f"{many} open files; {needs.users:,} users need {wanted:,}")
        return
    yield bad(
        "open_files",
        f"{limit.soft:,} open files, and {needs.users:,} users need {wanted:,}: beyond the limit clients are refused"
        " their connection while the server looks healthy (for good: nofile in `/etc/security/limits.d`,"
        " LimitNOFILE in a systemd unit)",
        _open_files_fix(limit, wanted, facts),
    )


def _open_files_fix(limit: OpenFiles, wanted: int, facts: Facts) -> str | None:
    """`ulimit -n` lifts a shell's limit up to the hard one; beyond it needs a right that root has outside containers."""
    aim = max(wanted, FILES_WANTED)
    if limit.hard is not None and wanted <= limit.hard < aim:
        return f"ulimit -n {limit.hard}"
    if limit.hard is None or limit.hard >= aim or facts.may_lift:
        return f"ulimit -n {aim}"
    if facts.container:
        return anew(facts.container, f"--ulimit nofile={aim}:{aim}")
    return as_root(f"prlimit --pid $$ --nofile={aim}:{aim}", root=facts.root)


def memory_checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """What is free, of the machine and of the container: the smaller one counts."""
    memory, wanted = facts.memory, needs.memory_bytes or MEMORY_LEAST
    free = free_memory(memory)
    if free is None:
        yield doubtful("memory", f"unknown: {memory.error or 'free memory cannot be read'}")
    elif free < wanted:
        yield bad(
            "memory",
            f"{size(free)} free{_whose(memory)}, and {size(wanted)} are needed: the kernel ends a process that takes"
            " more, often without a word in vLLM's log",
            _orphans_fix(facts),
        )
    else:
        yield good("memory", f"{size(free)} free{_whose(memory)}; {size(wanted)} are needed")
    yield from _orphans(facts)


def free_memory(memory: Memory) -> int | None:
    """What may still be taken."""
    frees = [memory.available_bytes] if memory.available_bytes is not None else []
    if memory.limit_bytes is not None:
        frees.append(max(0, memory.limit_bytes - (memory.limit_used_bytes or 0)))
    return min(frees) if frees else None


def _whose(memory: Memory) -> str:
    if memory.limit_bytes is None or free_memory(memory) == memory.available_bytes:
        return ""
    machine = "" if memory.total_bytes is None else f" (the machine has {size(memory.total_bytes)})"
    return f" of the {size(memory.limit_bytes)} that this container may use{machine}"


def _orphans(facts: Facts) -> Iterator[Check]:
    if facts.orphans:
        held = sum(each.used_bytes or 0 for each in facts.orphans)
        named = ", ".join(f"{each.command} ({each.pid})" for each in facts.orphans[:4])
        yield doubtful(
            "orphans",
            f"{len(facts.orphans)} engine processes without a server: {named}; they hold {size(held)} of memory, and"
            " their GPU's, until somebody ends them",
            _orphans_fix(facts),
        )


def _orphans_fix(facts: Facts) -> str | None:
    if not facts.orphans:
        return None
    return as_root("kill -9 " + " ".join(str(each.pid) for each in facts.orphans), root=facts.root)


def shared_memory_checks(facts: Facts) -> Iterator[Check]:
    """The processes of vLLM talk through /dev/shm, and so do NCCL's."""
    shared = facts.shared
    if shared.free_bytes is None or shared.total_bytes is None:
        yield bad(
            "shm", f"{shared.error or '`/dev/shm` cannot be read'}: vLLM's processes talk there"
        )
        return
    room = f"{size(shared.free_bytes)} of {size(shared.total_bytes)} free in `/dev/shm`"
    if shared.free_bytes >= SHM_GOOD:
        yield good("shm", f"{room}; vLLM and NCCL lay their messages there")
    elif shared.free_bytes >= SHM_LEAST:
        yield doubtful(
            "shm", f"{room}: too little for several GPUs, which want 2 GiB", _room_fix(facts)
        )
    else:
        yield bad(
            "shm",
            f"{room}: vLLM's processes talk there, and one that finds it full ends with a bus error",
            _room_fix(facts),
        )
    yield from _leftovers(shared, root=facts.root)


def _room_fix(facts: Facts) -> str | None:
    """What is left over goes first where that alone makes room; a container without rights must be started anew."""
    shared = facts.shared
    spare = sum(each.used_bytes for each in shared.leftovers)
    if (shared.free_bytes or 0) + spare >= SHM_GOOD:
        return leftovers_fix(shared)
    if facts.container and not facts.may_mount:
        return anew(facts.container, "--ipc=host")
    # a share of the memory, not a size: a mount that may outgrow the memory ends in the kernel's choice of a victim
    return as_root("mount -o remount,size=50% /dev/shm", root=facts.root)


def leftovers_fix(shared: SharedMemory) -> str:
    """The command that removes what nobody holds any more."""
    if len(shared.leftovers) > MOST_NAMED:
        return "toolkit preflight --fix"
    return "rm -f -- " + " ".join(shlex.quote(each.path) for each in shared.leftovers)


def _leftovers(shared: SharedMemory, *, root: bool) -> Iterator[Check]:
    count = len(shared.leftovers)
    if count:
        held = sum(each.used_bytes for each in shared.leftovers)
        files = "1 file" if count == 1 else f"{count:,} files"
        yield doubtful(
            "shm_leftovers",
            f"{files} in `/dev/shm` that no process holds any more, {size(held)}: a killed vLLM leaves them, and they"
            " fill the memory until somebody removes them",
            leftovers_fix(shared),
        )
    elif shared.unclear:
        files = "1 file" if shared.unclear == 1 else f"{shared.unclear:,} files"
        yield doubtful(
            "shm_leftovers",
            f"unknown: {files} in `/dev/shm` of which only their owner can tell whether they are still in use",
            None if root else 'sudo "$(command -v toolkit)" preflight',
        )
    else:
        yield good("shm_leftovers", "no killed server left files in `/dev/shm`")


def cpu_checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """Cores that may be used, and whether they run slower than they could."""
    cpu = facts.cpu
    bounds = [bound for bound in (cpu.usable, cpu.quota_cores, cpu.cores) if bound is not None]
    if not bounds:
        yield doubtful("cpu", "unknown: the number of cores cannot be read")
    else:
        yield _cores(min(bounds), cpu.cores, _processes(facts, needs), needs)
    yield from _governor(facts)


def _processes(facts: Facts, needs: Needs) -> int:
    """A vLLM server is its front end, its engine core and a worker for each GPU."""
    return 2 + max(1, len(visible(facts.gpus)) if needs.gpu else 1)


def _cores(usable: float, cores: int | None, wanted: int, needs: Needs) -> Check:
    of = f" of {cores}" if cores is not None and cores != usable else ""
    text = f"{usable:g}{of} cores may be used"
    if needs.vllm is None and not needs.gpu:
        return good("cpu", f"{text}; the simulator is one process")
    if usable >= wanted:
        return good("cpu", f"{text}; vLLM runs {wanted} processes that seldom sleep")
    return doubtful(
        "cpu",
        f"{text}, and vLLM runs {wanted} processes that seldom sleep:"
        f" {'the GPU waits for the slowest' if needs.gpu else 'they wait for each other'}",
    )


def _governor(facts: Facts) -> Iterator[Check]:
    names = facts.cpu.governors
    if names is None:
        yield doubtful("cpu_governor", "unknown: the cores' policies cannot be read")
    elif SLOW_GOVERNORS & set(names):
        fix = "tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        yield doubtful(
            "cpu_governor",
            f"the cores' policy is {', '.join(names)}: they clock up late, and each token passes the CPU",
            f"echo performance | {as_root(fix, root=facts.root)}",
        )
    else:
        told = (
            f"the cores' policy is {', '.join(names)}"
            if names
            else "this machine's cores have no policy to set"
        )
        yield good("cpu_governor", told)


def clock_checks(facts: Facts) -> Iterator[Check]:
    """Several machines' seconds are laid side by side by their wall clocks."""
    clock = facts.clock
    if clock.synchronised is None:
        yield doubtful("clock", f"unknown: {clock.error or 'the kernel does not tell'}")
    elif clock.synchronised:
        within = (
            "" if clock.largest_error_ms is None else f", within {clock.largest_error_ms:,.0f} ms"
        )
        yield good("clock", f"the clock is synchronised{within}")
    else:
        yield doubtful(
            "clock",
            "nobody keeps the clock right: several machines' logs and measurements can't be laid side by side",
            _clock_fix(facts),
        )


def _clock_fix(facts: Facts) -> str | None:
    if facts.container:  # the clock is the host's
        return None
    commands = {
        "timedatectl": "timedatectl set-ntp true",
        "chronyd": "chronyd -q 'pool pool.ntp.org iburst'",
        "ntpd": "ntpd -gq",
    }
    return as_root(
        commands.get(facts.clock.keeper or "", "apt-get install -y chrony"), root=facts.root
    )
