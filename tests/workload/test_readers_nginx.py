"""The real nginx in front of a small upstream writes the log that the documentation asks for; it is read back."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.nginxes import program

from toolkit.protocol.request import asked
from toolkit.workload import read, readers

CHAT = "/v1/chat/completions"

CONFIG = """
daemon off;
user root;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{}}
http {{
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 10m;
    {logging}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
"""


class Upstream(BaseHTTPRequestHandler):
    """Answers everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Not onto the test's screen."""


def logging_lines(folder: Path) -> str:
    """The lines that the documentation gives, with the file elsewhere."""
    lines = (readers.__doc__ or "").partition("    log_format")
    told = lines[1] + lines[2].partition("\n\n")[0]
    return re.sub(r"/var/log/nginx/\S+", f"{folder}/requests.jsonl", told)


@pytest.fixture
def upstream() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def served(folder: Path, upstream: int, requests: list[tuple[str, str, bytes | None]]) -> Path:
    """Have nginx serve requests, end it, and name its log."""
    nginx = program()
    # nginx takes over a socket that listens already, so nobody has to wait for it
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        text = CONFIG.format(
            folder=folder, port=port, upstream=upstream, logging=logging_lines(folder)
        )
        (folder / "nginx.conf").write_text(text)
        process = subprocess.Popen(
            [nginx, "-p", str(folder), "-c", "nginx.conf", "-e", str(folder / "error.log")],
            env={**os.environ, "NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stderr=subprocess.DEVNULL,
        )
    try:
        client = HTTPConnection("127.0.0.1", port, timeout=30)
        for method, path, body in requests:
            client.request(method, path, body)
            assert client.getresponse().read() == b"{}"
        client.close()
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(30)
    return folder / "requests.jsonl"


def test_bodies_come_through_nginx_and_its_log_byte_for_byte(tmp_path, upstream):
    bodies = [
        b'{"model":"tiny","messages":[{"role":"user","content":"Say \\"a\\\\b\\" \xe6\x97\xa5\\ud800"}]}',
        b'{"prompt": "' + bytes(range(1, 256)).replace(b"\n", b"\r\n") + b'"}',
        b'{"prompt": "' + b"long " * 100_000 + b'"}',
    ]
    began = time.time()
    requests = [("POST", f"{CHAT}?key=1", body) for body in bodies]
    log = served(tmp_path, upstream, [*requests, ("GET", "/metrics", None)])
    ended = time.time()
    with log.open("rb") as lines:
        found = read(lines, "requests.jsonl", client=lambda address: f"<{address}>")
        rows = list(found.seen)
    assert (found.kind, found.identities, found.notes) == ("nginx", "bodies", [])
    assert [one.asked for one in rows] == [*(asked(body, path=CHAT) for body in bodies), None]
    assert [(one.method, one.path, one.status) for one in rows] == [
        *[("POST", CHAT, 200)] * 3,
        ("GET", "/metrics", 200),
    ]
    assert {one.client for one in rows} == {"<127.0.0.1>"}
    # nginx's clock has ticks of a millisecond
    assert all(began - 0.1 <= one.ts <= ended for one in rows)
    assert all(0 <= one.latency_ms <= (ended - began) * 1e3 + 100 for one in rows)


def test_a_body_that_nginx_wrote_to_a_file_is_told(tmp_path, upstream):
    large = b'{"prompt": "' + b"x" * 1_500_000 + b'"}'
    small = b'{"prompt": "Hi"}'
    log = served(tmp_path, upstream, [("POST", CHAT, large), ("POST", CHAT, small)])
    with log.open("rb") as lines:
        found = read(lines, "requests.jsonl", client=str)
        first, second = found.seen
    assert second.asked == asked(small, path=CHAT)
    assert first.asked.prompt_chars is None
    assert [note[:9] for note in found.notes] == ["1 request"]
