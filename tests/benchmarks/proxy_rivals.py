"""What `toolkit proxy` is measured against: nginx's proxy_cache, a plain aiohttp cache, LiteLLM; and how CPU is read.

Each is started on a free port of 127.0.0.1 in front of one upstream, pinned to one core, and stopped at the end.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent.parent
SERVER_CORE, CLIENT_CORE = 0, (os.cpu_count() or 1) - 1
KEY = "sk-benchmark-0123456789"
STARTED_S = 60

NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  log_format requests escape=json '{{"ts":$msec,"request_id":"$request_id","client":"$remote_addr",'
    '"path":"$request_uri","status":$status,"bytes":$body_bytes_sent,"took_s":$request_time,'
    '"cache":"$upstream_cache_status","body_bytes":"$content_length"}}';
  access_log {folder}/access.log requests buffer=64k flush=1s;
  client_body_buffer_size 1m;
  client_body_in_single_buffer on;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/temp;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=answers:64m max_size=1g inactive=2h use_temp_path=off;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location /v1/ {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      {way}
      add_header X-Cache $upstream_cache_status;
      add_header X-Request-Id $request_id;
    }}
  }}
}}
"""

CACHES = """
      proxy_cache answers;
      proxy_cache_methods GET HEAD POST;
      proxy_cache_key "$request_uri $http_authorization $request_body";
      proxy_cache_valid 200 1h;
      proxy_cache_lock on;
      proxy_cache_lock_timeout 600s;
      proxy_cache_lock_age 600s;
"""
PASSES = "proxy_buffering off;"
"""Caches nothing, so that a stream's events go on as they come."""

PLAIN = '''
"""A response cache as one writes it first: a hash of the body, a dict, aiohttp and uvloop."""
import hashlib, sys
import aiohttp, uvloop
from aiohttp import web

known = {}

async def answer(request):
    body = await request.read()
    key = hashlib.sha256(body).hexdigest()
    found = known.get(key)
    if found is None:
        async with request.app["session"].post(sys.argv[2] + request.path, data=body,
                headers={"content-type": "application/json"}) as response:
            found = known[key] = (await response.read(), response.content_type)
    return web.Response(body=found[0], content_type=found[1])

async def made():
    app = web.Application(client_max_size=2**25)
    app.router.add_post("/v1/chat/completions", answer)
    async def opened(app):
        app["session"] = aiohttp.ClientSession()
        yield
        await app["session"].close()
    app.cleanup_ctx.append(opened)
    return app

uvloop.install()
web.run_app(made(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
'''

LITELLM = """
model_list:
  - model_name: tiny
    litellm_params: {{model: hosted_vllm/tiny, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
litellm_settings:
  cache: true
  cache_params: {{type: local}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@dataclass(frozen=True)
class Server:
    """One that runs."""

    name: str
    port: int
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds of it and its children so far, to the nanosecond."""
        return sum(_ran_s(pid) for pid in _family(self.pid))

    def memory_bytes(self) -> int:
        """Proportional set size of it and its children."""
        total = 0
        for pid in _family(self.pid):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total


def _family(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def _ran_s(pid: int) -> float:
    return sum(
        int(stat.read_text().split()[0]) / 1e9
        for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


@contextmanager
def started(name: str, port: int, command: Sequence[str], **more: object) -> Iterator[Server]:
    """Run a server on the server's core until it listens; end it at the end."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), *command],
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            **more,  # type: ignore[call-overload]
        )
        try:
            _wait_for(port, process, said)
            yield Server(name, port, process.pid)
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(port: int, process: subprocess.Popen, said: IO[bytes]) -> None:
    give_up = time.monotonic() + STARTED_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            said.seek(0)
            raise ChildProcessError(f"{process.args} ended:\n{said.read()[-2000:].decode()}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(process.args)


@contextmanager
def nginx(upstream: int, way: str = CACHES) -> Iterator[Server]:
    """proxy_cache with the body and Authorization in the key, a buffered JSON log, its files on tmpfs, one worker."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    # its worker gives up root's rights, and must reach its own files
    folder.chmod(0o755)
    port = free_port()
    (folder / "nginx.conf").write_text(
        ("user root;" if os.geteuid() == 0 else "")
        + NGINX.format(folder=folder, port=port, upstream=upstream, way=way)
    )
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    try:
        with started(
            "nginx",
            port,
            [binary, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")],
        ) as server:
            yield server
    finally:
        shutil.rmtree(folder)


@contextmanager
def plain(upstream: int) -> Iterator[Server]:
    """The contest winner's idea in its shortest form."""
    port = free_port()
    command = [sys.executable, "-c", PLAIN, str(port), f"http://127.0.0.1:{upstream}"]
    with started("aiohttp", port, command) as server:
        yield server


@contextmanager
def litellm(upstream: int, program: Path) -> Iterator[Server]:
    """LiteLLM's proxy with its local cache; `program` is its `litellm` in an environment of its own."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(LITELLM.format(upstream=upstream))
        command = [
            str(program),
            "--config",
            f"{folder}/config.yaml",
            "--port",
            str(port),
            "--host",
            "127.0.0.1",
        ]
        quiet = os.environ | {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            # it does not start without a key, nor with one that is as weak as a benchmark's
            "LITELLM_MASTER_KEY": KEY,
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        with started("litellm", port, command, env=quiet) as server:
            yield server


@contextmanager
def ours(upstream: int, *flags: str, name: str = "toolkit") -> Iterator[Server]:
    """`toolkit proxy` with all features on: a team with a key, a log, TTL, counters, the shared layer."""
    port = free_port()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        settings = Path(folder) / "proxy.toml"
        settings.write_text(
            f'[[upstream]]\nname = "engine"\nurl = "http://127.0.0.1:{upstream}"\n'
            '[[team]]\nname = "blue"\nkey_env = "BLUE_KEY"\n'
            f'[cache]\nfile = "{folder}/cache.db"\n[tell]\nlog = "{folder}/requests.jsonl"\n'
        )
        command = [sys.executable, "-c", "from toolkit.cli import main; main()", "proxy"]
        command += [
            "--config",
            str(settings),
            "--port",
            str(port),
            "--admin-port",
            str(free_port()),
            *flags,
        ]
        with started(name, port, command, cwd=ROOT, env=os.environ | {"BLUE_KEY": KEY}) as server:
            yield server
