"""Which stored answers hold: those of the engine that answers now. A restart or a change ends them, a page that fails does not."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import BODY, Client, ask, get, request
from contract.harness.engines import Engine, port_of, serving
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Server, answer, chat
from contract.redis.test_redis import redis_server

FAST = '[routing]\nlook = "50ms"\nback = "200ms"\n'
CHANGE = '[cache]\nepoch = "change"\n' + FAST
ILL = answer("", "500 Internal Server Error")


def epochs(door: Proxy) -> dict[str, int]:
    found: dict[str, int] = get(door.admin, "/state").json["epochs"]
    return found


def upstreams(door: Proxy) -> dict[str, Any]:
    return {one["name"]: one for one in get(door.admin, "/state").json["upstreams"]}


def scraped(running: Server, path: str = "/metrics", more: int = 4) -> None:
    """Wait until so many more of its pages were read."""
    wanted = running.paths().count(path) + more
    until(lambda: running.paths().count(path) >= wanted)


def stored(door: Proxy, model: str = "tiny") -> str:
    """An answer that is in the cache now."""
    first = ask(door.url, BODY | {"model": model})
    assert first.status == 200
    again = ask(door.url, BODY | {"model": model})
    assert (again.is_hit, again.text) == (True, first.text)
    return first.text


def is_another(door: Proxy, than: str) -> bool:
    """Whether it says something else, and says that again."""
    new = ask(door.url)
    return new.status == 200 and new.text != than and ask(door.url).is_hit


@pytest.mark.parametrize("knows_its_start", [True, False])
def test_a_restart_ends_what_is_stored_once_and_while_it_is_down_hits_go_on(
    tmp_path: Path, knows_its_start: bool
) -> None:
    engine = Engine()
    if not knows_its_start:
        engine.started_at = None
    with ExitStack() as stack:
        running = stack.enter_context(serving(engine))
        door = stack.enter_context(proxy(running.url, FAST, cwd=tmp_path, probes=True))
        before = stored(door)
        assert before == "a 1 1"
        # a clock that is set right by half a second is no restart, nor are counters that grow
        if engine.started_at is not None:
            engine.started_at += 0.5
        scraped(running)
        assert ask(door.url).text == before
        assert epochs(door) == {}
        engine.restart()
        until(lambda: is_another(door, before))
        assert ask(door.url).text.startswith("a 2 ")
        counted = epochs(door)
        assert counted.keys() == {"tiny", "*"}
        assert min(counted.values()) > 0
        assert door.total("toolkit_proxy_model_epoch", model="tiny") == counted["tiny"]
        # once: what it said since is found, and found again
        held = ask(door.url).text
        scraped(running)
        assert (ask(door.url).text, ask(door.url).is_hit, epochs(door)) == (held, True, counted)


def test_a_server_that_was_away_and_tells_no_start_is_another_one(tmp_path: Path) -> None:
    engine = Engine()
    engine.started_at = None
    with ExitStack() as stack, ExitStack() as first:
        running = first.enter_context(serving(engine))
        door = stack.enter_context(proxy(running.url, FAST, cwd=tmp_path, probes=True))
        before = stored(door)
        first.close()
        until(lambda: upstreams(door)["u0"]["reason"] == "unreachable")
        assert ask(door.url).text == before, "hits go on"
        engine.tokens += 10**6
        stack.enter_context(serving(engine, port=port_of(running)))
        until(lambda: is_another(door, before))


def test_a_hit_on_its_way_to_a_slow_reader_stays_whole_while_its_model_changes_and_all_is_purged(
    tmp_path: Path,
) -> None:
    """8 MiB, of which the kernel holds a part: the rest waits in the proxy for a client that does not read."""
    engine, text = Engine(), "<first>" + "x" * 8 * 2**20 + "<last>"
    with serving(engine) as running, proxy(running.url, FAST, cwd=tmp_path, probes=True) as door:
        short = running.pages["*"]
        running.pages["*"] = chat(text)
        assert ask(door.url).text == text
        running.pages["*"] = short
        with ExitStack() as stack:
            readers = []
            for _ in range(2):
                reader = stack.enter_context(Client(door.url))
                reader.socket.close()
                reader.socket = socket.socket()
                reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.socket.settimeout(60)
                reader.socket.connect(("127.0.0.1", int(door.url.rpartition(":")[2])))
                reader.send(request())
                reader._more()
                readers.append(reader)
            until(lambda: get(door.admin, "/state").json["busy"] == 2)
            engine.restart()
            until(lambda: is_another(door, text))
            new = ask(door.url).text
            assert ask(door.admin, {"all": True}, path="/purge").json["purged"] > 0
            assert ask(door.url).text not in (new, text)
            for reader in readers:
                # a small one that is read on would take half a minute
                reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
                reply = reader.reply()
                assert (reply.is_hit, reply.is_whole) == (True, True)
                assert reply.text == text
                # and the connection is good for the next one
                assert reader.ask().text.startswith("a 2 ")


def test_where_only_changes_count_a_restart_ends_nothing(tmp_path: Path) -> None:
    engine = Engine()
    with serving(engine) as running, proxy(running.url, CHANGE, cwd=tmp_path, probes=True) as door:
        before = stored(door)
        # nor does another model beside it
        engine.adapters.append({"id": "lora", "root": "/loras/a"})
        engine.restart()
        scraped(running, "/version", 1)
        scraped(running)
        assert (ask(door.url).text, epochs(door)) == (before, {})


CHANGES: dict[str, Callable[[Engine], object]] = {
    "version": lambda engine: setattr(engine, "version", "0.33.0"),
    "root": lambda engine: setattr(engine, "root", "/models/other"),
    "length": lambda engine: setattr(engine, "length", 1024),
    "settings": lambda engine: setattr(engine, "block_size", 32),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_ends_what_is_stored_and_a_page_that_fails_does_not(
    tmp_path: Path, what: str
) -> None:
    engine = Engine()
    with serving(engine) as running, proxy(running.url, CHANGE, cwd=tmp_path, probes=True) as door:
        before = stored(door)
        engine.broken = {"/version": ILL, "/v1/models": answer("[1]")}
        # its pages are read anew, as it has started anew
        engine.restart()
        scraped(running, "/version", 1)
        scraped(running)
        assert ask(door.url).text == before
        engine.broken = {"/metrics": lambda asked: asked.reset()}
        scraped(running)
        assert ask(door.url).text == before
        engine.broken = {}
        CHANGES[what](engine)
        engine.restart()
        until(lambda: is_another(door, before))
        assert epochs(door).keys() == {"tiny", "*"}


def test_another_model_s_restart_ends_nothing_of_this_one_s(tmp_path: Path) -> None:
    tiny, big = Engine("a"), Engine("b", "big")
    with (
        serving(tiny) as one,
        serving(big) as two,
        proxy([one.url, two.url], FAST, cwd=tmp_path, probes=True) as door,
    ):
        mine, others = stored(door), stored(door, "big")
        assert (mine, others) == ("a 1 1", "b 1 1")
        big.restart()
        until(lambda: ask(door.url, BODY | {"model": "big"}).text.startswith("b 2 "))
        assert (ask(door.url).text, ask(door.url).is_hit) == (mine, True)
        assert epochs(door).keys() == {"big", "*"}


def test_stored_answers_outlive_the_proxy_unless_the_engine_restarted_meanwhile(
    tmp_path: Path,
) -> None:
    engine = Engine()
    with ExitStack() as stack:
        running = stack.enter_context(serving(engine))

        def started() -> Proxy:
            return stack.enter_context(proxy(running.url, FAST, cwd=tmp_path, probes=True))

        door = started()
        before = stored(door)
        assert door.program.end() == 0
        # it is known again at once, also while its engine is down
        engine.broken = dict.fromkeys(("/metrics", "/version", "/v1/models", "/health"), ILL)
        door = started()
        assert (ask(door.url).is_hit, ask(door.url).text) == (True, before)
        assert door.program.end() == 0
        engine.broken = {}
        engine.restart()
        door = started()
        assert not (new := ask(door.url)).is_hit
        assert new.text.startswith("a 2 ")
        assert door.program.end() == 0
        door = started()
        assert (ask(door.url).is_hit, ask(door.url).text) == (True, new.text)


def test_every_worker_knows_of_a_restart(tmp_path: Path) -> None:
    engine = Engine()
    settings = "workers = 2\n" + FAST
    with (
        serving(engine) as running,
        proxy(running.url, settings, cwd=tmp_path, probes=True) as door,
        ExitStack() as stack,
    ):
        # the kernel deals connections out by chance: all 24 to one of two workers once in 8 million times
        clients = [stack.enter_context(Client(door.url)) for _ in range(24)]
        before = clients[0].ask().text
        until(lambda: all(client.ask().is_hit for client in clients))
        assert len({c.ask().headers["x-request-id"].partition("-")[0] for c in clients}) == 2
        engine.restart()
        until(lambda: all(client.ask().text.startswith("a 2 ") for client in clients))
        new = clients[0].ask().text
        until(lambda: all(client.ask().is_hit for client in clients))
        assert {client.ask().text for client in clients} == {new} != {before}


def test_another_engine_at_another_address_is_another_one_and_an_equal_one_is_not(
    tmp_path: Path,
) -> None:
    first, equal, other = Engine("a"), Engine("b"), Engine("c")
    equal.started_at, other.version = 1_700_000_000.0, "0.33.0"
    before = ""
    for engine, is_hit in ((first, False), (equal, True), (other, False)):
        with (
            serving(engine) as running,
            proxy(running.url, FAST, cwd=tmp_path, probes=True) as door,
        ):
            answer = ask(door.url)
            assert answer.is_hit is is_hit
            assert (answer.text == before) is is_hit
            before = answer.text
            assert door.program.end() == 0


def test_proxies_on_one_redis_agree_and_one_that_starts_knows_at_once(tmp_path: Path) -> None:
    settings = '[cache]\nfile = "none"\nredis_env = "CACHE"\nredis_timeout = "2s"\n' + FAST
    engine, folders = Engine(), [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack, redis_server(tmp_path) as redis, serving(engine) as running:

        def started(folder: Path) -> Proxy:
            env = {"CACHE": redis.url}
            return stack.enter_context(
                proxy(running.url, settings, cwd=folder, env=env, probes=True)
            )

        doors = [started(folder) for folder in folders]
        before = stored(doors[0])
        assert (ask(doors[1].url).is_hit, ask(doors[1].url).text) == (True, before)
        engine.restart()
        until(lambda: ask(doors[0].url).text.startswith("a 2 "))
        until(lambda: epochs(doors[0]) == epochs(doors[1]) != {})
        # one may have asked before both agreed
        until(lambda: ask(doors[0].url).text == ask(doors[1].url).text)
        new = ask(doors[0].url).text
        assert new.startswith("a 2 ")
        # without a file of its own, and while the engine is down
        assert doors[1].program.end() == 0
        engine.broken = dict.fromkeys(("/metrics", "/version", "/v1/models", "/health"), ILL)
        last = started(folders[1])
        assert (ask(last.url).is_hit, ask(last.url).text) == (True, new)
