"""Open files, cores and the wall clock. `--fix` lifts this process' own limit of open files; nothing else is changed."""

import ctypes
import os
import re
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from toolkit.serving.preflight import cgroups, kernel
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

FILES_A_USER = 2
"""A client's connection and the engine's: both are the proxy's, which is one process."""
OTHER_FILES = 1024
"""Libraries, logs, the database, workers' pipes."""
FILES_WANTED = 65_535
"""What the contest's engineers set after 1,024 had refused their clients."""
MAY_MOUNT, MAY_LIFT = 1 << 21, 1 << 24
"""CAP_SYS_ADMIN and CAP_SYS_RESOURCE among a process' effective capabilities; Docker gives its root neither."""
CORES = Path("/sys/devices/system/cpu")
SLOW_GOVERNORS = {"powersave", "conservative", "userspace"}
TIME_ERROR = 5
"""What adjtimex returns while the clock is not synchronised (its man page)."""
KEEPERS = {
    "chronyd": "chronyd -q 'pool pool.ntp.org iburst'",
    "ntpd": "ntpd -gq",
    "timedatectl": "timedatectl set-ntp true",
}
"""Programs that keep a clock right, and how they are told to."""


def may(capability: int) -> bool:
    """Whether this process has a right beyond other users'."""
    found = re.search(
        r"^CapEff:\s*([0-9a-f]+)$", kernel.text("/proc/self/status") or "", re.MULTILINE
    )
    return bool(found and int(found[1], 16) & capability)


# --- open files ---------------------------------------------------------------------------------------------


def open_files(users: int) -> Check:
    """256 users are 2 x 256 + 1,024 = 1,536 files of one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted, endless = FILES_A_USER * users + OTHER_FILES, resource.RLIM_INFINITY
    if soft == endless or soft >= wanted:
        many = "any number of" if soft == endless else f"{soft:,}"
        return good("open_files", f"{many} open files; {users:,} users need {wanted:,}")
    # `ulimit -n` lifts a shell's limit up to the hard one; beyond it needs a right that root has outside containers
    aim = max(wanted, FILES_WANTED)
    fix: str | None = f"ulimit -n {aim}"
    if hard != endless and wanted <= hard < aim:
        fix = f"ulimit -n {hard}"
    elif hard != endless and hard < wanted and not may(MAY_LIFT):
        nofile = f"nofile={aim}:{aim}"
        fix = as_root(f"prlimit --pid $$ --{nofile}")
        if container():
            fix = started_with(f"--ulimit {nofile}")
    return bad(
        "open_files",
        f"{soft:,} open files, and {users:,} users need {wanted:,}: beyond the limit clients are refused"
        " their connection while the server looks healthy (for good: nofile in `/etc/security/limits.d`,"
        " LimitNOFILE in a systemd unit)",
        fix,
        partial(_lifted, wanted),
    )


def _lifted(wanted: int) -> tuple[bool, str]:
    """Lift this process' limit, and with it that of everything it starts; a shell keeps its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    aim = max(wanted, FILES_WANTED)
    if hard != resource.RLIM_INFINITY:
        aim = min(hard, aim)
    resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
    if aim < wanted:
        why = "open files are all that this user may have; only root lifts the hard limit"
        return False, f"{aim:,} {why}"
    why = "open files for this process and what it starts; your shell keeps its own"
    return True, f"{aim:,} {why}: ulimit -n {aim}"


# --- cores ----------------------------------------------------------------------------------------------------


def cpu_checks(needs: Needs, processes: int, cores: Path = CORES) -> Iterator[Check]:
    """Cores that may be used, and whether they run slower than they could."""
    quota, there = cgroups.cores(), os.cpu_count()
    usable = min(len(os.sched_getaffinity(0)), quota or float("inf"))
    of = f" of {there}" if there not in (None, usable) else ""
    said = f"{usable:g}{of} cores may be used"
    if needs.vllm is None and not needs.gpu:
        yield good("cpu", f"{said}; the simulator is one process")
    elif usable >= processes:
        yield good("cpu", f"{said}; vLLM runs {processes} processes that seldom sleep")
    else:
        waits = "the GPU waits for the slowest" if needs.gpu else "they wait for each other"
        why = f"{said}, and vLLM runs {processes} processes that seldom sleep: {waits}"
        yield doubtful("cpu", why)

    files = cores.glob("cpu[0-9]*/cpufreq/scaling_governor")
    policies = {(kernel.text(file) or "").strip() for file in files} - {""}
    named = ", ".join(sorted(policies))
    if not cores.is_dir():
        yield doubtful("cpu_governor", "unknown: the cores' policies cannot be read")
    elif SLOW_GOVERNORS & policies:
        fix = as_root("tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
        why = f"the cores' policy is {named}: they clock up late, and each token passes the CPU"
        yield doubtful("cpu_governor", why, f"echo performance | {fix}")
    elif policies:
        yield good("cpu_governor", f"the cores' policy is {named}")
    else:
        yield good("cpu_governor", "this machine's cores have no policy to set")


# --- clock ----------------------------------------------------------------------------------------------------


class Timex(ctypes.Structure):
    """The start of the kernel's struct timex, and room for the rest (208 bytes in all on 64 bits)."""

    _fields_ = (
        ("modes", ctypes.c_int),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock() -> Check:
    """Several machines' seconds are laid side by side by their wall clocks. Nothing is set, no time server asked."""
    found = Timex()  # `modes` is 0: adjtimex changes nothing, which every user may ask for
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(found))
    except (OSError, AttributeError) as error:
        return doubtful("clock", f"unknown: adjtimex is not to be had: {error}")
    if answer < 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        return doubtful("clock", f"unknown: the kernel does not tell: {reason}")
    if answer != TIME_ERROR:
        # the kernel counts in microseconds
        return good("clock", f"the clock is synchronised, within {found.maxerror / 1000:,.0f} ms")
    keeper = next((words for name, words in KEEPERS.items() if shutil.which(name)), None)
    return doubtful(
        "clock",
        "nobody keeps the clock right: several machines' logs and measurements can't be laid side by side",
        # a container's clock is the host's
        None if container() else as_root(keeper or "apt-get install -y chrony"),
    )
