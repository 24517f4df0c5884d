"""Can this machine load these hosts? Whether one of them is on it, and whether it has files, ports, disk and a clock for a blast.

No host is contacted: names are looked up, and the system is asked which way packets would leave.

A load generator takes CPU from a server beside it and spares that server the network, so such a run ranks nobody.
A tunnel or a forwarded port ends on a loopback address, too, and its load goes through this machine twice.
"""

import contextlib
import ipaddress
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from toolkit.records import Host
from toolkit.units import file_size

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

Route = tuple[str, str | None]
"""An address of a host, and the one of this machine that packets to it leave from; None: there is no way to it."""


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
    machine = socket.gethostname()
    own = {machine.lower(), machine.lower().partition(".")[0]} - {""}
    routes: dict[str, list[Route]] = {}

    def look_up(name: str) -> None:
        routes[name] = routes_to(name, ask_resolver=ask_resolver)

    names = [urlsplit(host.url).hostname or "" for host in hosts]
    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + LOOKUP_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    found = [
        (host.name, place_here(name, routes.get(name, ()), own))
        for host, name in zip(hosts, names, strict=True)
    ]
    return [(name, place) for name, place in found if place]


def routes_to(hostname: str, *, ask_resolver: bool = True) -> list[Route]:
    """The ways to a name or an address; none to one that nobody can look up."""
    flags = 0 if ask_resolver else socket.AI_NUMERICHOST
    try:
        infos = socket.getaddrinfo(hostname, 9, type=socket.SOCK_DGRAM, flags=flags)
    except (OSError, UnicodeError):  # a label of 64 characters is no IDNA
        return []
    found: list[Route] = []
    for family, _, _, _, address in infos:
        source = None
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            # a datagram socket that connects sends nothing
            probe.connect(address)
            source = str(probe.getsockname()[0])
        found.append((str(address[0]), source))
    return found


def place_here(hostname: str, routes: Sequence[Route], own_names: set[str]) -> str | None:
    """Where on this machine a host is: an address of its, else its name; None: elsewhere."""

    def parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:  # a name
            return None
        return getattr(address, "ipv4_mapped", None) or address

    name = hostname.lower().rstrip(".")
    for text, source in (*routes, (name, None)):
        address = parsed(text)
        # Linux takes 0.0.0.0 for loopback; and it is ours if a packet to it would bear it itself
        if address is not None and (
            address.is_loopback
            or address.is_unspecified
            or (source is not None and parsed(source) == address)
        ):
            return hostname if text is name else text
    # RFC 6761: every name below `localhost` is a loopback address, whatever a resolver says
    is_own = name in own_names or name == "localhost" or name.endswith(".localhost")
    return hostname if is_own else None


def sentence(found: Sequence[tuple[str, str]]) -> str:
    """Say who is on this machine: `a (127.0.0.1), b (...) and 5 more are on this machine`."""
    words = [f"`{name}` ({place})" for name, place in found[:NAMED]]
    if len(found) > NAMED:
        words.append(f"{len(found) - NAMED} more")
    listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"{listed} {'is' if len(found) == 1 else 'are'} on this machine"


# --- has it what a blast needs? --------------------------------------------------------------------------


def open_files_limit() -> int | None:
    """How many files a process may have open now; None: as many as it likes."""
    import resource  # noqa: PLC0415 (there is none on Windows)

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
