"""Open files, cores and the wall clock. `--fix` lifts this process' own limit of open files; nothing else is changed."""

import ctypes
import os
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from toolkit.serving.preflight import kernel
from toolkit.serving.preflight.check import Check, Needs, as_root, fail, ok, unless_contained, warn
from toolkit.serving.preflight.kernel import MAY_LIFT, may

FILES_A_USER = 2
"""A client's connection and the engine's: both are the proxy's, which is one process."""
OTHER_FILES = 1024
"""Libraries, logs, the database, workers' pipes."""
FILES_WANTED = 65_535
"""What the contest's engineers set after 1,024 had refused their clients."""
CORES = Path("/sys/devices/system/cpu")
SLOW_GOVERNORS = {"powersave", "conservative", "userspace"}
TIMEX = "@illl"
"""How the kernel's struct timex begins: modes, offset, freq, maxerror in microseconds; it has 208 bytes on 64 bits."""
TIME_ERROR = 5
"""What adjtimex returns while the clock is not synchronised (its man page)."""
KEEPERS = {
    "chronyd": "chronyd -q 'pool pool.ntp.org iburst'",
    "ntpd": "ntpd -gq",
    "timedatectl": "timedatectl set-ntp true",
}
"""Programs that keep a clock right, and how they are told to."""


def open_files(users: int) -> Check:
    """256 users are 2 x 256 + 1,024 = 1,536 files of one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted, endless = FILES_A_USER * users + OTHER_FILES, resource.RLIM_INFINITY
    if soft == endless or soft >= wanted:
        many = "any number of" if soft == endless else f"{soft:,}"
        return ok("open_files", f"{many} open files; {users:,} users need {wanted:,}")
    # `ulimit -n` lifts a shell's limit up to the hard one; beyond it needs a right that root has outside containers
    most = aim = max(wanted, FILES_WANTED)
    if hard != endless:
        most = min(hard, aim)
    fix: str | None = f"ulimit -n {most if most >= wanted else aim}"
    if most < wanted and not may(MAY_LIFT):
        nofile = f"nofile={aim}:{aim}"
        fix = unless_contained(f"prlimit --pid $$ --{nofile}", f"--ulimit {nofile}")
    why = (
        f"{soft:,} open files, and {users:,} users need {wanted:,}: beyond the limit clients are refused"
        " their connection while the server looks healthy (for good: nofile in `/etc/security/limits.d`,"
        " LimitNOFILE in a systemd unit)"
    )

    def lift() -> tuple[bool, str]:
        """This process' limit, and with it that of everything it starts; a shell keeps its own."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < wanted:
            return (
                False,
                f"{most:,} open files are all that this user may have; only root lifts the hard limit",
            )
        return (
            True,
            f"{most:,} open files for this process and what it starts; your shell keeps its own: ulimit -n {most}",
        )

    return fail("open_files", why, fix, lift)


def cpu_checks(needs: Needs, processes: int, cores: Path = CORES) -> Iterator[Check]:
    """Cores that may be used, and whether they run slower than they could."""
    quota, there = kernel.core_limit(), os.cpu_count()
    usable = min(len(os.sched_getaffinity(0)), quota or float("inf"))
    of = f" of {there}" if there not in (None, usable) else ""
    said = f"{usable:g}{of} cores may be used"
    if needs.vllm is None and not needs.gpu:
        yield ok("cpu", f"{said}; the simulator is one process")
    elif usable >= processes:
        yield ok("cpu", f"{said}; vLLM runs {processes} processes that seldom sleep")
    else:
        waits = "the GPU waits for the slowest" if needs.gpu else "they wait for each other"
        yield warn("cpu", f"{said}, and vLLM runs {processes} processes that seldom sleep: {waits}")

    files = cores.glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = {(kernel.text(file) or "").strip() for file in files} - {""}
    said = f"the cores' frequency governor is {', '.join(sorted(governors))}"
    if not cores.is_dir():
        yield warn("cpu_governor", "unknown: the cores' frequency governor cannot be read")
    elif SLOW_GOVERNORS & governors:
        fix = as_root("tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
        why = f"{said}: they clock up late, and each token passes the CPU"
        yield warn("cpu_governor", why, f"echo performance | {fix}")
    elif governors:
        yield ok("cpu_governor", said)
    else:
        yield ok("cpu_governor", "this machine's cores have no frequency governor to set")


def clock() -> Check:
    """Several machines' seconds are laid side by side by their wall clocks. Nothing is set, no time server asked."""
    timex = ctypes.create_string_buffer(
        512
    )  # `modes` is 0: adjtimex changes nothing, which every user may ask for
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    except (OSError, AttributeError) as error:
        return warn("clock", f"unknown: adjtimex is missing: {error}")
    if answer < 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        return warn("clock", f"unknown: the kernel does not say: {reason}")
    if answer != TIME_ERROR:
        within_ms = struct.unpack_from(TIMEX, timex)[-1] / 1000
        return ok("clock", f"NTP keeps the clock in sync, within {within_ms:,.0f} ms")
    keeper = next((words for name, words in KEEPERS.items() if shutil.which(name)), None)
    return warn(
        "clock",
        "no NTP sync: logs and measurements of several machines cannot be compared by time",
        # a container's clock is the host's
        unless_contained(keeper or "apt-get install -y chrony"),
    )
