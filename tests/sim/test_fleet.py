"""Several simulated servers at once."""

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from toolkit.hosts import read_hosts
from toolkit.sim.fleet import Fleet, hosts_text, setups_for
from toolkit.sim.life import Setup, setup_for


def personalities(setups: dict[str, Setup]) -> dict[str, str]:
    return {name: setup.personality.name for name, setup in setups.items()}


def test_a_name_alone_is_the_personality_and_the_hosts_name() -> None:
    setups = setups_for(["cached", "alice=fp8"])
    assert personalities(setups) == {"cached": "cached", "alice": "fp8"}


def test_without_names_the_whole_cast_comes() -> None:
    cast = "fp8 awq gptq-int4 cached first-token switcher cold flaky drip".split()
    assert list(setups_for([])) == cast


def test_ports_and_seeds_count_up() -> None:
    setups = setups_for(["a=awq", "b=awq"], port=9000, seed=5)
    assert [setup.port for setup in setups.values()] == [9000, 9001]
    assert [setup.personality.engine.seed for setup in setups.values()] == [5, 6]
    assert [setup.port for setup in setups_for(["a=awq", "b=awq"]).values()] == [0, 0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["awq", "awq"], "`awq` stands twice"),
        (["a=nobody"], "`nobody` is no personality"),
        (["a b=awq"], "`a b` is no name"),
        (["#=awq"], "is no name"),
        (["a=b=awq"], "`a=b` is no name"),
    ],
)
def test_names_that_no_hosts_file_could_hold_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        setups_for(words)


def test_hosts_stand_in_two_columns() -> None:
    text = hosts_text([("a", "http://127.0.0.1:1"), ("long", "http://127.0.0.1:2")])
    assert text == "a    http://127.0.0.1:1\nlong http://127.0.0.1:2\n"
    assert hosts_text([("a", "http://h:1")], "api_key_env=K") == "a http://h:1 api_key_env=K\n"


def test_all_listen_and_the_hosts_file_reads_back() -> None:
    async def scene() -> dict[str, Any]:
        async with Fleet(setups_for(["alice=cached", "awq"], time_scale=0.01)) as fleet:
            hosts = read_hosts(fleet.hosts(), "test")
            async with httpx.AsyncClient(trust_env=False) as client:
                pages = [await client.get(f"{host.url}/v1/models") for host in hosts]
            roots = [page.json()["data"][0]["root"] for page in pages]
            return dict(zip((host.name for host in hosts), roots, strict=True))

    roots = asyncio.run(scene())
    assert roots == {
        "alice": "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4",
        "awq": "QuantTrio/Qwen3.5-35B-A3B-AWQ",
    }


def test_one_taken_port_stops_the_whole_fleet() -> None:
    async def scene(fleet: Fleet) -> None:
        async with fleet:
            pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fleet = Fleet({"free": setup_for("awq"), "taken": setup_for("awq", port=port)})
        with pytest.raises(OSError, match="in use"):
            asyncio.run(scene(fleet))
    parts = urlsplit(fleet.servers["free"].url)
    assert parts.port  # it was up before the other one failed
    with socket.socket() as probe:
        assert probe.connect_ex((parts.hostname, parts.port)) != 0
