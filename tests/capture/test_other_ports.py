"""Other ports: named where a request line stands right behind TCP and IP, and not for bytes that only look alike."""

from collections.abc import Callable

import pytest
from support import packets
from support.packets import START, Frame, ethernet, ipv4, ipv6, tcp

from toolkit.capture.other_ports import http_ports

POST = b"POST /v1/chat/completions HTTP/1.1\r\n"


@pytest.mark.parametrize("packet", [ipv4, ipv6])
@pytest.mark.parametrize("options", [b"", bytes(12), bytes(40)])
@pytest.mark.parametrize("line", [POST, b"GET /metrics HTTP/1.1\r\n"])
def test_a_request_line_behind_its_headers_names_its_port(
    packet: Callable[[bytes], bytes], options: bytes, line: bytes
) -> None:
    frame = ethernet(packet(tcp(40000, 9000, 1, line, options=options)))
    assert list(http_ports(b"before" + frame + b"after", 10)) == [9000]
    assert list(http_ports(frame[14:], 10)) == [9000]


@pytest.mark.parametrize(
    "block",
    [
        b"",
        POST,
        b"x" * 19 + POST,
        bytes(200) + POST,
        b"E" * 200 + POST,
        ethernet(ipv4(tcp(40000, 9000, 1, b"say " + POST))),  # within a payload
        ethernet(ipv4(tcp(40000, 9000, 1, POST), protocol=17)),  # not TCP
        ethernet(ipv6(tcp(40000, 9000, 1, POST), protocol=17)),
    ],
)
def test_a_request_line_without_headers_before_it_names_none(block: bytes) -> None:
    assert list(http_ports(block, 10)) == []


def test_a_sample_is_enough() -> None:
    frames = [Frame(START, ethernet(ipv4(tcp(40000, 9000, 1, POST))))] * 50
    assert list(http_ports(packets.pcap(frames), 7)) == [9000] * 7
