"""The real nginx in front of a small upstream writes the log that the documentation asks for; it is read back."""

import os
import re
import signal
import socket
import subprocess
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


def served(folder: Path, requests: list[tuple[str, str, bytes | None]]) -> Path:
    """Have nginx serve requests, end it, and name its log."""
    # the lines that the documentation gives, with the file elsewhere
    lines = (readers.__doc__ or "").partition("    log_format")
    logging = lines[1] + lines[2].partition("\n\n")[0]
    logging = re.sub(r"/var/log/nginx/\S+", f"{folder}/requests.jsonl", logging)
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    nginx = program()
    # nginx takes over a socket that listens already, so nobody has to wait for it
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (folder / "nginx.conf").write_text(
            CONFIG.format(folder=folder, port=port, upstream=upstream.server_port, logging=logging)
        )
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
        upstream.shutdown()
        thread.join()
        upstream.server_close()
    return folder / "requests.jsonl"


def test_bodies_come_through_nginx_and_its_log_byte_for_byte(tmp_path: Path) -> None:
    bodies = [
        b'{"model":"tiny","messages":[{"role":"user","content":"Say \\"a\\\\b\\" \xe6\x97\xa5\\ud800"}]}',
        b'{"prompt": "' + bytes(range(1, 256)).replace(b"\n", b"\r\n") + b'"}',
        b'{"prompt": "' + b"long " * 100_000 + b'"}',
    ]
    # nginx writes it to a file, and so it is not in the log
    large = b'{"prompt": "' + b"x" * 1_500_000 + b'"}'
    began = time.time()
    posts = [("POST", f"{CHAT}?key=1", body) for body in (*bodies, large)]
    log = served(tmp_path, [*posts, ("GET", "/metrics", None)])
    ended = time.time()
    with log.open("rb") as lines:
        found = read(lines, "requests.jsonl", client="<{}>".format)
        *rows, unkept, page = found.seen
    assert (found.kind, found.identities) == ("nginx", "bodies")
    assert [note[:9] for note in found.notes] == ["1 request"]
    assert [one.asked for one in rows] == [asked(body, path=CHAT) for body in bodies]
    assert (unkept.asked.prompt_chars, page.asked, page.path) == (None, None, "/metrics")
    for one in (*rows, unkept):
        assert (one.method, one.path, one.status, one.client) == ("POST", CHAT, 200, "<127.0.0.1>")
        # nginx's clock has ticks of a millisecond
        assert began - 0.1 <= one.ts <= ended
        assert 0 <= one.latency_ms <= (ended - began) * 1e3 + 100
