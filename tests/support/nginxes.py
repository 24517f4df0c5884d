"""The real nginx with what `toolkit deploy nginx` renders, in a folder of the test's own, on ports that are free."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.deployed import text_of

from toolkit.deploy.nginx import kit
from toolkit.deploy.site import Site

MAIN = """
daemon off;
user root;
worker_processes 2;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/conf.d/*.conf;
}}
"""
"""As Debian's, in a folder of its own: what is deployed is included into `http`."""


@dataclass(frozen=True)
class Nginx:
    """One that runs."""

    port: int
    folder: Path

    @property
    def log(self) -> str:
        return "".join(each.read_text() for each in self.folder.glob("*.jsonl"))


def program() -> str:
    """Its file; without one the test is skipped, which fails a run in CI (tests/conftest.py)."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        pytest.skip("no nginx; apt-get install nginx")
    return found


def laid_out(folder: Path, text: str) -> list[str]:
    """Write a rendered file where nginx includes it, its logs into the same folder; the command that starts nginx so."""
    (folder / "conf.d").mkdir(parents=True)
    (folder / "conf.d" / "stack.conf").write_text(text.replace("/var/log/nginx/", f"{folder}/"))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    return [program(), "-p", str(folder), "-c", "nginx.conf", "-e", str(folder / "error.log")]


def checked(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What `nginx -t` says of a rendered file."""
    return subprocess.run(
        [*laid_out(folder, text), "-t"], capture_output=True, text=True, check=False
    )


@contextmanager
def serving(folder: Path, site: Site, changes: tuple[tuple[str, str], ...] = ()) -> Iterator[Nginx]:
    """Have nginx serve a site; clients' port is a free one, and `changes` are made in the text."""
    # nginx takes over a socket that listens already, so nobody has to wait for it
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        text, count = re.subn(
            r'listen "[^"]+";', f"listen 127.0.0.1:{port};", text_of(kit(site), ".conf")
        )
        assert count == 1, "one server is served here"
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        process = subprocess.Popen(
            laid_out(folder, text),
            env={**os.environ, "NGINX": f"{listener.fileno()};"},
            pass_fds=[listener.fileno()],
            stderr=subprocess.DEVNULL,
        )
    try:
        yield Nginx(port, folder)
        assert process.poll() is None, (folder / "error.log").read_text()
    finally:
        process.terminate()
        process.wait(30)
