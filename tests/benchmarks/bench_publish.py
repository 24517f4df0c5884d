"""What it costs to show a blast of 100 hosts to 1,000 viewers with `toolkit board --publish` and nginx.

    python tests/benchmarks/bench_publish.py

A process writes each second of support/blasted.py's hosts as a blast's master does, canaries and tricks included, a quarter of an
hour of them stored before; `toolkit board --publish` keeps the page in a folder; nginx serves that folder on the loopback, as it is (`gzip_static`, `access_log off`); and
1,000 scripted readers do what the page's script does: each loads the page once, then asks for live.json every 5 s with
If-None-Match, and for charts.json when live.json names another. They arrive over 5 s; what is measured begins 10 s later.

Told are nginx's CPU, the publisher's CPU a refresh, what a viewer transfers, and how old figures are when they come and just before
the next ones replace them. Every tenth reader reads each file whole: a torn one would end this. Then the blast ends, and the
archive with its replay is written.

Bars: nginx a tenth of a core; a refresh half a second of CPU, a tenth of a core; figures 15 s old (where the page turns amber) at p95 just
before they are replaced; 10 kB/s a viewer.
"""

import argparse
import asyncio
import gzip
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from at_length import at_length

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from contract.harness.programs import free_port  # noqa: E402 (path first)
from support import blasted  # noqa: E402

from toolkit.store import Store  # noqa: E402

HOSTS = 100
HISTORY_S = 900
VIEWERS = at_length(1000, 50)
LENGTH_S = at_length(60, 15)
EVERY_S = 5.0
HEAD_BYTES = 8000
"""Of a file, in which its state and the age of its figures stand."""
NGINX = """
daemon off;
user root;
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    types {{ text/html html; application/json json; }}
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        root {root};
        gzip_static on;
    }}
}}
"""


# --- what runs ------------------------------------------------------------------------------------


def feed(database: str) -> None:
    """Write each second when it is over."""
    with Store.open(Path(database)) as store:
        [run] = store.runs(verb="blast")
        for second in range(HISTORY_S, 100_000):
            time.sleep(max(0.0, run.started_at + second + 1.2 - time.time()))
            blasted.feed(store, run, second)


