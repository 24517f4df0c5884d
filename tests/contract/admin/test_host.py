"""The admin port answers to its own names alone: a page in a browser whose name was bent to this machine reads and does nothing."""

from pathlib import Path

from contract.harness.clients import Client, ask, request
from contract.harness.proxies import proxy
from contract.harness.servers import chat, server

PAGES = ["/metrics", "/health", "/ready", "/state", "/nothing"]
DEEDS = ["/purge", "/explain", "/drain", "/undrain"]
FOREIGN = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example",
    "localhost.evil.example:{port}",
    "evil-localhost",
    "10.0.0.4:{port}",
    "[::ffff:10.0.0.4]:{port}",
    "0x7f000001.example",
]
OWN = [
    "127.0.0.1:{port}",
    "127.0.0.1",
    "127.1.2.3",
    "localhost:{port}",
    "LOCALHOST",
    "[::1]:{port}",
]


def status(url: str, path: str, host: str) -> int:
    """Of a question to the admin's port by this Host."""
    method = "GET" if path in PAGES else "POST"
    body = {"all": True} if path == "/purge" else b""
    line = f"host: {host.format(port=url.rpartition(':')[2])}"
    return ask(url, body, path=path, method=method, headers=[line]).status


def test_only_its_own_names_are_answered(tmp_path: Path) -> None:
    with server({"*": chat()}) as upstream, proxy(upstream.url, cwd=tmp_path) as running:
        assert ask(running.url).status == 200
        refused = {(p, h): status(running.admin, p, h) for p in PAGES + DEEDS for h in FOREIGN}
        assert set(refused.values()) == {421}, refused
        told = ask(running.admin, b"", path="/state", method="GET", headers=["host: evil.example"])
        assert "evil.example" not in told.body.decode()
        # nothing was purged or drained by that
        assert ask(running.url).is_hit
        taken = {host: status(running.admin, "/metrics", host) for host in OWN}
        assert set(taken.values()) == {200}, taken
        # no browser leaves it out, and old probes do
        with Client(running.admin) as client:
            plain = request(b"", path="/health", method="GET")
            client.send(
                plain.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"host: localhost\r\n", b"")
            )
            assert client.reply().status == 200
        assert status(running.admin, "/purge", "localhost") == 200
        assert not ask(running.url).is_hit


def test_bound_to_every_address_it_answers_to_addresses_and_no_strange_name(tmp_path: Path) -> None:
    wide = 'admin_host = "0.0.0.0"\n'
    with server({"*": chat()}) as upstream, proxy(upstream.url, wide, cwd=tmp_path) as running:
        url = running.admin.replace("0.0.0.0", "127.0.0.1")
        for host in ["10.0.0.4:{port}", "[fd00::4]", "localhost", "127.0.0.1:{port}"]:
            assert status(url, "/metrics", host) == 200, host
        for host in ["evil.example", "evil.example:{port}", "10.0.0.4.evil.example"]:
            assert status(url, "/metrics", host) == 421, host
