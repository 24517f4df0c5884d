"""An engine whose pages say what a test wants: load, counters, version, models; the rest is a recorded vLLM's."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from contract.harness.servers import RECORDED, Answer, Asked, Server, answer, chat, server

PAGE = (RECORDED / "metrics_after_load.txt").read_text()
KINDS = {"content_type": "text/plain; version=1.0.0; charset=utf-8"}


class Engine:
    """What it is; every answer names it, its start and how often it was asked."""

    def __init__(self, name: str = "a", model: str = "tiny") -> None:
        self.name, self.model = name, model
        self.version, self.root, self.length, self.block_size = "0.32.0", "/models/tiny", 512, 128
        self.started_at: float | None = 1_795_200_963.11
        self.starts = 1
        self.running, self.waiting, self.tokens, self.kv_usage = 0, 0, 108_878.0, 0.0
        self.counts_on: str | None = None
        """The attribute that grows from page to page."""
        self.count = 0
        self.statuses: list[int] = []
        """Of the next answers, before it is well again."""
        self.go_on = threading.Event()
        """Cleared, it makes no token, and its pages go on."""
        self.go_on.set()
        self.broken: dict[str, Answer] = {}
        """Pages that say something else than they should."""
        self.adapters: list[dict[str, str]] = []
        """More cards of /v1/models."""
        self.bodies: list[dict[str, Any]] = []
        self._restarting = threading.Lock()
        """No page is of half a restart."""

    def restart(self, after_s: float = 60.0) -> None:
        """Another process answers from now on."""
        with self._restarting:
            self.starts += 1
            self.tokens = 0
            if self.started_at is not None:
                self.started_at += after_s

    def metrics(self) -> str:
        """Its page now."""
        with self._restarting:
            return self._metrics()

    def _metrics(self) -> str:
        if self.counts_on is not None:
            setattr(self, self.counts_on, getattr(self, self.counts_on) + 0.001)
        page = PAGE
        if self.started_at is None:
            page = re.sub(r"(?m)^process_start_time_seconds .*\n", "", page)
        else:
            page = _set(page, "process_start_time_seconds", self.started_at)
        page = _set(page, "vllm:num_requests_running", self.running)
        page = _set(page, "vllm:num_requests_waiting", self.waiting)
        page = _set(page, "vllm:generation_tokens_total", self.tokens)
        page = _set(page, "vllm:kv_cache_usage_perc", self.kv_usage)
        page = page.replace('block_size="128"', f'block_size="{self.block_size}"')
        return page.replace('model_name="tiny"', f'model_name="{self.model}"')

    def pages(self) -> dict[str, Answer]:
        """For `server`."""
        return {
            "/health": self._page("/health", answer),
            "/version": self._page("/version", lambda: answer({"version": self.version})),
            "/v1/models": self._page(
                "/v1/models", lambda: answer({"data": [self._card(), *self.adapters]})
            ),
            "/metrics": self._page("/metrics", lambda: answer(self.metrics(), **KINDS)),
            "*": self._say,
        }

    def _card(self) -> dict[str, Any]:
        return {"id": self.model, "root": self.root, "max_model_len": self.length}

    def _page(self, path: str, well: Callable[[], bytes]) -> Callable[[Asked], None]:
        def send(asked: Asked) -> None:
            page = self.broken.get(path) or well()
            if callable(page):
                page(asked)
            else:
                asked.send(page)

        return send

    def _say(self, asked: Asked) -> None:
        if asked.method == "GET":
            asked.send(answer({"detail": "Not Found"}, "404 Not Found"))
            return
        self.bodies.append(json.loads(asked.body))
        self.go_on.wait(60)
        if self.statuses:
            asked.send(answer({"error": "ill"}, f"{self.statuses.pop(0)} Ill"))
            return
        self.count += 1
        self.tokens += 2
        said = f"{self.name} {self.starts} {self.count}"
        if asked.path == "/v1/completions":
            choice = {"index": 0, "text": said, "finish_reason": "length"}
            asked.send(answer({"model": self.model, "choices": [choice]}))
        else:
            asked.send(chat(said, model=self.model))


def _set(page: str, name: str, value: float) -> str:
    pattern = rf"(?m)^({name}(?:\{{[^}}]*\}})?) .*$"
    changed, count = re.subn(pattern, rf"\g<1> {value!r}", page)
    assert count == 1, name
    return changed


def port_of(running: Server) -> int:
    return int(running.url.rpartition(":")[2])


@contextmanager
def serving(engine: Engine, *, port: int = 0) -> Iterator[Server]:
    """Have it listen; again on the port that it had, once that is free."""
    give_up = time.monotonic() + 60
    while True:
        context = server(engine.pages(), port=port)
        try:
            running = context.__enter__()
            break
        except OSError:
            assert time.monotonic() < give_up
            time.sleep(0.05)
    try:
        yield running
    finally:
        context.__exit__(None, None, None)
