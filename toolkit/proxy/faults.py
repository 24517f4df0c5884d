"""What can go wrong with a call upstream: a fixed list of kinds, and the status that a client gets for each.

A kind is a metric's label, so there is none but these. It reads no exception and writes no answer.
"""

from dataclasses import dataclass
from typing import Final, Literal

FaultKind = Literal[
    "connect",
    "tls",
    "cut",
    "garbage",
    "busy",
    "stuck",
    "no_upstream",
    "timeout_connect",
    "timeout_first_token",
    "timeout_gap",
    "timeout_whole",
    "draining",
    "ours",
]

FAULTS: Final[dict[FaultKind, tuple[int, str]]] = {
    # kind: (status while nothing was sent yet, what it is)
    "connect": (502, "no connection to the upstream"),
    "tls": (502, "a connection without the TLS that was asked for"),
    "cut": (502, "the upstream's connection ended before the answer did"),
    "garbage": (502, "what came is no HTTP"),
    "busy": (503, "the upstream is busy"),
    "stuck": (504, "the upstream stands still"),
    "no_upstream": (503, "no upstream can be asked"),
    "timeout_connect": (504, "no connection to the upstream in time"),
    "timeout_first_token": (504, "the first token did not come in time"),
    "timeout_gap": (504, "the answer stood still for too long"),
    "timeout_whole": (504, "the whole answer took too long"),
    "draining": (503, "the proxy is shutting down"),
    "ours": (500, "a fault of the proxy's own, or of its machine"),
}
"""Each kind of a call's error. What an upstream answers by itself, a 500 too, is its answer and no error of the call."""

TRIES_ANOTHER: Final = frozenset(
    {"connect", "tls", "cut", "garbage", "busy", "stuck", "timeout_connect"}
)
"""Faults before the first byte after which another upstream is asked. Not a
deadline of ours: the client's time is used up,
and a prompt that one engine can't digest would be handed round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a call upstream ended without its whole answer."""

    kind: FaultKind
    message: str
    """One sentence for the client: it names no address."""

    @property
    def status(self) -> int:
        """What a client gets to whom nothing was sent yet."""
        return FAULTS[self.kind][0]
