"""Rules over ports, and over the kernel's settings for many connections. Facts in, checks out. Pure."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from toolkit.serving.fit.facts import Facts, Holder, Port
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check, as_root, bad, doubtful, good

EPHEMERAL_LEAST = 4_096
EPHEMERAL_RANGE = (16_384, 65_535)
"""Above the usual servers' ports."""
LONGEST_COMMAND = 60


def checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """The ports first, then what many clients run into."""
    for port in facts.ports:
        yield port_check(port, needs, facts)
    yield _ephemeral(facts, needs)
    yield _reuse(facts)
    yield from _backlogs(facts, needs)


def port_check(port: Port, needs: Needs, facts: Facts) -> Check:
    """Whether a server can listen there, and whether clients would reach it and no other."""
    code, number = f"port_{port.number}", port.number
    if port.refusal == "EADDRINUSE":
        return _taken(code, port, needs.host)
    if port.refusal == "EACCES":
        why = f"port {number} is kept for root: ports below 1,024 usually are"
        return bad(code, why, f"sudo sysctl -w net.ipv4.ip_unprivileged_port_start={number}")
    if port.refusal:
        return bad(code, f"`{needs.host}` cannot be listened on with port {number}: {port.refusal}")
    if port.holders:
        return _beside(code, port)
    if port.error:
        return doubtful(
            code, f"port {number} can be bound; who listens beside it is unknown: {port.error}"
        )
    if _may_be_lent(port, facts):
        why = f"port {number} is free, but the kernel may give it to an outgoing connection before the server starts"
        return doubtful(code, why, _reserve(port, facts))
    return good(code, f"port {number} is free")


def _is_rival(holder: Holder, host: str) -> bool:
    """Whether it can be the one that is in the way; an IPv6 socket on all addresses usually takes IPv4's clients, too.

    That the port is taken is known from trying to bind it, without SO_REUSEPORT: vLLM sets SO_REUSEPORT (launchers/launcher.py in 0.32.0): a second one starts without an error, and each of the two gets half
    of the clients.
    """
    own, other = _plain(host), _plain(holder.address)
    if own is None or other is None:
        return True
    if own.version == other.version:
        return own == other or own.is_unspecified or other.is_unspecified
    return (own.is_unspecified and own.version == 6) or (
        other.is_unspecified and other.version == 6
    )


def _plain(word: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address("127.0.0.1" if word == "localhost" else word)
    except ValueError:
        return None


def _taken(code: str, port: Port, host: str) -> Check:
    start = f"port {port.number} is taken"
    if port.bound_only:
        why = f"{start} by a server that does not listen yet, as vLLM while it loads: two servers would share the clients"
        return bad(code, why, None)
    if port.ending:
        why = f"{start} by connections of a server that is gone: the kernel lets go of them within a minute"
        return bad(code, why, "sleep 60")
    holders = [each for each in port.holders if _is_rival(each, host)] or list(port.holders)
    if not holders:
        return bad(code, f"{start}, and `/proc` does not show by whom", _who(port.number))
    told = "; ".join(dict.fromkeys(_told(each) for each in holders))
    why = f"{start} by {told}: a server cannot start there, or takes only part of the clients"
    return bad(code, why, _end(holders, port.number))


def _beside(code: str, port: Port) -> Check:
    told = "; ".join(dict.fromkeys(_told(each) for each in port.holders))
    why = f"port {port.number} is free there, but {told} listens on it elsewhere: clients of `localhost` may reach that one"
    return doubtful(code, why, _end(list(port.holders), port.number))


def _told(holder: Holder) -> str:
    where = f"[{holder.address}]" if ":" in holder.address else holder.address
    if not holder.pids:
        return f"a process of another user or container on {where} ({holder.family})"
    command = holder.command or "?"
    short = (
        command
        if len(command) <= LONGEST_COMMAND
        else command[: LONGEST_COMMAND - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )
    return f"`{short}` (pid {holder.pids[0]}) on {where} ({holder.family})"


def _end(holders: list[Holder], number: int) -> str:
    """End them; never process 1, which is the container or the machine."""
    pids = sorted({pid for each in holders for pid in each.pids})
    if not pids or 1 in pids:
        return _who(number)
    return "kill " + " ".join(map(str, pids))


def _who(number: int) -> str:
    return f"sudo ss -ltnp 'sport = :{number}'"


def _reserve(port: Port, facts: Facts) -> str:
    """The kernel's list is written whole: what stands there stays, and all wanted ports come at once."""
    lent = [str(each.number) for each in facts.ports if _may_be_lent(each, facts)]
    words = [facts.network.reserved, *(lent or [str(port.number)])]
    ports = ",".join(word for word in words if word)
    return as_root(f"sysctl -w net.ipv4.ip_local_reserved_ports={ports}", root=facts.root)


def _may_be_lent(port: Port, facts: Facts) -> bool:
    low, high = facts.network.ephemeral_low, facts.network.ephemeral_high
    return low is not None and high is not None and low <= port.number <= high and not port.reserved


def _ephemeral(facts: Facts, needs: Needs) -> Check:
    """Each connection that the proxy opens, or a load generator on this machine, takes a port for its life and a minute."""
    code, low, high = "ephemeral_ports", facts.network.ephemeral_low, facts.network.ephemeral_high
    if low is None or high is None:
        return doubtful(code, "unknown: the range of ports for outgoing connections cannot be read")
    count, most = high - low + 1, EPHEMERAL_RANGE[1] - EPHEMERAL_RANGE[0] + 1
    wanted = min(most, max(EPHEMERAL_LEAST, 16 * needs.users))
    told = f"{count:,} ports for outgoing connections ({low} to {high})"
    if count >= wanted:
        return good(code, told)
    why = f"{told}: each stays taken for a minute after its connection, and {needs.users:,} users soon find none"
    wide = "{} {}".format(*EPHEMERAL_RANGE)
    fix = as_root(f'sysctl -w net.ipv4.ip_local_port_range="{wide}"', root=facts.root)
    return (bad if count <= needs.users else doubtful)(code, why, fix)


def _reuse(facts: Facts) -> Check:
    value = facts.network.tw_reuse
    if value is None:
        return doubtful("tcp_tw_reuse", "unknown: `net.ipv4.tcp_tw_reuse` cannot be read")
    if value:
        where = "on this machine" if value == 2 else "everywhere"
        return good("tcp_tw_reuse", f"ports of ended connections are used again {where}")
    return doubtful(
        "tcp_tw_reuse",
        "ports of ended connections stay unused for a minute: a proxy runs out of them under short requests",
        as_root("sysctl -w net.ipv4.tcp_tw_reuse=1", root=facts.root),
    )


def _backlogs(facts: Facts, needs: Needs) -> Iterator[Check]:
    """How many clients may knock at the same moment."""
    for code, name, value in (
        ("somaxconn", "net.core.somaxconn", facts.network.somaxconn),
        ("tcp_max_syn_backlog", "net.ipv4.tcp_max_syn_backlog", facts.network.syn_backlog),
    ):
        if value is None:
            yield doubtful(code, f"unknown: `{name}` cannot be read")
        elif value >= needs.users:
            yield good(code, f"{value:,} clients may knock at once; {needs.users:,} are expected")
        else:
            why = f"{value:,} clients may knock at once, and {needs.users:,} are expected: the rest wait seconds for a second try"
            fix = as_root(f"sysctl -w {name}={max(4096, needs.users)}", root=facts.root)
            yield doubtful(code, why, fix)
