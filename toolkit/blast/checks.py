"""What this machine is and has: the way to each host, its own names, its limits. The world; `neutrality` and `limits` judge.

No host is contacted: names are looked up, and the system is asked which way packets would leave.
"""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from toolkit.blast.neutrality import BlastTarget, LocalRoute
from toolkit.records import Host

LOOKUP_S = 5.0
"""For all names together: the usual resolver asks once more after 5 s, and a host that has no address yet is dead."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def own_names() -> set[str]:
    """What this machine calls itself, with its domain and without."""
    name = socket.gethostname()
    return {name, name.partition(".")[0]} - {""}


def targets(hosts: Sequence[Host], *, ask_resolver: bool = True) -> list[BlastTarget]:
    """The way to each host; a name without an answer in time has none. Without `ask_resolver` only to addresses."""
    found: dict[str, tuple[LocalRoute, ...]] = {}
    threads = [
        threading.Thread(target=_find, args=(host, found, ask_resolver), daemon=True)
        for host in hosts
    ]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + LOOKUP_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [
        BlastTarget(name=host.name, hostname=hostname(host), routes=found.get(host.name, ()))
        for host in hosts
    ]


def hostname(host: Host) -> str:
    """The name or address in a host's URL, without brackets."""
    return urlsplit(host.url).hostname or ""


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


def _find(host: Host, found: dict[str, tuple[LocalRoute, ...]], ask_resolver: bool) -> None:
    flags = 0 if ask_resolver else socket.AI_NUMERICHOST
    try:
        infos = socket.getaddrinfo(hostname(host), 9, type=socket.SOCK_DGRAM, flags=flags)
    except (OSError, UnicodeError):  # a label of 64 characters is no IDNA
        return
    found[host.name] = tuple(
        LocalRoute(address=str(place[0]), source=_source(family, place))
        for family, _, _, _, place in infos
    )


def _source(family: int, place: tuple[object, ...]) -> str | None:
    """The own address that packets to a place would leave from. A datagram socket that connects sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect(place)
            return str(asked.getsockname()[0])
    except OSError:  # no route
        return None
