"""A purge while somebody asks: what the file still had when memory was emptied is not brought back by a look-up."""

import asyncio
import time
from pathlib import Path

from toolkit.proxy.exchange import Kept
from toolkit.proxy.settings import CacheSetting
from toolkit.proxy.stored.layers import Layers
from toolkit.proxy.stored.shared_cache import SharedCache

KEY = b"k" * 16
KEPT = Kept(
    endpoint="chat/completions", streamed=False, content_type="application/json", body=b"{}"
)


class Asked(SharedCache):
    """A file that is asked for an answer in the midst of its purge."""

    layers: Layers
    was_there = False

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, key: bytes | None = None
    ) -> int:
        self.was_there = self.layers.find(KEY) is not None
        return super().purge(tenant=tenant, model=model, key=key)


def layered(folder: Path) -> tuple[Layers, Asked]:
    shared = Asked(folder / "c.db", 2**26)
    layers = Layers(
        CacheSetting(memory_bytes=2**20),
        shared=shared,
        redis=None,
        clock=time.monotonic,
        wall=time.time,
    )
    shared.layers = layers
    layers.keep(KEY, KEPT, ttl_s=None, tenant="", model="tiny")
    return layers, shared


def test_a_look_up_during_a_purge_brings_nothing_back(tmp_path: Path) -> None:
    layers, shared = layered(tmp_path)
    try:
        layers.forget(None)
        assert asyncio.run(layers.purge()) == 1
        assert shared.was_there
        assert layers.find(KEY) is None
    finally:
        shared.close()


def test_a_look_up_during_the_purge_of_one_key_brings_nothing_back(tmp_path: Path) -> None:
    layers, shared = layered(tmp_path)
    try:
        layers.forget(KEY)
        assert asyncio.run(layers.purge(key=KEY)) == 1
        assert shared.was_there
        assert layers.find(KEY) is None
    finally:
        shared.close()
