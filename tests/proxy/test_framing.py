import pytest
from support.fronting import get, post

from toolkit.proxy.config import FrontSetting
from toolkit.proxy.framing import Framed, Heads, RequestReader


def read(*parts: bytes, **limits: int) -> list[Framed | str]:
    """All that comes of these reads; after a refusal nothing is read."""
    reader = RequestReader(limits := FrontSetting(**limits), Heads(limits))
    found: list[Framed | str] = []
    for part in parts:
        reader.feed(part)
        while (one := reader.next()) is not None:
            found.append(one)
            if isinstance(one, str):
                return found
    return found


def reason(*parts: bytes, **limits: int) -> str:
    (found,) = read(*parts, **limits)
    assert isinstance(found, str)
    return found


CHUNKED = (
    b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: a\r\ntransfer-encoding: Chunked\r\n\r\n"
    b'3\r\n{"a\r\nA;x="y"\r\n": "bcdefg\r\n2 ;z\r\n"}\r\n000\r\nX-Sum: 1\r\n\r\n'
)
LENGTH = post(b'{"a": "b"}', "Authorization:  Bearer k \t", "X-Empty:")


def test_only_a_request_that_came_alone_and_in_one_read_has_its_bytes() -> None:
    def raws(*parts: bytes) -> list[bytes | None]:
        return [found.raw for found in read(*parts) if isinstance(found, Framed)]

    assert raws(LENGTH) == [LENGTH]
    assert raws(LENGTH, LENGTH) == [LENGTH, LENGTH]
    assert raws(LENGTH + LENGTH) == [None, None]
    assert raws(LENGTH[:20], LENGTH[20:]) == [None]
    assert raws(LENGTH[:-3], LENGTH[-3:]) == [None]
    assert raws(LENGTH + LENGTH[:20], LENGTH[20:]) == [None, None]
    assert raws(LENGTH + LENGTH[:-3], LENGTH[-3:], LENGTH) == [None, None, LENGTH]
    assert raws(b"\r\n" + LENGTH) == [None]
    assert raws(CHUNKED) == [None]


@pytest.mark.parametrize(
    "data",
    [
        get("/", version="1.0"),
        get("/", "Connection: keep-alive", version="1.0"),
        get("/", "Connection: close"),
        get("/", method="HEAD"),
        post(b"x" * (64 * 1024)),
    ],
)
def test_a_request_whose_answer_others_could_not_share_has_no_bytes(data: bytes) -> None:
    (found,) = read(data)
    assert isinstance(found, Framed)
    assert found.raw is None


def test_what_is_held_is_counted_until_a_request_is_whole() -> None:
    reader = RequestReader(limits := FrontSetting(), Heads(limits))
    head = post(b"x" * 10)[:-10]
    for part, held in ((head[:9], 9), (head[9:], 0), (b"xxxx", 4), (b"xxxxx", 9)):
        reader.feed(part)
        assert reader.next() is None
        assert reader.held_bytes == held
    reader.feed(b"x" + get("/")[:5])
    assert isinstance(reader.next(), Framed)
    assert reader.held_bytes == 5


def test_the_word_to_send_the_body_is_owed_once_and_only_while_nothing_of_it_came() -> None:
    data = post(b"{}", "Expect: 100-Continue")
    reader = RequestReader(limits := FrontSetting(), Heads(limits))
    reader.feed(data[:-2])
    assert reader.next() is None
    assert reader.owes_continue()
    assert not reader.owes_continue()
    reader.feed(data[-2:])
    assert isinstance(reader.next(), Framed)
    for part in (data, data[:-1]):
        reader = RequestReader(limits := FrontSetting(), Heads(limits))
        reader.feed(part)
        reader.next()
        assert not reader.owes_continue()


def test_chunks_may_be_small_or_many_but_not_both() -> None:
    head = get("/", "Transfer-Encoding: chunked", method="POST")
    crumb, last = b"1\r\nx\r\n", b"0\r\n\r\n"
    # 4,096 are free, and one more for each 16 bytes before: the last one of 4,369 has 4,368 / 16 = 273 of those
    assert isinstance(read(head + crumb * 4368 + last)[0], Framed)
    assert reason(head + crumb * 4369 + last) == "chunks"
    # 16 bytes each: as many as there is room for
    assert isinstance(read(head + (b"10\r\n" + b"x" * 16 + b"\r\n") * 5000 + last)[0], Framed)
