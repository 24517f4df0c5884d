"""Ports that a server is to listen on, and the kernel's settings that many connections run into.

It binds for a moment, listens to nothing, asks nobody.
"""

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import psutil

from toolkit.serving.preflight import kernel
from toolkit.serving.preflight.check import Check, Needs, as_root, bad, doubtful, good

PROC = Path("/proc")
LISTEN = "0A"
"""The state of a row of /proc/net/tcp; see the kernel's include/net/tcp_states.h."""
EPHEMERAL_LEAST = 4_096
EPHEMERAL_RANGE = (16_384, 65_535)
"""Above the usual servers' ports."""
LONGEST_COMMAND = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A socket that listens on a port."""

    address: str
    pids: tuple[int, ...] = ()
    """All who share it, where a server forked; empty: a process that this user may not look at, or of another container."""
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port that is to be listened on."""

    refusal: str | None = None
    """Why it cannot be bound on the wanted address: EADDRINUSE, EACCES ...; None: it can."""
    is_loading: bool = False
    """Some server holds it and does not listen yet, as vLLM while it loads."""
    is_ending: bool = False
    """Only connections are left of a server that is gone; the kernel keeps them for a minute."""
    holders: tuple[Holder, ...] = ()
    is_known: bool = True
    """False: the table of sockets cannot be read, so nobody can tell who holds it."""


# --- who holds a port -----------------------------------------------------------------------------------------


def probe(number: int, host: str, proc: Path = PROC) -> Port:
    """Whether a port can be bound, and who listens there.

    Bound as a server does it; then without SO_REUSEADDR, which sees a server that is bound and does not listen yet: vLLM
    binds at its start and listens minutes later, when its model is loaded, and both with SO_REUSEADDR may bind.
    """
    tables = [kernel.text(proc / "net" / name) for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in (table or "").splitlines()[1:]]
    own = [row for row in rows if len(row) > 9 and row[1].endswith(f":{number:04X}")]
    listening = {row[9]: row[1].partition(":")[0] for row in own if row[3] == LISTEN}
    holders = tuple(_holders(listening, proc))
    refusal, is_known = _refusal(host, number, reuse=True), tables[0] is not None
    if refusal or own:
        is_ending = refusal == "EADDRINUSE" and bool(own) and not holders
        return Port(refusal=refusal, is_ending=is_ending, holders=holders, is_known=is_known)
    refusal = _refusal(host, number, reuse=False)
    return Port(refusal=refusal, is_loading=refusal == "EADDRINUSE", is_known=is_known)


