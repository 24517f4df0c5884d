"""Who listens on a port, by /proc, and whether it can be bound: it binds for a moment, listens to nothing, asks nobody."""

import errno
import socket
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from toolkit.serving.fit import kernel
from toolkit.serving.fit.facts import Holder, Port

LISTEN = "0A"
"""The state of a row of /proc/net/tcp; see the kernel's include/net/tcp_states.h."""


def ports(numbers: Iterable[int], host: str, proc: Path = kernel.PROC) -> tuple[Port, ...]:
    """All that is known about these ports."""
    rows = [*_rows(proc / "net/tcp"), *_rows(proc / "net/tcp6")]
    unread = kernel.text(proc / "net/tcp") is None
    reserved = kernel.text(proc / "sys/net/ipv4/ip_local_reserved_ports")
    found = []
    for number in dict.fromkeys(numbers):
        own = [row for row in rows if row[1] == number]
        listening = {row[3]: _holder(row[0]) for row in own if row[2] == LISTEN}
        port = Port(
            number=number,
            holders=tuple(_with_owners(listening, proc)),
            reserved=None if reserved is None else _is_in(number, reserved),
            error="`/proc/net/tcp` cannot be read" if unread else None,
        )
        found.append(_tried(port, host, has_rows=bool(own)))
    return tuple(found)


def _rows(path: Path) -> Iterable[tuple[str, int, str, str]]:
    """Address in hex, port, state and inode of each socket."""
    for line in (kernel.text(path) or "").splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and ":" in words[1]:
            address, _, port = words[1].partition(":")
            yield address, int(port, 16), words[3], words[9]


def address_of(word: str) -> str:
    """`0100007F` is 127.0.0.1: each four bytes stand in the machine's order (little-endian)."""
    raw = b"".join(bytes.fromhex(word[i : i + 8])[::-1] for i in range(0, len(word), 8))
    return str(IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw))


def _holder(word: str) -> Holder:
    return Holder(address=address_of(word), family="IPv4" if len(word) == 8 else "IPv6")


def _with_owners(listening: dict[str, Holder], proc: Path) -> Iterable[Holder]:
    """Name the processes; where it forked, several share one socket."""
    if not listening:
        return
    owners: dict[str, list[int]] = {inode: [] for inode in listening}
    for pid in kernel.processes(proc):
        for inode in _sockets(proc / str(pid) / "fd") & owners.keys():
            owners[inode].append(pid)
    for inode, holder in listening.items():
        pids = tuple(owners[inode])
        yield replace(holder, pids=pids, command=kernel.command(pids[0], proc) if pids else None)


def _sockets(folder: Path) -> set[str]:
    """Inodes of a process' sockets; none where this user may not look."""
    found = set()
    try:
        for name in folder.iterdir():
            target = _link(name)
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:
        pass  # another user's, or it ended meanwhile
    return found


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _tried(port: Port, host: str, *, has_rows: bool) -> Port:
    """Bind as a server does; then without SO_REUSEADDR, which sees a server that is bound and does not listen yet.

    vLLM binds at its start and listens minutes later, when its model is loaded; both with SO_REUSEADDR may bind.
    """
    refusal = _refusal(host, port.number, reuse=True)
    if refusal or has_rows:
        ending = refusal == "EADDRINUSE" and has_rows and not port.holders
        return replace(port, refusal=refusal, ending=ending)
    strict = _refusal(host, port.number, reuse=False)
    return replace(port, refusal=strict, bound_only=strict == "EADDRINUSE")


def _refusal(host: str, number: int, *, reuse: bool) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
            tried.bind((host, number))
    except OverflowError:
        return "EINVAL"
    except OSError as error:
        # a name that cannot be resolved has no number of errno's
        return errno.errorcode.get(error.errno or 0, error.strerror or "unknown")
    return None


def _is_in(number: int, ranges: str) -> bool:
    """Whether `8000-8010,9000` holds it."""
    for part in ranges.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdigit() and int(low) <= number <= (int(high) if high.isdigit() else int(low)):
            return True
    return False
