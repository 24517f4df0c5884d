"""Turn what a connection threw into one sentence that a person can act on. No network.

Exceptions of httpx and of the resolver are known by their names, so that this file needs neither.
"""

import errno
import ssl

from toolkit.safe_text import printable

CLOSED = "closed without an answer"
INCOMPLETE = "not a complete HTTP answer"
RESET = "the connection was reset"
NO_HTTP = (CLOSED, INCOMPLETE, RESET)
"""How a server that speaks TLS refuses plain HTTP."""
OURS = {
    errno.EMFILE: "this machine is out of open files; raise `ulimit -n`",
    errno.ENFILE: "this machine is out of open files",
    errno.EADDRNOTAVAIL: "this machine is out of ports towards that address",
    errno.EAGAIN: "this machine is out of threads for name lookups",
}
"""Faults that are not the host's, though its request failed."""
REASONS = {
    errno.ECONNREFUSED: "connection refused: nothing listens there, or vLLM is still loading",
    errno.ECONNRESET: RESET,
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "the network is unreachable",
    errno.ETIMEDOUT: "the connection timed out",
    **OURS,
}
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""What OpenSSL 3 calls an answer that is no TLS, by its first bytes; most often it is plain HTTP."""
SILENT = "Server disconnected without sending a response."
"""httpcore's words."""


def problem_of(error: BaseException, path: str) -> str:
    """Say in one sentence why a page did not come."""
    # from the outermost exception to the first cause: httpx and anyio wrap thrice
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        cause = waiting.pop()
        if any(cause is other for other in seen):
            continue
        seen.append(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"TLS certificate not trusted ({cause.verify_message}); see `--ca` and `--insecure`"
            )
        if isinstance(cause, ssl.SSLError):
            return tls_problem(cause.reason)
        if type(cause).__name__ == "gaierror":
            return "the name does not resolve to an address"
        if isinstance(cause, OSError) and cause.errno in REASONS:
            return REASONS[cause.errno]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions
        waiting += [inner for inner in (cause.__cause__, cause.__context__) if inner is not None]

    said = str(error)
    if said == SILENT:
        return f"`{path}`: {CLOSED}"
    # among its words may be a part of a host's answer
    first_line = printable(said.splitlines()[0][:120]) if said else ""
    if type(error).__name__ == "RemoteProtocolError":
        return f"`{path}`: {INCOMPLETE} ({first_line})"
    return f"`{path}`: {first_line or type(error).__name__}"


def tls_problem(reason: str | None) -> str:
    """What OpenSSL calls a fault, in a sentence."""
    if reason in NO_TLS:
        return "the port does not speak TLS; write `http://` if it is a plain one"
    return f"TLS failed: {(reason or 'no reason given').lower().replace('_', ' ')}"
