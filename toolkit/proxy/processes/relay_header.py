"""What a worker tells the owner of a request that it hands on: whose it is, when it came, and what its headers said. Pure.

It is one header's value, so that no header of a client's stands beside one of ours, and each byte of theirs comes as it was. It is
read on the owner's private socket only.
"""

import base64
import binascii
from dataclasses import dataclass

import orjson

from toolkit.proxy.exchange import Headers
from toolkit.proxy.headers import OWN, TRACES

NAME = b"x-toolkit-relay"
TOLD = frozenset({b"content-type", b"cache-control", b"connection", OWN}) | TRACES
"""The client's headers that the owner reads; a key is none of them. `connection` names traces that are not to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """What can't be seen from the request's own line and body."""

    team: str | None
    """Its key was checked; None: no team has one."""
    arrived_s: float
    """Monotonic clock, which is one for all processes of a machine."""
    request_id: str
    headers: Headers
    peer: str = ""
    looks: bool = False
    """It is a hit that was drawn to be asked again."""


def header(relayed: Relayed) -> tuple[bytes, bytes]:
    """The header that tells it."""
    told = {
        "team": relayed.team,
        "arrived_s": relayed.arrived_s,
        "id": relayed.request_id,
        "headers": [
            [name.decode("latin-1"), value.decode("latin-1")]
            for name, value in relayed.headers
            if name in TOLD
        ],
        "peer": relayed.peer,
        "looks": relayed.looks,
    }
    return NAME, base64.b64encode(orjson.dumps(told))


def read(value: bytes | None) -> Relayed | None:
    """The same from the header's value; None: there is none, or it is no such thing."""
    if value is None:
        return None
    try:
        told = orjson.loads(base64.b64decode(value, validate=True))
        return Relayed(
            team=told["team"],
            arrived_s=told["arrived_s"],
            request_id=told["id"],
            headers=[
                (name.encode("latin-1"), text.encode("latin-1")) for name, text in told["headers"]
            ],
            peer=told["peer"],
            looks=told["looks"],
        )
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