def _holders(listening: dict[str, str], proc: Path) -> Iterator[Holder]:
    """By inode, addresses in the kernel's writing. psutil names one process a socket, and all who share it must end."""
    owners: dict[str, list[int]] = {f"socket:[{inode}]": [] for inode in listening}
    for pid in psutil.pids() if listening else ():
        links = set()
        with suppress(OSError):  # another user's, or it ended meanwhile
            for each in (proc / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    links.add(str(each.readlink()))
        for link in links & owners.keys():
            owners[link].append(pid)
    for inode, word in listening.items():
        # `0100007F` is 127.0.0.1: each four bytes stand in the machine's order (little-endian)
        raw = b"".join(bytes.fromhex(word[i : i + 8])[::-1] for i in range(0, len(word), 8))
        pids = tuple(owners[f"socket:[{inode}]"])
        command = kernel.command(pids[0]) if pids else None
        yield Holder(address=str(ip_address(raw)), pids=pids, command=command)


def _refusal(host: str, number: int, *, reuse: bool) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
            tried.bind((host, number))
    except OSError as error:
        # a name that cannot be resolved has no number of errno's
        return errno.errorcode.get(error.errno or 0, error.strerror or "unknown")
    return None


# --- what that means ------------------------------------------------------------------------------------------


def checks(needs: Needs) -> Iterator[Check]:
    """The ports first, then what many clients run into."""
    ports = dict.fromkeys(needs.ports)
    lent = kernel.numbers(PROC / "sys/net/ipv4/ip_local_port_range") or [0, 0]
    reserved = (kernel.text(PROC / "sys/net/ipv4/ip_local_reserved_ports") or "").strip()
    may_be_lent = [
        number for number in ports if lent[0] <= number <= lent[-1] and not _is_in(number, reserved)
    ]
    # the kernel's list is written whole: what stands there stays, and all wanted ports come at once
    words = ",".join([reserved, *map(str, may_be_lent)]).strip(",")
    reserve = as_root(f"sysctl -w net.ipv4.ip_local_reserved_ports={words}")
    for number in ports:
        code, port = f"port_{number}", probe(number, needs.host)
        if port.refusal == "EADDRINUSE":
            yield _taken(number, port, needs.host)
        elif port.refusal == "EACCES":
            why = f"port {number} is kept for root: ports below 1,024 usually are"
            fix = f"sudo sysctl -w net.ipv4.ip_unprivileged_port_start={number}"
            yield bad(code, why, fix)
        elif port.refusal:
            why = f"`{needs.host}` cannot be listened on with port {number}: {port.refusal}"
            yield bad(code, why)
        elif port.holders:
            why = f"port {number} is free there, but {_named(port.holders)} listens on it elsewhere"
            fix = _end(port.holders, number)
            yield doubtful(code, f"{why}: clients of `localhost` may reach that one", fix)
        elif not port.is_known:
            why = "who listens beside it is unknown: `/proc/net/tcp` cannot be read"
            yield doubtful(code, f"port {number} can be bound; {why}")
        elif number in may_be_lent:
            why = f"port {number} is free, but the kernel may give it to an outgoing connection before the server starts"
            yield doubtful(code, why, reserve)
        else:
            yield good(code, f"port {number} is free")
    yield _ephemeral(lent, needs.users)
    yield from _settings(needs.users)


def _is_in(number: int, ranges: str) -> bool:
    """Whether `8000-8010,9000` holds it."""
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and int(low) <= number <= int(high or low):
            return True
    return False


def _taken(number: int, port: Port, host: str) -> Check:
    code, start = f"port_{number}", f"port {number} is taken"
    if port.is_loading:
        why = "by a server that does not listen yet, as vLLM while it loads: two servers would share the clients"
        return bad(code, f"{start} {why}")
    if port.is_ending:
        why = "by connections of a server that is gone: the kernel lets go of them within a minute"
        return bad(code, f"{start} {why}", "sleep 60")
    rivals = [each for each in port.holders if _is_rival(each.address, host)]
    holders = rivals or port.holders
    if not holders:
        return bad(code, f"{start}, and `/proc` does not show by whom", _end((), number))
    why = f"{start} by {_named(holders)}: a server cannot start there, or takes only part of the clients"
    return bad(code, why, _end(holders, number))


def _is_rival(address: str, host: str) -> bool:
    """Whether who listens there can be in the way; an IPv6 socket on all addresses usually takes IPv4's clients, too.

    That the port is taken is known from trying to bind it, without SO_REUSEPORT: vLLM sets that (launchers/launcher.py in
    0.32.0), so a second one starts without an error, and each of the two gets half of the clients.
    """
    try:
        own: IPv4Address | IPv6Address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return True
    other = ip_address(address)
    if own.version == other.version:
        return own == other or own.is_unspecified or other.is_unspecified
    return any(each.is_unspecified and each.version == 6 for each in (own, other))


def _named(holders: Sequence[Holder]) -> str:
    named = []
    for each in holders:
        is_six = ":" in each.address
        where = f"[{each.address}] (IPv6)" if is_six else f"{each.address} (IPv4)"
        command = each.command or "?"
        if len(command) > LONGEST_COMMAND:
            command = command[: LONGEST_COMMAND - 1] + "\N{HORIZONTAL ELLIPSIS}"
        who = (
            f"`{command}` (pid {each.pids[0]})"
            if each.pids
            else "a process of another user or container"
        )
        named.append(f"{who} on {where}")
    return "; ".join(dict.fromkeys(named))


def _end(holders: Sequence[Holder], number: int) -> str:
    """End them; never process 1, which is the container or the machine."""
    pids = sorted({pid for each in holders for pid in each.pids})
    if not pids or 1 in pids:
        return f"sudo ss -ltnp 'sport = :{number}'"
    return "kill " + " ".join(map(str, pids))


def _ephemeral(lent: list[int], users: int) -> Check:
    """Each connection that the proxy opens, or a load generator on this machine, takes a port for its life and a minute."""
    code, (low, *_, high) = "ephemeral_ports", lent
    if not high:
        return doubtful(code, "unknown: the range of ports for outgoing connections cannot be read")
    count, most = high - low + 1, EPHEMERAL_RANGE[1] - EPHEMERAL_RANGE[0] + 1
    said = f"{count:,} ports for outgoing connections ({low} to {high})"
    if count >= min(most, max(EPHEMERAL_LEAST, 16 * users)):
        return good(code, said)
    why = f"{said}: each stays taken for a minute after its connection, and {users:,} users soon find none"
    wide = "{} {}".format(*EPHEMERAL_RANGE)
    fix = as_root(f'sysctl -w net.ipv4.ip_local_port_range="{wide}"')
    return (bad if count <= users else doubtful)(code, why, fix)


def _settings(users: int) -> Iterator[Check]:
    """Whether ports of ended connections are used again, and how many clients may knock at the same moment."""
    reuse = kernel.number(PROC / "sys/net/ipv4/tcp_tw_reuse")
    if reuse is None:
        yield doubtful("tcp_tw_reuse", "unknown: `net.ipv4.tcp_tw_reuse` cannot be read")
    elif reuse:
        where = "on this machine" if reuse == 2 else "everywhere"
        yield good("tcp_tw_reuse", f"ports of ended connections are used again {where}")
    else:
        why = "ports of ended connections stay unused for a minute: a proxy runs out of them under short requests"
        yield doubtful("tcp_tw_reuse", why, as_root("sysctl -w net.ipv4.tcp_tw_reuse=1"))
    for name in ("net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog"):
        code, value = name.rpartition(".")[2], kernel.number(PROC / "sys" / name.replace(".", "/"))
        if value is None:
            yield doubtful(code, f"unknown: `{name}` cannot be read")
        elif value >= users:
            yield good(code, f"{value:,} clients may knock at once; {users:,} are expected")
        else:
            why = f"{value:,} clients may knock at once, and {users:,} are expected: the rest wait seconds for a second try"
            yield doubtful(code, why, as_root(f"sysctl -w {name}={max(4096, users)}"))
