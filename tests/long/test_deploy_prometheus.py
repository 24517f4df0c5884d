"""A real Prometheus with the rendered configuration, beside a simulated engine and a real proxy: every target, rule and panel at work.

It looks each second instead of every five, or this would take minutes; all else is as it was rendered.
"""

import itertools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from contract.harness.programs import free_port
from support.dashboard import BIG, QWEN, SITE, board_of, chosen, queries
from support.proxy_verb import Verb, proxying

from toolkit.deploy.prometheus import kit
from toolkit.deploy.render import write
from toolkit.deploy.site import Site
from toolkit.sim.app import serve_in_thread

pytestmark = pytest.mark.timeout(300)

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="needs Prometheus: apt-get install --no-install-recommends prometheus",
)
PATIENCE_S = 180.0
QUIET = {
    # nothing of this happened
    *("Turned away, and why", "Calls that failed", "What happened"),
    *("Alerts", "Engines left", "Stored answers ended"),
}


@dataclass
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **told: str) -> Any:
        found = httpx.get(f"{self.url}/api/v1/{path}", params=told, trust_env=False).json()
        assert found["status"] == "success", found
        return found["data"]

    def value(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return found

    def up(self) -> dict[str, str]:
        """By the engine's name and place, or the job."""
        found = [(each["metric"], each["value"][1]) for each in self.value("up")]
        return {
            " ".join((one.get("host", one["job"]), one.get("slot", ""))).strip(): value
            for one, value in found
        }


def until(holds: Callable[[], Any], why_not: Callable[[], Any] = lambda: None) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at, why_not()
        time.sleep(0.1)


def rendered(folder: Path, site: Site) -> Path:
    """The site's files, and the keys' that who deploys has to write."""
    write(kit(site).files, folder)
    (folder / "keys").mkdir()
    for engine in site.engines:
        if engine.key_env is not None:
            (folder / "keys" / engine.key_env).write_text("secret\n")
    return folder


@contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    """Run one on the files in a folder; nothing of it is left."""
    config = folder / "prometheus.yml"
    text = config.read_text()
    for before, after in (
        ("scrape_interval: 5s", "scrape_interval: 1s"),
        ("scrape_timeout: 4s", "scrape_timeout: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
    ):
        assert before in text
        text = text.replace(before, after)
    config.write_text(text)
    port = free_port()
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            until(lambda: process.poll() is not None or is_ready(server.url))
            assert process.poll() is None, (folder / "log.txt").read_text()
            yield server
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def chat(verb: Verb, number: int) -> None:
    """A stream, which every third one is the same, and one that no cache is asked for."""
    told = {"messages": [{"role": "user", "content": f"Tell {number}"}], "max_tokens": 8}
    assert verb.ask({**told, "stream": True})[0] == 200
    assert verb.ask({**told, "stream": True})[0] == 200
    assert verb.ask(told, cache_control="no-cache, no-store")[0] == 200


@needs_prometheus
def test_every_target_rule_and_panel_is_at_work(tmp_path: Path) -> None:
    with serve_in_thread("gptq-int4") as engine:
        settings = tmp_path / "proxy.toml"
        settings.write_text(
            f'[[upstream]]\nname = "qwen.a"\nurl = "{engine.url}"\n[admission]\nconcurrency = 4\n'
        )
        with proxying("--config", settings, "--no-cache-file", cwd=tmp_path) as verb:
            site = site_of(urlsplit(engine.url).port, verb.admin)
            with prometheus(rendered(tmp_path / "out", site)) as server:
                looked_at(server, site, verb)
            assert verb.end() == 0


def site_of(engine: int | None, admin: int) -> Site:
    """The engine behind a key, too, as another one."""
    assert engine is not None
    qwen = replace(QWEN, port=engine, spare_port=free_port())
    big = replace(BIG, host="127.0.0.1", port=engine)
    assert SITE.proxy is not None
    proxy = replace(SITE.proxy, admin_port=admin, redis_env=None)
    return replace(SITE, engines=(qwen, big), proxy=proxy)


def looked_at(server: Prometheus, site: Site, verb: Verb) -> None:
    chat(verb, 0)
    up = {"qwen a": "1", "qwen b": "0", "big": "1", "proxy": "1"}
    until(lambda: server.up() == up, server.up)
    board, numbers = board_of(site), itertools.count(1)

    def is_full() -> bool:
        """A rate wants what came within the last 10 s, of each kind: it is asked on while it is looked at."""
        chat(verb, next(numbers))
        return not empty(server, board)

    until(is_full, lambda: empty(server, board))
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    assert len(rules) > 60
    # the spare place is down, and nobody minds: no alert even waits for its time
    assert server.value("ALERTS") == []
    (ratio,) = server.value("proxy:hits:ratio_rate5m")
    assert 0 < float(ratio["value"][1]) < 1
    variables = [each for each in board["templating"]["list"] if each["type"] == "query"]
    assert {each["name"]: choices(server, each["query"]["query"]) for each in variables} == {
        "job": ["engine"],
        "host": ["big", "qwen"],
        "model": server.ask("label/model_name/values"),
        "proxy": [f"127.0.0.1:{verb.admin}"],
    }


def empty(server: Prometheus, board: dict[str, Any]) -> list[str]:
    """Panels that show nothing, though what they show has happened; an error in any query is raised."""
    return [
        title
        for title, expr in queries(board, window="10s")
        if not [each for each in server.value(expr) if each["value"][1] != "NaN"]
        and title not in QUIET
    ]


def choices(server: Prometheus, query: str) -> list[str]:
    """What Grafana's `label_values(SELECTOR, LABEL)` asks."""
    selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    found = server.ask(f"label/{label}/values", **{"match[]": chosen(selector)})
    return sorted(found)
