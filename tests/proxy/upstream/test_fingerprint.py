"""Words of models: what is read of a server, what is no restart, and what several processes agree in."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

from toolkit.metrics.dialects import EngineNumbers
from toolkit.proxy.config import CacheSetting, Settings, UpstreamSetting
from toolkit.proxy.upstream.connection import Page
from toolkit.proxy.upstream.fingerprint import Facts, Fingerprints, Model, read_facts

MODELS = b"""{"object":"list","data":[
  {"id":"tiny","object":"model","created":1,"owned_by":"vllm","root":"/models/tiny","parent":null,"max_model_len":512},
  {"id":"lora","object":"model","created":2,"owned_by":"vllm","root":"/loras/a","parent":"tiny"}]}"""
NUMBERS = EngineNumbers(
    engine="vllm",
    dialect="v1",
    models=("tiny",),
    settings=(("block_size", "16"), ("cache_dtype", "auto")),
    started_at=1000.0,
    prompt_tokens_total=10.0,
    generation_tokens_total=20.0,
)
TINY, LORA = Model(id="tiny", root="/models/tiny", max_model_len=512), Model(id="lora", root="/loras/a")  # fmt: skip
SERVER = Facts(
    version="0.32.0", models=(LORA, TINY), settings="f00", started_at=1000.0, tokens_total=30.0
)
A, B = "http://a:1", "http://b:1"
WALL_S = 5000.0


def said(body: bytes) -> Page:
    return Page(200, "application/json", body)


class Store:
    """What a file holds, or a Redis."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.is_away = False
        self.writes = 0

    def fingerprints(self) -> dict[str, str]:
        return dict(self.rows)

    def keep_fingerprints(self, rows: Mapping[str, str]) -> None:
        self.writes += 1
        if not self.is_away:
            self.rows |= rows

    def flush(self) -> None:
        """What is kept is written."""

    def earlier_epochs(self) -> None:
        """None of an earlier version."""


class Redis(Store):
    async def fingerprints(self) -> dict[str, str] | None:  # type: ignore[override]
        return None if self.is_away else dict(self.rows)


class Process:
    """One proxy's fingerprints, and what they said."""

    def __init__(
        self,
        file: Store | None = None,
        redis: Redis | None = None,
        *,
        kind: Literal["restart", "change"] = "restart",
        urls: tuple[str, ...] = (A, B),
        **upstream: Any,
    ) -> None:
        upstreams = tuple(UpstreamSetting(name=url[7], url=url, **upstream) for url in urls)
        env = None if redis is None else "REDIS"
        settings = Settings(upstreams=upstreams, cache=CacheSetting(epoch=kind, redis_env=env))
        self.changes, self.events = 0, list[tuple[object, object]]()
        self.wall_s = WALL_S
        stores: dict[str, Any] = {"file": file, "redis": redis}
        self.prints = Fingerprints(
            settings, **stores, changed=self.change, event=self.event, wall=lambda: self.wall_s
        )

    def change(self) -> None:
        self.changes += 1

    def event(self, _: str, told: dict[str, object]) -> None:
        self.events.append((told["why"], told["models"]))

    def sees(self, *facts: Facts, name: str = "a") -> dict[str, int]:
        for each in facts:
            self.prints.saw(name, each)
        return self.prints.incarnations

    def words(self) -> tuple[str, ...]:
        return tuple(map(self.prints.of, ("tiny", "lora", "unknown", None)))

    def refresh(self) -> None:
        asyncio.run(self.prints.refresh())


# --- facts ---------------------------------------------------------------------------------------------


def test_facts_are_read_from_the_three_pages() -> None:
    read = read_facts(said(b'{"version":"0.32.0"}'), said(MODELS), NUMBERS)
    assert replace(read, settings=None) == replace(SERVER, settings=None)
    turned = replace(NUMBERS, settings=tuple(reversed(NUMBERS.settings)))
    others = [
        replace(NUMBERS, settings=(("block_size", "32"), ("cache_dtype", "auto"))),
        replace(NUMBERS, engine="sglang"),
    ]
    assert read_facts(None, None, turned).settings == read.settings
    assert len({read.settings, None, *(read_facts(None, None, o).settings for o in others)}) == 4
    assert (
        read_facts(said(b'{"version":""}'), None, EngineNumbers(engine="tgi", dialect="tgi"))
        == Facts()
    )


@pytest.mark.parametrize(
    "page",
    [b"", b"<html>", b"[]", b"{}", b"3", b'{"data":{}}', b"\xff", b"[" * 100_000],
    ids=["empty", "html", "list", "object", "number", "no list", "no text", "deep"],
)
def test_a_page_that_is_none_tells_no_models_and_the_metrics_labels_do(page: bytes) -> None:
    assert read_facts(None, said(page), None).models is None
    assert read_facts(None, said(page), NUMBERS).models == (Model(id="tiny"),)


# --- one process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moved_s", "is_restart"),
    [(-1.0, False), (0.4, False), (1.0, False), (-1.5, True), (1.5, True)],
)
def test_a_start_that_moves_by_a_second_is_a_clocks_correction(
    moved_s: float, is_restart: bool
) -> None:
    process = Process()
    moved = replace(SERVER, started_at=1000.0 + moved_s, tokens_total=1.0)
    assert bool(process.sees(SERVER, moved)) is is_restart


# --- file, Redis, other processes ---------------------------------------------------------------------------


def test_what_a_store_lost_or_refused_is_written_again_and_only_more_is_believed() -> None:
    redis = Redis()
    process = Process(redis=redis)
    process.sees(SERVER)
    redis.is_away = True
    process.sees(replace(SERVER, started_at=1060.0))
    process.refresh()
    assert "model tiny" not in redis.rows
    redis.is_away = False
    redis.rows = {"model tiny": "7", "model lora": "no number"}
    process.refresh()
    assert {redis.rows[f"model {name}"] for name in ("tiny", "lora", "*")} == {"1060"}
    assert process.prints.incarnations["tiny"] == 1060
    after = Process(redis=redis)
    after.refresh()
    assert after.words() == process.words()
    writes = redis.writes
    process.refresh()
    redis.rows[f"upstream {A}"] = "{"
    nobody = Process(redis=redis)
    nobody.refresh()
    assert nobody.prints.facts.get("a") is None
    assert redis.writes == writes


def test_counters_are_written_now_and_then_and_only_where_they_are_needed() -> None:
    file = Store()
    process = Process(file)
    base = replace(SERVER, started_at=None)
    process.sees(base)
    process.wall_s += 29
    process.sees(replace(base, tokens_total=200.0))
    assert '"tokens_total":30.0' in file.rows[f"upstream {A}"]
    process.wall_s += 1
    process.sees(replace(base, tokens_total=300.0))
    # fewer tokens than the file knows of: it began anew while the proxy was down
    assert Process(file).sees(replace(base, tokens_total=299.0))
    writes = file.writes
    process.sees(*(replace(SERVER, tokens_total=10.0**power) for power in (3, 6)))
    assert file.writes == writes + 1, "where a start tells, it is the start that is written"
