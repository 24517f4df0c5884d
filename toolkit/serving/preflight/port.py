"""Ports that a server is to listen on, and the kernel's settings that many connections run into.

It binds for a moment, listens to nothing, asks nobody.
"""

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil

from toolkit.serving.preflight import kernel
from toolkit.serving.preflight.check import Check, Needs, as_root, fail, ok, warn

PROC = Path("/proc")
LISTEN = "0A"
"""The state of a row of /proc/net/tcp; see the kernel's include/net/tcp_states.h."""
EPHEMERAL_LEAST = 4_096
EPHEMERAL_RANGE = (16_384, 65_535)
"""Above the usual servers' ports."""
EPHEMERAL_MOST = 1 + EPHEMERAL_RANGE[1] - EPHEMERAL_RANGE[0]
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
    addresses = {f"socket:[{row[9]}]": row[1].partition(":")[0] for row in own if row[3] == LISTEN}
    # psutil names one process a socket, and all who share it must end
    owners: dict[str, list[int]] = {inode: [] for inode in addresses}
    for pid in psutil.pids() if owners else ():
        links = set()
        with suppress(OSError):  # another user's, or it ended meanwhile
            for each in (proc / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    links.add(str(each.readlink()))
        for link in links & owners.keys():
            owners[link].append(pid)
    holders = []
    for inode, word in addresses.items():
        # `0100007F` is 127.0.0.1: each four bytes stand in the machine's order (little-endian)
        raw = b"".join(bytes.fromhex(word[i : i + 8])[::-1] for i in range(0, len(word), 8))
        pids = tuple(owners[inode])
        command = kernel.command(pids[0], LONGEST_COMMAND) if pids else None
        holders.append(Holder(address=str(ip_address(raw)), pids=pids, command=command))

    refusal, is_loading = _refusal(host, number, reuse=True), False
    if refusal is None and not own:
        refusal = _refusal(host, number, reuse=False)
        is_loading = refusal == "EADDRINUSE"
    return Port(
        refusal=refusal,
        is_loading=is_loading,
        is_ending=refusal == "EADDRINUSE" and bool(own) and not holders,
        holders=tuple(holders),
        is_known=tables[0] is not None,
    )


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
    ports, users = tuple(dict.fromkeys(needs.ports)), needs.users
    lent = kernel.numbers(PROC / "sys/net/ipv4/ip_local_port_range") or [0, 0]
    low, high = lent[0], lent[-1]
    # like `8000-8010,9000`
    reserved = (kernel.text(PROC / "sys/net/ipv4/ip_local_reserved_ports") or "").strip()
    kept: set[int] = set()
    for part in reserved.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            kept.update(range(int(first), int(last or first) + 1))
    may_be_lent = [number for number in ports if low <= number <= high and number not in kept]
    # the kernel's list is written whole: what stands there stays, and all wanted ports come at once
    words = ",".join([reserved, *map(str, may_be_lent)]).strip(",")
    reserve = as_root(f"sysctl -w net.ipv4.ip_local_reserved_ports={words}")
    for number in ports:
        yield _port(number, needs.host, reserve if number in may_be_lent else None)

    # each connection that the proxy opens, or a load generator on this machine, takes a port for its life and a minute
    code, count = "ephemeral_ports", high - low + 1
    said = f"{count:,} ports for outgoing connections ({low} to {high})"
    if not high:
        yield warn(code, "unknown: the range of ports for outgoing connections cannot be read")
    elif count >= min(EPHEMERAL_MOST, max(EPHEMERAL_LEAST, 16 * users)):
        yield ok(code, said)
    else:
        why = f"{said}: each stays taken for a minute after its connection ends, and {users:,} users soon find none free"
        wide = "{} {}".format(*EPHEMERAL_RANGE)
        fix = as_root(f'sysctl -w net.ipv4.ip_local_port_range="{wide}"')
        yield (fail if count <= users else warn)(code, why, fix)

    accepted = f"{{:,}} connections may wait to be accepted; {users:,} users are expected"
    half_open = f"{{:,}} connections may wait half open; {users:,} users are expected"
    slow = ": in a rush the others try again seconds later"
    for name, least, wanted, good, poor in (
        (
            "net.ipv4.tcp_tw_reuse",
            1,
            1,
            "ports of ended connections are used again (tcp_tw_reuse is {})",
            "ports of ended connections stay unused for a minute: a proxy runs out of them under short requests",
        ),
        ("net.core.somaxconn", users, max(4096, users), accepted, accepted + slow),
        ("net.ipv4.tcp_max_syn_backlog", users, max(4096, users), half_open, half_open + slow),
    ):
        code, value = name.rpartition(".")[2], kernel.number(PROC / "sys" / name.replace(".", "/"))
        if value is None:
            yield warn(code, f"unknown: `{name}` cannot be read")
        elif value >= least:
            yield ok(code, good.format(value))
        else:
            yield warn(code, poor.format(value), as_root(f"sysctl -w {name}={wanted}"))


def _port(number: int, host: str, reserve: str | None) -> Check:
    """Whether a server can listen there, and be alone; `reserve` keeps the kernel from giving the port away."""
    code, port = f"port_{number}", probe(number, host)
    is_taken, taken = port.refusal == "EADDRINUSE", f"port {number} is taken"
    rivals = [each for each in port.holders if _is_rival(each.address, host)]
    holders = rivals if is_taken and rivals else port.holders
    named = []
    for each in holders:
        who = "a process of another user or container"
        if each.pids:
            who = f"`{each.command or '?'}` (pid {each.pids[0]})"
        where = f"[{each.address}] (IPv6)" if ":" in each.address else f"{each.address} (IPv4)"
        named.append(f"{who} on {where}")
    listed = "; ".join(dict.fromkeys(named))
    # never process 1, which is the container or the machine
    pids = sorted({pid for each in holders for pid in each.pids})
    end = "kill " + " ".join(map(str, pids))
    if not pids or 1 in pids:
        end = f"sudo ss -ltnp 'sport = :{number}'"

    if port.is_loading:
        why = "by a server that does not listen yet, as vLLM while it loads: two servers would share the clients"
        return fail(code, f"{taken} {why}")
    if port.is_ending:
        why = "by connections of a server that is gone: the kernel lets go of them within a minute"
        return fail(code, f"{taken} {why}", "sleep 60")
    if is_taken and not holders:
        return fail(code, f"{taken}, and `/proc` does not show by whom", end)
    if is_taken:
        why = f"{taken} by {listed}: a server cannot start there, or takes only part of the clients"
        return fail(code, why, end)
    if port.refusal == "EACCES":
        why = f"port {number} is kept for root, as ports below 1,024 usually are"
        return fail(code, why, f"sudo sysctl -w net.ipv4.ip_unprivileged_port_start={number}")
    if port.refusal:
        return fail(code, f"`{host}` cannot be listened on with port {number}: {port.refusal}")
    if holders:
        why = f"port {number} is free there, but {listed} listens on it elsewhere"
        return warn(code, f"{why}: clients of `localhost` may reach that one", end)
    if not port.is_known:
        why = "who listens beside it is unknown: `/proc/net/tcp` cannot be read"
        return warn(code, f"port {number} can be bound; {why}")
    if reserve:
        why = f"port {number} is free, but the kernel may give it to an outgoing connection before the server starts"
        return warn(code, why, reserve)
    return ok(code, f"port {number} is free")


def _is_rival(address: str, host: str) -> bool:
    """Whether who listens there can be in the way; an IPv6 socket on all addresses usually takes IPv4's clients, too.

    That the port is taken is known from trying to bind it, without SO_REUSEPORT: vLLM sets that (launchers/launcher.py in
    0.32.0), so a second one starts without an error, and each of the two gets half of the clients.
    """
    try:
        own = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return True
    other = ip_address(address)
    if own.version == other.version:
        return own == other or own.is_unspecified or other.is_unspecified
    return any(each.is_unspecified and each.version == 6 for each in (own, other))
