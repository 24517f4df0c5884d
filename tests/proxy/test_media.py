"""toolkit.proxy.media: what a server would fetch from, and what of it may be asked for."""

import time
from typing import Any

import pytest

from toolkit.proxy.media import refused


def image(address: object) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": address}}
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]}


@pytest.mark.parametrize(
    "address",
    [
        "FILE:///etc/passwd",
        "http:/good.example",
        "http://good.example@10.0.0.4/",
        "http://good.example:80@10.0.0.4/",
        "http://good.example\\@10.0.0.4/",
        "http://good.example#@10.0.0.4/",
        "http://good.example?@10.0.0.4/",
        "http://10.0.0.4\t.good.example/",
        " http://good.example/",
        "http://good.example/\n",
        "http://good.example.evil.example/",
        "http://good.example/ a",
        "http://g\u1d0fod.example/",
        "",
        7,
        ["http://good.example/"],
        {"url": "http://good.example/"},
    ],
)
def test_what_two_readers_may_take_for_two_addresses_is_refused_even_for_an_allowed_host(
    address: object,
) -> None:
    assert refused(image(address), {"good.example"}) is not None


def test_what_is_nested_in_media_is_looked_at_once() -> None:
    texts: Any = ["a"] * 100_000
    nested: Any = texts
    for _ in range(60):
        nested = {"images": nested}

    def cpu_s(fields: dict[str, Any]) -> float:
        began_s = time.process_time()
        assert refused(fields, ()) is None
        return time.process_time() - began_s

    plain_s = min(cpu_s({"images": texts}) for _ in range(3))
    assert min(cpu_s(nested) for _ in range(3)) < 5 * plain_s
