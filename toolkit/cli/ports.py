"""Ports of this machine: which is free, and why nobody can listen at another; asked before anything starts that would need it."""

import errno
import socket

TAKEN = "somebody does already"
NOT_ALLOWED = "ports below 1024 are not for everybody"


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def why_taken(host: str, port: int) -> str | None:
    """Why nobody can listen there any more; None: one can. A port of connections that were just closed is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except UnicodeError:
        return "that is no address"
    except OSError as error:
        words = {errno.EADDRINUSE: TAKEN, errno.EACCES: NOT_ALLOWED}
        return words.get(error.errno or 0, (error.strerror or "no reason given").lower())
    return None
