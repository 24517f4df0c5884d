"""What a worker tells the owner of a request: every byte that counts, and no key."""

import base64

import pytest

from toolkit.proxy.headers import wishes
from toolkit.proxy.processes.relay_header import NAME, Relayed, header, read

HEADERS = [
    (b"host", b"h"),
    (b"authorization", b"Bearer sk-secret"),
    (b"content-type", b"application/json; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"max-age=5"),
    (b"x-toolkit-cache", b"\xff\xfe"),
    (b"x-toolkit-relay", b"forged"),
    (b"connection", b"traceparent"),
    (b"traceparent", b"00-aa-bb-01"),
    (b"cookie", b"a=b"),
]


def relayed(**more: object) -> Relayed:
    told = {"team": "red", "arrived_s": 12.345678901, "request_id": "r-1", "headers": HEADERS}
    return Relayed(**(told | more))  # type: ignore[arg-type]


def test_what_is_told_is_read_again_byte_for_byte() -> None:
    name, value = header(relayed(peer="::1", looks=True))
    assert name == NAME
    found = read(value)
    assert found is not None
    assert (found.team, found.arrived_s, found.request_id) == ("red", 12.345678901, "r-1")
    assert (found.peer, found.looks) == ("::1", True)
    assert found.headers == [HEADERS[2], *HEADERS[3:6], HEADERS[7], HEADERS[8]]
    assert wishes(found.headers) == wishes(HEADERS)


def test_no_key_and_no_cookie_is_told() -> None:
    _, value = header(relayed())
    text = base64.b64decode(value)
    assert b"secret" not in text
    assert b"a=b" not in text
    assert b"forged" not in text


def test_nobodys_team_is_nobodys() -> None:
    found = read(header(relayed(team=None))[1])
    assert found is not None
    assert found.team is None


def test_a_value_is_one_line_of_visible_characters() -> None:
    odd = [(b"cache-control", bytes(range(256)))]
    _, value = header(relayed(headers=odd, request_id="x\r\ny"))
    assert all(0x21 <= each <= 0x7E for each in value)
    found = read(value)
    assert found is not None
    assert found.headers == odd


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"!!!",
        b"eyJ0ZWFt",
        base64.b64encode(b"[]"),
        base64.b64encode(b"{}"),
        base64.b64encode(b'{"team":"red"}'),
        base64.b64encode(
            b'{"team":"r","arrived_s":1,"id":"x","headers":[1],"peer":"","looks":false}'
        ),
    ],
)
def test_what_no_worker_said_is_nothing(value: bytes | None) -> None:
    assert read(value) is None