@contextmanager
def started(*words: str) -> Iterator[psutil.Popen]:
    """A process that has ended at the end of the block."""
    process = psutil.Popen(words, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
        process.wait()


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process and its children."""
    family = [process, *process.children(recursive=True)]
    times = [each.cpu_times() for each in family]
    return sum(each.user + each.system for each in times)


# --- the readers ----------------------------------------------------------------------------------


@dataclass
class Readers:
    """What all readers have seen since the measuring began."""

    url: str
    is_measured: bool = False
    transferred: int = 0
    first_page: list[int] = field(default_factory=list)
    answers: int = 0
    refreshes: set[float] = field(default_factory=set)
    took_ms: list[float] = field(default_factory=list)
    age_on_arrival_s: list[float] = field(default_factory=list)
    age_at_last_s: list[float] = field(default_factory=list)

    async def read(self, number: int) -> None:
        """One reader, until it is cancelled."""
        dice = random.Random(number)
        await asyncio.sleep(dice.uniform(0, EVERY_S))
        headers = {"Accept-Encoding": "gzip"}
        etags: dict[str, str] = {}
        async with aiohttp.ClientSession(
            self.url, headers=headers, auto_decompress=False
        ) as session:

            async def fetched(name: str) -> bytes | None:
                """A file, or None where it is as it was."""
                known = {"If-None-Match": etags[name]} if name in etags else {}
                began = time.perf_counter()
                async with session.get(f"/{name}", headers=known) as answer:
                    body = await answer.read()
                    assert answer.status in (200, 304), answer.status
                    assert answer.status == 304 or answer.headers["Content-Encoding"] == "gzip"
                    etags[name] = answer.headers["ETag"]
                if self.is_measured:
                    self.took_ms.append(1e3 * (time.perf_counter() - began))
                    self.answers += 1
                    self.transferred += len(body) + len(str(answer.raw_headers))
                if answer.status == 304:
                    return None
                if number % 10 == 0:  # whole, or this raises
                    text = gzip.decompress(body)
                    assert name == "index.html" or json.loads(text)
                    assert name != "index.html" or text.endswith(b"</html>\n")
                return body

            page = await fetched("index.html")
            assert page
            self.first_page.append(len(page))
            charts, data_end = None, None
            while True:
                live = await fetched("live.json")
                if live is not None:
                    head = zlib.decompressobj(31).decompress(live, HEAD_BYTES).decode()
                    written_at = float(re.findall(r'"written_at": ([\d.]+)', head)[0])
                    age_s = float(re.findall(r'data-age=\\"([\d.]+)', head)[0])
                    now = time.time()
                    if self.is_measured:
                        if data_end is not None:
                            self.age_at_last_s.append(now - data_end)
                        self.age_on_arrival_s.append(now - written_at + age_s)
                        self.refreshes.add(written_at)
                    data_end = written_at - age_s
                    before, charts = charts, re.findall(r'"charts": "(\w+)"', head)[0]
                    if before not in (None, charts):
                        await fetched("charts.json")
                await asyncio.sleep(EVERY_S * (1 + dice.random() / 10))


def nearest(values: list[float], q: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, -(-int(q * 1000) * len(values) // 1000) - 1)]


async def measured(readers: Readers, nginx: psutil.Process, publisher: psutil.Process) -> None:
    """Let all readers read, and tell what that cost."""
    tasks = [asyncio.create_task(readers.read(number)) for number in range(VIEWERS)]
    await asyncio.sleep(EVERY_S + 10)
    readers.is_measured, began = True, time.monotonic()
    nginx_s, publisher_s = cpu_s(nginx), cpu_s(publisher)
    done, _ = await asyncio.wait(tasks, timeout=LENGTH_S, return_when=asyncio.FIRST_COMPLETED)
    readers.is_measured, length_s = False, time.monotonic() - began
    nginx_cores = (cpu_s(nginx) - nginx_s) / length_s
    publisher_s = cpu_s(publisher) - publisher_s
    for task in done:
        task.result()  # a reader ends only by an error
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    refresh_ms = 1e3 * publisher_s / len(readers.refreshes)
    kb_s = readers.transferred / 1e3 / VIEWERS / length_s
    arrival, last = readers.age_on_arrival_s, readers.age_at_last_s
    print(
        f"{VIEWERS} viewers of {HOSTS} hosts for {length_s:.0f} s: {readers.answers} answers,"
        f" {readers.answers / length_s:.0f} a second, p50 {nearest(readers.took_ms, 0.5):.1f} ms,"
        f" p99 {nearest(readers.took_ms, 0.99):.1f} ms"
    )
    print(
        f"nginx {nginx_cores:.3f} of a core; {len(readers.refreshes)} refreshes,"
        f" {refresh_ms:.0f} ms of the publisher's CPU each ({publisher_s / length_s:.3f} of a core)"
    )
    print(
        f"a viewer transfers {kb_s:.1f} kB/s, and {nearest(readers.first_page, 0.5) / 1e3:.0f} kB for the first page;"
        f" all together {kb_s * VIEWERS * 8 / 1e3:.0f} Mbit/s"
    )
    print(
        f"figures are {nearest(arrival, 0.5):.1f} s old when they come (p95 {nearest(arrival, 0.95):.1f}),"
        f" and {nearest(last, 0.5):.1f} s when the next replace them (p95 {nearest(last, 0.95):.1f}, at most {max(last):.1f})"
    )
    print(f"RATIO publish_nginx_cores {nginx_cores / 0.1:.3f}")
    print(f"RATIO publish_cpu_per_refresh {refresh_ms / 500:.3f}")
    print(f"RATIO publish_bytes_per_viewer {kb_s / 10:.3f}")
    print(f"RATIO publish_age_p95 {nearest(last, 0.95) / 15:.3f}")


def main() -> None:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert program, "no nginx; apt-get install nginx"
    toolkit = str(Path(sys.executable).with_name("toolkit"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        database, root, port = folder / "blast.db", folder / "page", free_port()
        began_at = time.time() - HISTORY_S
        run = blasted.blasted(
            database, hosts=HOSTS, seconds=HISTORY_S, started_at=began_at, ended=False
        )
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, root=root, port=port))
        words = ("-p", name, "-c", "nginx.conf", "-e", f"{name}/error.log")
        publishing = ("board", "--publish", str(root), "--db", str(database))
        with (
            started(sys.executable, __file__, "--feed", str(database)) as writer,
            started(toolkit, *publishing) as publisher,
        ):
            while not (root / "live.json.gz").exists():
                assert publisher.poll() is None
                time.sleep(0.1)
            with started(program, *words) as nginx:
                readers = Readers(f"http://127.0.0.1:{port}")
                asyncio.run(measured(readers, nginx, publisher))
            writer.kill()
            with Store.open(database) as store:
                store.end_run(run.id, ended_at=time.time(), client_ok=True)
            ended_s = time.monotonic()
            assert publisher.wait() == 0
            archived_s = time.monotonic() - ended_s
        sizes = {
            each.name: f"{each.stat().st_size / 1e3:.0f} kB" for each in sorted(root.iterdir())
        }
        print(f"the archive was there {archived_s:.1f} s after the end: {sizes}")


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--feed")
    chosen = words.parse_args()
    feed(chosen.feed) if chosen.feed else main()
