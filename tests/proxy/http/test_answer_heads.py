import time

import pytest
from support.fronting import NotedDesk

from toolkit.proxy.http.answer_heads import CLOSE, answer_head, date_line, has_body
from toolkit.proxy.http.front import Front
from toolkit.proxy.settings import FrontSetting


def test_the_date_is_that_of_the_rfc() -> None:
    # RFC 9110, 5.6.7: 1994-11-06 08:49:37 is 784,111,777 s after 1970
    assert date_line(784_111_777) == b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"


def test_the_date_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(NotedDesk(), FrontSetting())
    for now, shown in ((784_111_777.0, b"37"), (784_111_777.9, b"37"), (784_111_778.0, b"38")):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert front.date() == b"date: Sun, 06 Nov 1994 08:49:%b GMT\r\n" % shown


def test_a_head_is_its_lines_in_order() -> None:
    head = answer_head(
        200,
        [(b"content-type", b"text/plain"), (b"x", b"")],
        date=b"date: d\r\n",
        body=b"content-length: 2\r\n",
        connection=CLOSE,
    )
    assert head == (
        b"HTTP/1.1 200 OK\r\ndate: d\r\ncontent-type: text/plain\r\nx: \r\n"
        b"content-length: 2\r\nconnection: close\r\n\r\n"
    )


def test_a_status_that_nobody_named_has_a_line_all_the_same() -> None:
    assert answer_head(599, [], date=b"") == b"HTTP/1.1 599 \r\n\r\n"


@pytest.mark.parametrize("byte", [b"\r", b"\n", b"\r\n", b"\0"])
def test_a_break_in_a_name_or_a_value_is_no_break(byte: bytes) -> None:
    value = answer_head(200, [(b"x", b"a" + byte + b"y: b")], date=b"")
    name = answer_head(200, [(b"x" + byte + b"y", b"b")], date=b"")
    for head in (value, name):
        assert head.count(b"\r\n") == 3
        assert head.count(b"\n") == head.count(b"\r") == 3
        assert b"\0" not in head


def test_which_answers_have_a_body() -> None:
    assert [status for status in (100, 101, 200, 201, 204, 206, 304, 400, 500) if has_body(status)] == [
        *(200, 201, 206, 400, 500)
    ]  # fmt: skip
