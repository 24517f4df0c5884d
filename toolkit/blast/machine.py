"""Can this machine load these hosts? Whether one of them is on it, and whether it has files, ports, disk and a clock for a blast.

No host is contacted: names are looked up, and compared with the addresses of this machine's interfaces.

A load generator takes CPU from a server beside it and spares that server the network, so such a run ranks nobody.
A tunnel or a forwarded port ends on a loopback address, too, and its load goes through this machine twice.
"""

import contextlib
import ipaddress
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from toolkit.records import Host
from toolkit.units import file_size, spoken_list

LOOKUP_S = 5.0
"""For all names together: the usual resolver asks once more after 5 s, and a host that has no address yet is dead."""
NAMED = 3
"""Of more hosts than these only the first are named in a sentence."""
SPARE_FILES = 256
"""Of one process beside its users' connections: libraries, logs, the database, workers' sockets."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
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


class Lack(NamedTuple):
    """Something that this machine lacks, in a sentence, and the way out."""

    text: str
    fix: str
    stops: bool = False
    """The blast would surely fail, so it does not begin."""


# --- is a host on this machine? --------------------------------------------------------------------------


def local_hosts(hosts: Sequence[Host], *, ask_resolver: bool = True) -> list[tuple[str, str]]:
    """The hosts that are on this machine: name, and address, else the name by which one can tell.

    A name without an answer in time has no address. Without `ask_resolver` none has.
    """
    names = [urlsplit(host.url).hostname or "" for host in hosts]
    flags = 0 if ask_resolver else socket.AI_NUMERICHOST
    addresses: dict[str, list[str]] = {}

    def look_up(name: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):  # a label of 64 characters is no IDNA
            infos = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM, flags=flags)
            addresses[name] = [str(info[4][0]) for info in infos]

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + LOOKUP_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))

    own = {
        address_of(each.address)
        for interface in psutil.net_if_addrs().values()
        for each in interface
    }
    machine = socket.gethostname().lower()
    # RFC 6761: every name below `localhost` is a loopback address, whatever a resolver says
    own_names = {machine, machine.partition(".")[0], "localhost"} - {""}
    found = []
    for host, name in zip(hosts, names, strict=True):
        for text in addresses.get(name, ()):
            address = address_of(text)
            # Linux takes 0.0.0.0 for loopback
            if address and (address.is_loopback or address.is_unspecified or address in own):
                found.append((host.name, text))
                break
        else:
            plain = name.rstrip(".")
            if plain in own_names or plain.endswith(".localhost"):
                found.append((host.name, name))
    return found


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address without its zone, IPv4 in IPv6's clothes as IPv4; None: it is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def sentence(found: Sequence[tuple[str, str]]) -> str:
    """Say who is on this machine: `a (127.0.0.1), b (...) and 5 more are on this machine`."""
    names = spoken_list([f"`{name}` ({place})" for name, place in found], NAMED)
    return f"{names} {'is' if len(found) == 1 else 'are'} on this machine"


# --- has it what a blast needs? --------------------------------------------------------------------------


def open_files_limit() -> int | None:
    """How many files a process may have open now; None: as many as it likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def ports_for_one_host(file: Path = PORT_RANGE) -> int | None:
    """How many outgoing connections to one address the system has ports for; None: it does not say."""
    try:
        first, last = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return last - first + 1


def free_bytes(path: Path) -> int | None:
    """What is free on the disk of a file that may not be there yet; None: the system does not say."""
    for folder in path.absolute().parents:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


def lacks(
    *,
    hosts: int,
    users: int,
    processes: int,
    duration_s: float,
    database: Path,
    newest_s: float | None,
) -> Iterator[Lack]:
    """What this machine lacks for a blast, what stops it first. `newest_s`: when the last run in the database began."""
    # a connection for each of a process's users
    files, needed = open_files_limit(), -(-users // processes) + SPARE_FILES
    if files is not None and files < needed:
        yield Lack(
            f"{users:,} users need {needed:,} open files in a process, and `ulimit -n` allows {files:,}",
            f"Raise it with `ulimit -n {needed}`, or spread the users: `--processes`",
            stops=True,
        )

    # each user of a host needs a port of its own there
    ports, users_per_host = ports_for_one_host(), users // hosts
    if ports is not None and users_per_host > ports * CROWDED_SHARE:
        stops = users_per_host > ports
        yield Lack(
            f"{users_per_host:,} users a host need as many ports, and this machine {'has' if stops else 'has only'}"
            f" {ports:,} for connections to one host",
            "Use fewer users, or widen the range: `sysctl net.ipv4.ip_local_port_range`",
            stops=stops,
        )

    free, expected = free_bytes(database), round(HOST_SECOND_BYTES * hosts * duration_s)
    if free is not None and free < expected + SPARE_BYTES:
        yield Lack(
            f"the blast may write {file_size(expected)} to the database, where {file_size(free)} are free"
            f" and {file_size(SPARE_BYTES)} should stay so",
            "Free some space, or put the database elsewhere with `--db`",
        )

    # seconds are placed by the clock: one that begins anew or goes back is doubted
    now_s = time.time()
    moments = [
        f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC" for at in (now_s, newest_s or 0.0)
    ]
    text = f"this machine's clock says {moments[0]}"
    if now_s < OLDEST_CLOCK_S:
        yield Lack(text, "Set the clock, e.g., `timedatectl set-ntp true`")
    elif newest_s is not None and now_s < newest_s:
        yield Lack(
            f"{text}, but the last run in the database began at {moments[1]}",
            "Set the clock, e.g., `timedatectl set-ntp true`",
        )
