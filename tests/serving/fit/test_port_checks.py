"""Rules over ports: who is in the way of whom, and which command frees a port."""

from dataclasses import replace

import pytest

from toolkit.serving.fit.facts import Facts, Holder, Network, Port
from toolkit.serving.fit.needs import Needs
from toolkit.serving.fit.port_checks import checks, port_check
from toolkit.serving.outcome import Check

FACTS = Facts(root=True, network=Network(ephemeral_low=32_768, ephemeral_high=60_999))
OTHER = Holder(address="127.0.0.1", family="IPv4", pids=(41,), command="python other.py")


def judged(port: Port, host: str = "0.0.0.0", facts: Facts = FACTS) -> Check:
    return port_check(port, Needs(host=host), facts)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("127.0.0.1", "::"),  # an IPv6 socket on all addresses takes IPv4, too
        ("::", "127.0.0.1"),
        ("::1", "::1"),
        ("localhost", "127.0.0.1"),
    ],
)
def test_of_several_servers_on_a_port_only_those_in_the_way_are_ended(
    host: str, address: str
) -> None:
    bystander = Holder(address="10.0.0.4", family="IPv4", pids=(99,), command="other")
    if host in {"0.0.0.0", "::"}:
        bystander = replace(bystander, pids=(41,))  # there is none: everybody is in the way
    holders = (replace(OTHER, address=address), bystander)
    found = judged(Port(number=8000, refusal="EADDRINUSE", holders=holders), host)
    assert (found.status, found.fix) == ("fail", "kill 41")


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "::1"), ("0.0.0.0", "::1"), ("127.0.0.1", "10.0.0.4"), ("0.0.0.0", "::")],
)
def test_a_server_beside_a_port_that_can_be_bound_is_doubtful(host: str, address: str) -> None:
    """Also one on `::` that takes IPv6 alone, which /proc does not tell: binding does."""
    found = judged(Port(number=8000, holders=(replace(OTHER, address=address),)), host)
    assert (found.status, found.fix) == ("warn", "kill 41")


def test_all_who_share_a_socket_are_ended_and_process_1_never() -> None:
    shared = Port(
        number=8000, holders=(replace(OTHER, pids=(41, 42)), replace(OTHER, pids=(41, 43)))
    )
    assert judged(shared).fix == "kill 41 42 43"
    first = Port(
        number=8000,
        refusal="EADDRINUSE",
        holders=(replace(OTHER, pids=(1,), command="/sbin/init"),),
    )
    assert judged(first).fix == "sudo ss -ltnp 'sport = :8000'"


def test_a_holder_that_cannot_be_seen_is_told_as_such() -> None:
    found = judged(
        Port(number=8000, refusal="EADDRINUSE", holders=(replace(OTHER, pids=(), command=None),))
    )
    assert found.status == "fail"
    assert "a process of another user or container on 127.0.0.1" in found.why
    assert found.fix == "sudo ss -ltnp 'sport = :8000'"


def test_a_server_that_is_still_loading_takes_the_port() -> None:
    found = judged(Port(number=8000, refusal="EADDRINUSE", bound_only=True))
    assert found.status == "fail"
    assert "does not listen yet" in found.why


def test_connections_of_a_server_that_is_gone_want_a_minute() -> None:
    found = judged(Port(number=8000, refusal="EADDRINUSE", ending=True))
    assert (found.status, found.fix) == ("fail", "sleep 60")


def test_low_ports_are_roots() -> None:
    found = judged(Port(number=80, refusal="EACCES"))
    assert (found.status, found.fix) == (
        "fail",
        "sudo sysctl -w net.ipv4.ip_unprivileged_port_start=80",
    )


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    found = judged(Port(number=8000, refusal="EADDRNOTAVAIL"), "192.0.2.1")
    assert found.status == "fail"
    assert "`192.0.2.1` cannot be listened on" in found.why


def test_a_port_that_the_kernel_may_lend_out_is_doubtful_until_it_is_reserved() -> None:
    found = judged(Port(number=40_000, reserved=False))
    assert (found.status, found.fix) == (
        "warn",
        "sysctl -w net.ipv4.ip_local_reserved_ports=40000",
    )
    assert judged(Port(number=40_000, reserved=True)).status == "ok"
    assert judged(Port(number=32_767, reserved=False)).status == "ok"


def test_reserving_keeps_what_was_reserved_before_and_takes_all_wanted_ports_at_once() -> None:
    network = replace(FACTS.network, reserved="9000-9010")
    ports = (Port(number=40_000, reserved=False), Port(number=40_001, reserved=False))
    facts = replace(FACTS, network=network, ports=(*ports, Port(number=8000, reserved=False)))
    wanted = "sysctl -w net.ipv4.ip_local_reserved_ports=9000-9010,40000,40001"
    assert [judged(port, facts=facts).fix for port in ports] == [wanted, wanted]


def test_a_free_port_of_which_the_table_cannot_be_read_is_unknown() -> None:
    found = judged(Port(number=8000, error="`/proc/net/tcp` cannot be read"))
    assert found.status == "warn"
    assert "unknown" in found.why


@pytest.mark.parametrize(
    ("low", "high", "users", "status"),
    [
        (32_768, 60_999, 256, "ok"),
        (32_768, 36_863, 256, "ok"),  # 4,096 = 16 x 256
        (32_768, 36_862, 256, "warn"),
        (32_768, 60_999, 2_000, "warn"),  # 28,232 are less than 16 x 2,000
        (16_384, 65_535, 60_000, "ok"),  # more there are not
        (32_768, 33_023, 256, "fail"),  # as many as users
    ],
)
def test_each_user_wants_sixteen_ports_for_connections(
    low: int, high: int, users: int, status: str
) -> None:
    facts = Facts(network=Network(ephemeral_low=low, ephemeral_high=high))
    (found,) = (
        each for each in checks(facts, Needs(users=users)) if each.check == "ephemeral_ports"
    )
    assert found.status == status
