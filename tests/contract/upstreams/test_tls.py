"""An engine behind TLS: asked where its certificate is good, and else told of in words that name no address; so is one that speaks no TLS."""

import datetime as dt
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import trustme
from contract.harness.clients import BODY, ask, get
from contract.harness.proxies import proxy
from contract.harness.servers import chat, server

NO_TLS = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
SETTINGS = "[cache]\npolicy = 'off'\n[routing]\nretries = 0\n"
UNTRUSTED = ("tls", 502, "the upstream's certificate is not trusted")
NO_HANDSHAKE = ("tls", 502, "TLS with the upstream failed")
TOLD = {
    # upstream -> the error's kind as counted, the status and the words that a client gets
    "another-name": UNTRUSTED,
    "expired": UNTRUSTED,
    "self-signed": UNTRUSTED,
    "plain": NO_HANDSHAKE,
    "noise": NO_HANDSHAKE,
    # in the system's own words, or as TLS has it: who hears first is chance
    "hangs-up": ("connect tls", 502, "(connection reset by peer|at none of its addresses|TLS with the upstream failed)"),
    "tls-unasked": ("garbage cut", 502, "(what came is no HTTP|the upstream closed the connection without an answer)"),
}  # fmt: skip


def certified(by: trustme.CA, name: str, *, days: int = 30) -> ssl.SSLContext:
    """A server's, by this authority for this name, good until so many days from now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    now = dt.datetime.now(dt.UTC)
    begun, over = now - dt.timedelta(60), now + dt.timedelta(days)
    by.issue_cert(name, not_before=begun, not_after=over).configure_cert(context)
    return context


@contextmanager
def blurting(data: bytes) -> Iterator[str]:
    """Says this to whoever comes, whatever that one says, and hangs up; its URL, as one of TLS."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    if data:
                        # or the reset for what was not read would overtake the answer
                        connection.recv(65536)
                        connection.sendall(data)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()


def test_a_certificate_that_is_wrong_or_no_tls_is_told_by_kind_and_names_no_address(
    tmp_path: Path,
) -> None:
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with ExitStack() as stack:

        def engine(tls: ssl.SSLContext) -> str:
            return stack.enter_context(server({"*": chat()}, tls=tls)).url

        urls = {
            "well": engine(certified(ours, "127.0.0.1")),
            "another-name": engine(certified(ours, "engine.example")),
            "expired": engine(certified(ours, "127.0.0.1", days=-30)),
            "self-signed": engine(certified(others, "127.0.0.1")),
            "plain": stack.enter_context(blurting(NO_TLS)),
            "noise": stack.enter_context(blurting(os.urandom(2000).replace(b"\x16", b"\0"))),
            "hangs-up": stack.enter_context(blurting(b"")),
            "tls-unasked": engine(certified(ours, "127.0.0.1")).replace("https", "http"),
        }
        upstreams = "".join(
            f'[[upstream]]\nname = "{name}"\nurl = "{url}"\nprobes = false\n'
            for name, url in urls.items()
        )
        env = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        # `proxy` writes an upstream of its own before these: nobody is there, and it is drained as all but one are
        door = stack.enter_context(
            proxy("http://127.0.0.1:9", upstreams + SETTINGS, cwd=tmp_path, env=env)
        )
        for name in ("u0", *urls):
            assert ask(door.admin, {"upstream": name}, path="/drain").status == 200

        def errors() -> dict[str, float]:
            family = "toolkit_proxy_errors_total{"
            samples = {n: v for n, v in door.metrics().items() if n.startswith(family)}
            return {re.search(r'kind="(\w+)"', n)[1]: v for n, v in samples.items()}  # type: ignore[index]

        wrong = []
        for name, url in urls.items():
            ask(door.admin, {"upstream": name}, path="/undrain")
            before = errors()
            plain, streamed = ask(door.url), ask(door.url, BODY | {"stream": True})
            after = errors()
            ask(door.admin, {"upstream": name}, path="/drain")
            if name == "well":
                assert (plain.status, plain.text) == (200, "Hello there")
                assert after == before
                continue
            kinds, status, words = TOLD[name]
            grown = {kind: count - before.get(kind, 0) for kind, count in after.items()}
            grown = {kind: count for kind, count in grown.items() if count}
            good = sum(grown.values()) == 2 and grown.keys() <= set(kinds.split())
            for reply in (plain, streamed):
                # but the request's id, of chance digits
                shown = {n: told for n, told in reply.headers.items() if n != "x-request-id"}
                said = json.dumps(shown) + reply.body.decode()
                good = good and reply.status == status and bool(re.search(words, said))
                good = good and reply.json["error"]["message"].count("\n") == 0
                for address in ("127.0.0.1", url.rpartition(":")[2], "_ssl", "SSL:", ".py"):
                    good = good and address not in said
            if not good:
                wrong.append((name, grown, plain, streamed.body))
        assert wrong == []
        # what is wrong with one costs no other: the good one is asked as before
        ask(door.admin, {"upstream": "well"}, path="/undrain")
        assert ask(door.url).text == "Hello there"
        assert get(door.admin, "/ready").status == 200
