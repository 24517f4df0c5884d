"""Requests that two readers could understand in two ways, each with the status that must answer it."""

_HOST = b"Host: a\r\n"
_SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def _post(
    lines: bytes, body: bytes = b"", *, version: bytes = b"1.1", host: bytes = _HOST
) -> bytes:
    return b"POST /v1/chat/completions HTTP/" + version + b"\r\n" + host + lines + b"\r\n" + body


_CHUNKED = b"Transfer-Encoding: chunked\r\n"

SIXTEEN: dict[str, tuple[bytes, int]] = {
    # what httptools refuses by itself
    "both lengths": (_post(b"Content-Length: 5\r\n" + _CHUNKED, b"0\r\n\r\n" + _SMUGGLED), 400),
    "both lengths, other order": (_post(_CHUNKED + b"Content-Length: 5\r\n", b"0\r\n\r\n"), 400),
    "two equal lengths": (_post(b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"), 400),
    "two unequal lengths": (
        _post(b"Content-Length: 2\r\nContent-Length: 39\r\n", b"{}" + _SMUGGLED),
        400,
    ),
    "list of lengths": (_post(b"Content-Length: 2, 2\r\n", b"{}"), 400),
    "signed length": (_post(b"Content-Length: +2\r\n", b"{}"), 400),
    "odd coding": (_post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), 400),
    "two codings": (_post(_CHUNKED + _CHUNKED, b"0\r\n\r\n"), 400),
    "blank before colon": (_post(b"Content-Length : 2\r\n", b"{}"), 400),
    "folded line": (_post(b"X: y\r\n z\r\nContent-Length: 2\r\n", b"{}"), 400),
    "bare line feed": (_post(b"X: y\nContent-Length: 2\r\n", b"{}"), 400),
    "bare return": (_post(b"X: y\rContent-Length: 2\r\n", b"{}"), 400),
    "zero byte": (_post(b"X: y\0z\r\nContent-Length: 2\r\n", b"{}"), 400),
    "line feed in an extension": (_post(_CHUNKED, b"2;a\nb\r\n{}\r\n0\r\n\r\n"), 400),
    "chunk without its end": (_post(_CHUNKED, b"2\r\n{}XX0\r\n\r\n"), 400),
    "chunk of too many digits": (_post(_CHUNKED, b"10000000000000002\r\n{}\r\n0\r\n\r\n"), 400),
}

FOUR: dict[str, tuple[bytes, int]] = {
    # what it lets pass
    "HTTP/1.0 in chunks": (_post(_CHUNKED, b"0\r\n\r\n" + _SMUGGLED, version=b"1.0"), 400),
    "no host": (_post(b"Content-Length: 2\r\n", b"{}", host=b""), 400),
    "two hosts": (_post(b"Content-Length: 2\r\n", b"{}", host=_HOST + b"Host: b\r\n"), 400),
    "a megabyte of header": (
        _post(b"X: " + b"y" * 2**20 + b"\r\nContent-Length: 2\r\n", b"{}"),
        431,
    ),
}

MORE: dict[str, tuple[bytes, int]] = {
    "no version": (b"GET /\r\n\r\n", 400),
    "two blanks": (b"GET  / HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "tab for a blank": (b"GET\t/ HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "version 0.9": (b"GET / HTTP/0.9\r\n" + _HOST + b"\r\n", 505),
    "version 1.2": (b"GET / HTTP/1.2\r\n" + _HOST + b"\r\n", 505),
    "version 2.0": (b"GET / HTTP/2.0\r\n" + _HOST + b"\r\n", 505),
    "HTTP/2's first words": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "another protocol": (b"GET / RTSP/1.0\r\n" + _HOST + b"\r\n", 400),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32, 400),
    "unknown method": (b"BREW / HTTP/1.1\r\n" + _HOST + b"\r\n", 501),
    "method in lower case": (b"post / HTTP/1.1\r\n" + _HOST + b"\r\n", 501),
    "a tunnel": (b"CONNECT a:80 HTTP/1.1\r\n" + _HOST + b"\r\n", 501),
    "full address": (b"GET http://b/ HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "a star": (b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "a fragment": (b"GET /a#b HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "no slash first": (b"GET v1/models HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "other letters in the target": ("GET /ä HTTP/1.1\r\n".encode() + _HOST + b"\r\n", 400),
    "a long target": (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n" + _HOST + b"\r\n", 414),
    "host of two": (_post(b"", host=b"Host: a, b\r\n"), 400),
    "host with a path": (_post(b"", host=b"Host: a/b\r\n"), 400),
    "negative length": (_post(b"Content-Length: -1\r\n"), 400),
    "length in hexadecimal": (_post(b"Content-Length: 0x2\r\n", b"{}"), 400),
    "length of nothing": (_post(b"Content-Length:\r\n"), 400),
    "length beyond 64 bits": (_post(b"Content-Length: 18446744073709551618\r\n", b"{}"), 400),
    "length of other digits": (_post("Content-Length: ²\r\n".encode(), b"{}"), 400),
    "compressed, then chunked": (_post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501),
    "chunked, then not": (_post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"), 400),
    "identity coding": (_post(b"Transfer-Encoding: identity\r\n", b"{}"), 400),
    "coding behind a tab": (_post(b"Transfer-Encoding:\tchunked, a\r\n", b"0\r\n\r\n"), 400),
    "coding with a vertical tab": (_post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n"), 400),
    "compressed body": (_post(b"Content-Encoding: gzip\r\nContent-Length: 2\r\n", b"{}"), 415),
    "two keys": (_post(b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n"), 400),
    "two types": (_post(b"Content-Type: a/b\r\nContent-Type: c/d\r\n"), 400),
    "another protocol wanted": (_post(b"Connection: upgrade\r\nUpgrade: websocket\r\n"), 501),
    "an odd expectation": (_post(b"Expect: miracles\r\n"), 417),
    "a line without a colon": (_post(b"X\r\n"), 400),
    "a header without a name": (_post(b": y\r\n"), 400),
    "a name of other letters": (_post("Ü: y\r\n".encode()), 400),
    "first header line indented": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "escape in a value": (_post(b"X: \x1b[31m\r\n"), 400),
    "delete in a value": (_post(b"X: \x7f\r\n"), 400),
    "two empty lines first": (b"\r\n\r\nGET / HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "empty line feed first": (b"\nGET / HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "blank first": (b" GET / HTTP/1.1\r\n" + _HOST + b"\r\n", 400),
    "line feeds only": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "101 headers": (_post(b"".join(b"X-%d: y\r\n" % number for number in range(100))), 431),
    "no chunk size": (_post(_CHUNKED, b"\r\n{}\r\n0\r\n\r\n"), 400),
    "chunk size of other digits": (_post(_CHUNKED, b"0x2\r\n{}\r\n0\r\n\r\n"), 400),
    "negative chunk size": (_post(_CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"), 400),
    "blank before a chunk size": (_post(_CHUNKED, b" 2\r\n{}\r\n0\r\n\r\n"), 400),
    "chunk size ended by a line feed": (_post(_CHUNKED, b"2\n{}\r\n0\r\n\r\n"), 400),
    "chunk ended by a line feed": (_post(_CHUNKED, b"2\r\n{}\n0\r\n\r\n"), 400),
    "return in an extension": (_post(_CHUNKED, b"2;a\rb\r\n{}\r\n0\r\n\r\n"), 400),
    "endless extension": (_post(_CHUNKED, b"2;" + b"a" * 300 + b"\r\n{}\r\n0\r\n\r\n"), 400),
    "folded trailer": (_post(_CHUNKED, b"0\r\nX: y\r\n z\r\n\r\n"), 400),
    "trailer ended by a line feed": (_post(_CHUNKED, b"0\r\nX: y\n\r\n"), 400),
    "endless trailers": (_post(_CHUNKED, b"0\r\n" + b"X: y\r\n" * 2000 + b"\r\n"), 431),
    "crumbs": (_post(_CHUNKED, b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"), 400),
}

ALL = {**SIXTEEN, **FOUR, **MORE}
