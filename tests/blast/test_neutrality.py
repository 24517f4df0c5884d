"""Who is on the machine that makes the load, and what the sentence about it says."""

import pytest

from toolkit.blast.neutrality import BlastTarget, LocalRoute, Neighbour, neighbours, sentence


def places(hostname: str, *routes: LocalRoute, own: tuple[str, ...] = ("loader",)) -> list[str]:
    target = BlastTarget(name="alice", hostname=hostname, routes=routes)
    return [found.place for found in neighbours([target], own)]


def test_a_host_elsewhere_is_no_neighbour() -> None:
    assert places("10.0.0.4", LocalRoute(address="10.0.0.4", source="10.0.0.9")) == []
    assert places("gpu.example", LocalRoute(address="192.0.2.7", source="10.0.0.9")) == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"]
)
def test_loopback_is_here_whatever_the_system_says(address: str) -> None:
    assert places("some.name", LocalRoute(address=address)) == [address]


@pytest.mark.parametrize("address", ["10.0.0.9", "2001:db8::9", "fe80::9%eth0"])
def test_an_address_that_packets_to_it_would_leave_from_is_here(address: str) -> None:
    assert places("gpu.example", LocalRoute(address=address, source=address)) == [address]


def test_one_of_several_addresses_is_enough() -> None:
    there = LocalRoute(address="192.0.2.7", source="10.0.0.9")
    here = LocalRoute(address="10.0.0.9", source="10.0.0.9")
    assert places("gpu.example", there, here) == ["10.0.0.9"]


def test_the_same_address_in_other_words_is_the_same() -> None:
    route = LocalRoute(address="2001:DB8:0::9", source="2001:db8::9")
    assert places("gpu.example", route) == ["2001:DB8:0::9"]


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "api.localhost", "localhost."])
def test_localhost_and_all_below_it_are_here_without_a_look_up(name: str) -> None:
    assert places(name) == [name]


@pytest.mark.parametrize("name", ["notlocalhost", "localhost.example", "loader.example"])
def test_a_name_that_only_resembles_one_of_ours_is_elsewhere(name: str) -> None:
    assert places(name) == []


def test_the_machines_own_name_is_here() -> None:
    assert places("Loader") == ["Loader"]
    assert places("loader", own=()) == []


@pytest.mark.parametrize("literal", ["127.0.0.1", "::1"])
def test_an_address_in_the_url_needs_no_look_up(literal: str) -> None:
    assert places(literal) == [literal]


def test_an_address_without_a_way_to_it_is_elsewhere() -> None:
    assert places("gpu.example", LocalRoute(address="192.0.2.7")) == []


def test_hosts_keep_their_order_and_their_names() -> None:
    targets = [
        BlastTarget(name="b", hostname="localhost"),
        BlastTarget(name="far", hostname="10.0.0.4"),
        BlastTarget(name="a", hostname="127.0.0.1"),
    ]
    assert neighbours(targets) == [
        Neighbour(name="b", place="localhost"),
        Neighbour(name="a", place="127.0.0.1"),
    ]


def test_the_sentence_names_three_and_counts_the_rest() -> None:
    several = [Neighbour(name=name, place="::1") for name in "abcde"]
    assert sentence(several[:1]) == "`a` (::1) is on this machine"
    assert sentence(several[:2]) == "`a` (::1) and `b` (::1) are on this machine"
    assert sentence(several[:3]) == "`a` (::1), `b` (::1) and `c` (::1) are on this machine"
    assert sentence(several) == "`a` (::1), `b` (::1), `c` (::1) and 2 more are on this machine"
