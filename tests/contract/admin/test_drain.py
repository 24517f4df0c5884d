"""`/drain` without a name, for the proxy itself: it says that it is not ready and keeps no connection, in every worker, until `/undrain`."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.harness.clients import Client, ask, get
from contract.harness.proxies import proxy
from contract.harness.servers import chat, server

CLIENTS = 24
"""The kernel deals connections out by chance: all 24 to one of two workers once in 8 million times."""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_drained_proxy_is_not_ready_and_closes_its_connections_until_it_is_taken_back(
    tmp_path: Path, workers: int
) -> None:
    settings = f"workers = {workers}\n"
    with (
        server({"*": chat()}) as upstream,
        proxy(upstream.url, settings=settings, cwd=tmp_path) as door,
        ExitStack() as opened,
    ):
        idle = [opened.enter_context(Client(door.url)) for _ in range(CLIENTS)]
        assert all(each.ask().status == 200 for each in idle)
        assert get(door.url, "/ready").status == get(door.admin, "/ready").status == 200

        assert ask(door.admin, b"", path="/drain").json == {"upstream": None, "draining": True}
        assert all(each.is_closed() for each in idle)
        told = get(door.admin, "/ready")
        assert (told.status, told.json["why"]) == (503, "the proxy is draining")
        assert get(door.admin, "/health").status == get(door.url, "/ready").status == 503
        assert get(door.admin, "/state").json["draining"] is True
        # whoever comes all the same is answered, and not kept
        for _ in range(CLIENTS):
            answer = ask(door.url)
            assert (answer.status, answer.headers["connection"]) == (200, "close")

        assert ask(door.admin, b"", path="/undrain").json == {"upstream": None, "draining": False}
        assert get(door.url, "/ready").status == get(door.admin, "/ready").status == 200
        for _ in range(CLIENTS):
            client = opened.enter_context(Client(door.url))
            assert [client.ask().status for _ in range(2)] == [200, 200]
