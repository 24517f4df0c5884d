"""toolkit.capture.live: of a request that crosses several interfaces of one machine, `any` counts one sight.

The machine is a router between a client and a bridge on which a container sits, as Docker makes it:

    client 10.9.1.2 -- r0 10.9.1.1 | router | br0 10.9.2.1 = p0 -- 10.9.2.2 container
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from contract.harness.packets import ipv4, ipv6, tcp
from support.capture_child import capture_child, heard
from support.live_traffic import THE_END, bodies, send, serving
from support.net_namespaces import inside, ip, namespace, needs_namespaces

from toolkit.capture.live import OutgoingFrames


class Town(NamedTuple):
    client: str
    router: str
    container: str


@pytest.fixture
def town() -> Iterator[Town]:
    with namespace() as client, namespace() as router, namespace() as container:
        ip("-n", router, "link", "add", "r0", "type", "veth", "peer", "name", "c0", "netns", client)
        ip(
            "-n",
            router,
            "link",
            "add",
            "p0",
            "type",
            "veth",
            "peer",
            "name",
            "k0",
            "netns",
            container,
        )
        ip("-n", router, "link", "add", "br0", "type", "bridge")
        ip("-n", router, "link", "set", "p0", "master", "br0")
        ip("-n", router, "link", "set", "p0", "up")
        for place, name, address in (
            (router, "r0", "10.9.1.1"),
            (router, "br0", "10.9.2.1"),
            (client, "c0", "10.9.1.2"),
            (container, "k0", "10.9.2.2"),
        ):
            ip("-n", place, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", place, "link", "set", name, "up")
        ip("-n", client, "route", "add", "default", "via", "10.9.1.1")
        ip("-n", container, "route", "add", "default", "via", "10.9.2.1")
        with inside(router):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        yield Town(client, router, container)


def seen_by_router(
    town: Town, *, source: str, target: str, address: str, iface: str = "any"
) -> dict:
    """What a capture on the router saw of 20 requests from one place to a server in another."""
    with ExitStack() as stack:
        with inside(target):
            stack.enter_context(serving(address, 8000))
        child = stack.enter_context(capture_child(iface, namespace=town.router))
        heard(child)
        with inside(source):
            send(address, 8000, bodies(20), connections=1)
        return heard(child)


ALL = [*(body.decode() for body in bodies(20)), THE_END.decode()]
ONCE = 21 + 4
"""Segments: the requests, and a SYN and a FIN of each of the two connections."""


@needs_namespaces
def test_a_request_forwarded_to_a_container_counts_where_it_comes_in(town: Town) -> None:
    # it shows on r0 inbound, on br0 and on p0 outbound
    seen = seen_by_router(town, source=town.client, target=town.container, address="10.9.2.2")
    assert seen["bodies"] == ALL
    assert seen["frames"] == ONCE
    assert "25 on `br0`" in seen["note"]
    assert "25 on `p0`" in seen["note"]


@needs_namespaces
def test_a_request_to_this_machines_own_server_counts_once(town: Town) -> None:
    seen = seen_by_router(town, source=town.client, target=town.router, address="10.9.1.1")
    assert seen["bodies"] == ALL
    assert seen["frames"] == ONCE


@needs_namespaces
def test_this_machines_own_request_to_another_machine_counts(town: Town) -> None:
    seen = seen_by_router(town, source=town.router, target=town.client, address="10.9.1.2")
    assert seen["bodies"] == ALL
    assert seen["frames"] == ONCE


@needs_namespaces
def test_a_proxys_second_request_into_the_bridge_counts_only_if_the_bridge_is_named(
    town: Town,
) -> None:
    words = {"source": town.router, "target": town.container, "address": "10.9.2.2"}
    seen = seen_by_router(town, **words, iface="br0")
    assert seen["bodies"] == ALL
    with ExitStack() as stack:
        child = stack.enter_context(capture_child("any", namespace=town.router))
        heard(child)
        with inside(town.container):
            stack.enter_context(serving("10.9.2.2", 8000))
        with inside(town.router):
            send("10.9.2.2", 8000, bodies(20), connections=1)
        # what comes in from outside goes on counting
        with inside(town.router):
            stack.enter_context(serving("10.9.1.1", 8000))
        with inside(town.client):
            send("10.9.1.1", 8000, [b"from outside"])
        assert heard(child)["bodies"] == ["from outside", THE_END.decode()]


# --- the parts ------------------------------------------------------------------------------------------


def test_an_outgoing_packet_counts_if_its_sender_is_this_machine() -> None:
    sights = OutgoingFrames([8000])
    own = ipv4(tcp(40000, 8000, 1), "127.0.0.1", "192.0.2.9")
    own_6 = ipv6(tcp(40000, 8000, 1), "::1", "2001:db8::9")
    # 192.0.2.0/24 and 2001:db8::/32 are for documentation: no machine has such an address
    others = ipv4(tcp(40000, 8000, 1), "192.0.2.1", "192.0.2.9")
    others_6 = ipv6(tcp(40000, 8000, 1), "2001:db8::1", "2001:db8::9")
    assert sights.note is None
    assert [sights.counts(one, "eth0") for one in (own, own_6, others, others_6, b"")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert sights.left_out == {"eth0": 3}
    assert (
        sights.note
        == "outgoing frames not counted with `any`: 3 on `eth0`; --iface NAME counts them"
    )
