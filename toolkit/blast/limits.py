"""Does this machine have what a blast needs: open files, ports, disk, a clock? Pure: figures in, sentences out."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from toolkit.units import file_size

SPARE_FILES = 256
"""Of one process beside its users' connections: libraries, logs, the database, workers' sockets."""
CROWDED_SHARE = 0.5
"""Past this part of the ports, a host that closes each connection leaves too few: a used one rests for a minute."""
HOST_SECOND_BYTES = 2_100
"""What the database grows by for each host and second, at most: 150 MB an hour with 20 hosts at 1,000 requests/s
each is the bar, and 106 MB were measured. Processes share a row. A look of scout's at a simulated host took 1.7 kB,
which every 5 s is 25 MB an hour of 20 hosts."""
SPARE_BYTES = 100_000_000
"""What a disk should have left whatever a blast writes."""
OLDEST_CLOCK_S = 1_735_689_600.0
"""2025-01-01 UTC: nobody had this program before; a machine without a battery begins at 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that this machine lacks, in a sentence, and the way out."""

    about: Literal["open_files", "ports", "disk", "clock"]
    text: str
    fix: str
    stops: bool
    """The blast would surely fail, so it does not begin."""


def open_files(allowed: int | None, *, users: int, processes: int) -> Concern | None:
    """Compare a process's limit of open files with its share of the users, a connection each."""
    needed = -(-users // max(1, processes)) + SPARE_FILES
    if allowed is None or allowed >= needed:
        return None
    return Concern(
        about="open_files",
        text=f"{users:,} users need {needed:,} open files in a process, and `ulimit -n` allows {allowed:,}",
        fix=f"Raise it with `ulimit -n {needed}`, or spread the users: `--processes`",
        stops=True,
    )


def ports(available: int | None, *, users_per_host: int) -> Concern | None:
    """Compare the ports for outgoing connections with the users of one host: each needs one of its own there."""
    if available is None or users_per_host <= available * CROWDED_SHARE:
        return None
    stops = users_per_host > available
    end = "has" if stops else "has only"
    return Concern(
        about="ports",
        text=f"{users_per_host:,} users a host need as many ports, and this machine {end} {available:,} for "
        "connections to one host",
        fix="Use fewer users, or widen the range: `sysctl net.ipv4.ip_local_port_range`",
        stops=stops,
    )


def growth_bytes(*, hosts: int, duration_s: float) -> int:
    """How much a blast may write to the database, at most."""
    return round(HOST_SECOND_BYTES * hosts * duration_s)


def disk(free_bytes: int | None, *, expected_bytes: int) -> Concern | None:
    """Compare the free space beside the database with what the blast may write."""
    if free_bytes is None or free_bytes >= expected_bytes + SPARE_BYTES:
        return None
    return Concern(
        about="disk",
        text=(
            f"the blast may write {file_size(expected_bytes)} to the database, where {file_size(free_bytes)} are free"
            f" and {file_size(SPARE_BYTES)} should stay so"
        ),
        fix="Free some space, or put the database elsewhere with `--db`",
        stops=False,
    )


def clock(now_s: float, *, newest_s: float | None) -> Concern | None:
    """Doubt a clock that begins anew or goes back: seconds are placed by it. `newest_s`: when the last run began."""
    if now_s >= OLDEST_CLOCK_S and (newest_s is None or now_s >= newest_s):
        return None
    told = f"this machine's clock says {_moment(now_s)}"
    if now_s >= OLDEST_CLOCK_S and newest_s is not None:
        told += f", but the last run in the database began at {_moment(newest_s)}"
    return Concern(
        about="clock", text=told, fix="Set the clock, e.g., `timedatectl set-ntp true`", stops=False
    )


def known(*found: Concern | None) -> list[Concern]:
    """Those that there are, the ones that stop the blast first."""
    return sorted((one for one in found if one), key=lambda one: not one.stops)


def _moment(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
