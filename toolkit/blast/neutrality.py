"""Is a host of the list on the very machine that loads it? Pure: addresses in, a judgement out; it looks nothing up.

A load generator takes CPU from a server beside it and spares that server the network, so such a run ranks nobody.
A tunnel or a forwarded port ends on a loopback address, too, and its load goes through this machine twice.
"""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NAMED = 3
"""Of more hosts than these only the first are named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRoute:
    """One address of a host, and the one of this machine that packets to it leave from."""

    address: str
    source: str | None = None
    """None: there is no way to it, or nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastTarget:
    """Where requests to one host of the list would go."""

    name: str
    hostname: str
    """As the URL spells it, without brackets."""
    routes: tuple[LocalRoute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A host that is on this machine, and how one can tell."""

    name: str
    place: str
    """Its address, else its name."""


def neighbours(targets: Sequence[BlastTarget], own_names: Collection[str] = ()) -> list[Neighbour]:
    """The hosts that are on this machine; `own_names` are the machine's own."""
    own = {name.lower() for name in own_names}
    found = ((target, _place(target, own)) for target in targets)
    return [Neighbour(name=target.name, place=place) for target, place in found if place]


def sentence(found: Sequence[Neighbour]) -> str:
    """Say who is on this machine: `a (127.0.0.1), b (...) and 5 more are on this machine`."""
    words = [f"`{one.name}` ({one.place})" for one in found[:NAMED]]
    if len(found) > NAMED:
        words.append(f"{len(found) - NAMED} more")
    listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"{listed} {'is' if len(found) == 1 else 'are'} on this machine"


def _place(target: BlastTarget, own_names: Collection[str]) -> str | None:
    for route in target.routes:
        if _is_here(route):
            return route.address
    name = target.hostname.lower().rstrip(".")
    # RFC 6761: every name below `localhost` is a loopback address, whatever a resolver says
    if name in own_names or name == "localhost" or name.endswith(".localhost"):
        return target.hostname
    return target.hostname if _is_here(LocalRoute(address=name)) else None


def _is_here(route: LocalRoute) -> bool:
    """Loopback, `0.0.0.0` (which Linux takes for loopback), or an address that a packet to it would bear itself."""
    address = _address(route.address)
    if address is None:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    return route.source is not None and _address(route.source) == address


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:  # a name
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
