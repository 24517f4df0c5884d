"""A live capture on real networks made for the test: lo, and veth between two network namespaces.

Sent equals seen, each request once, bodies byte for byte the same.
"""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from contract.harness import packets
from support.live_traffic import MIB, THE_END, Capture, bodies, capturing, send, serving
from support.net_namespaces import inside, namespace, needs_namespaces, pair

pytestmark = needs_namespaces

CLIENT, SERVER = "10.9.0.1", "10.9.0.2"
SERVER_6 = "fd09::2"


@pytest.fixture
def alone() -> Iterator[str]:
    """A namespace with nothing but lo."""
    with namespace() as name, inside(name):
        yield name


@pytest.fixture
def joined() -> Iterator[tuple[str, str]]:
    """A client's and a server's namespace."""
    with pair() as names:
        yield names


def assert_each_once(capture: Capture, wanted: list[bytes], arrived: list[bytes]) -> None:
    """Sent equals arrived equals seen; and no frame shows twice, which putting streams together would hide."""
    assert Counter(capture.bodies[:-1]) == Counter(wanted)
    assert Counter(arrived) == Counter([*wanted, THE_END])
    assert len(set(capture.frames)) == len(capture.frames)
    assert capture.engine.drops() == 0


@pytest.mark.parametrize(("iface", "end"), [("server0", 1), ("any", 0)])
def test_between_two_machines_every_request_is_seen_once_at_either_end(
    iface: str, end: int, joined: tuple[str, str]
) -> None:
    wanted = bodies(60)
    for address in (SERVER, SERVER_6):
        with ExitStack() as stack:
            with inside(joined[1]):
                server = stack.enter_context(serving(address, 8000))
            with inside(joined[end]):
                capture = stack.enter_context(capturing(iface, 8000))
            with inside(joined[0]):
                send(address, 8000, wanted)
            with inside(joined[end]):
                capture.pump()
        assert_each_once(capture, wanted, server.bodies)


@pytest.mark.usefixtures("alone")
def test_an_upload_of_8_mb_arrives_whole() -> None:
    wanted = [b"".join(b"%08d" % number for number in range(MIB))]
    assert len(wanted[0]) == 8 * MIB
    for address in ("127.0.0.1", "::1"):
        with serving(address) as server:
            with capturing("lo", server.port, buffer_bytes=64 * MIB) as capture:
                send(address, server.port, wanted)
                seen = capture.pump()
            assert seen == wanted
            assert server.bodies == [*wanted, THE_END]
        assert max(map(len, capture.frames)) > 65_535, "lo's longest are 65,549 bytes"
        assert (capture.losses.truncated, capture.losses.gaps) == (0, 0)


@pytest.mark.parametrize("iface", ["lo", "any"])
@pytest.mark.usefixtures("alone")
def test_what_the_kernel_drops_is_counted_to_the_frame(iface: str) -> None:
    wanted = bodies(120, size=60_000)  # 7 MB that nobody reads
    with (
        serving() as server,
        capturing(iface, server.port, buffer_bytes=64 * MIB) as truth,
        capturing(iface, server.port, buffer_bytes=64 * 1024) as small,
    ):
        send("127.0.0.1", server.port, wanted)
        assert Counter(truth.pump()) == Counter(wanted)
        truth.pump_rest()
        small.pump_rest()
    assert truth.engine.drops() == 0
    assert small.engine.drops() > 0
    assert len(small.frames) + small.engine.drops() == len(truth.frames)
    # of a request whose body is lost nothing is told, however many such there are
    told = Counter(filter(None, small.bodies))
    assert not told - Counter([*wanted, THE_END]), "no body is made up"


@pytest.mark.parametrize("iface", ["server0", "any"])
def test_tags_and_fragments_reach_the_streams(iface: str, joined: tuple[str, str]) -> None:
    talk = packets.Conversation(client=CLIENT, server=SERVER)

    def packet(data: bytes, flags: int = packets.PSH | packets.ACK) -> bytes:
        made = talk.packet(True, data, flags=flags)
        talk.next[True] += len(data) + bool(flags & packets.SYN)
        return made

    wire = [
        packets.ethernet(packet(b"", packets.SYN)),
        packets.ethernet(packet(b"POST / HTTP/1.1\r\n"), vlans=[7]),
        packets.ethernet(packet(b"content-length: 3000\r\n\r\n"), vlans=[7, 8]),
        *(
            packets.ethernet(part)
            for part in packets.ipv4_fragments(packet(b"x" * 3000)[20:], 1480, CLIENT, SERVER)
        ),
        packets.ethernet(packet(packets.post(THE_END))),
    ]
    with ExitStack() as stack:
        with inside(joined[1]):
            capture = stack.enter_context(capturing(iface, 8000))
        with inside(joined[0]), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire_end:
            wire_end.bind(("client0", 0))
            for frame in wire:
                wire_end.send(frame)
        with inside(joined[1]):
            assert capture.pump() == [b"x" * 3000]
    assert capture.losses.gaps == 0
