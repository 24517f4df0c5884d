"""Whether a port that gave plain HTTP no answer, or a refusal, speaks TLS. It touches the network: one handshake."""

import contextlib
import socket
import ssl
from urllib.parse import urlsplit

PROBE_S = 2.0
WANTS_TLS = "wants TLS; write `https://` before the address"


def refuses_plain_http(status: int | None, body: bytes) -> bool:
    """Whether it is the answer of nginx or Go to plain HTTP on a port of theirs that speaks TLS."""
    return status == 400 and b"HTTPS" in body


def speaks_tls(url: str) -> bool:
    """Whether the port of an `http://` URL completes a TLS handshake, whatever its certificate; nothing is sent over it."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError, ValueError):
        address = parts.hostname, parts.port or 80
        with (
            socket.create_connection(address, PROBE_S) as sock,
            context.wrap_socket(sock, server_hostname=parts.hostname),
        ):
            return True
    return False
