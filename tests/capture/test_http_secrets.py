"""Authorization, cookies and keys in a query never leave the parser: no object holds them, no output shows them."""

import gc

import pytest
from support.streams import Capture, post

SECRET = b"s3cret-pl4nted"
QUERY = b"an0ther-in-the-target"
HEADERS = (
    b"Authorization: Bearer " + SECRET,
    b"Cookie: session=" + SECRET,
    b"X-Api-Key: " + SECRET,
    b"Proxy-Authorization: Basic " + SECRET,
)


def holders(roots: list[object], needle: bytes) -> list[object]:
    """Everything reachable whose text or bytes hold the needle, by the collector's own graph and by slots."""
    found, seen, rows = [], set[int](), list(roots)
    while rows:
        thing = rows.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if isinstance(thing, bytes | bytearray):
            if needle in thing:
                found.append(thing)
        elif isinstance(thing, str):
            if needle.decode() in thing:
                found.append(thing)
        else:
            rows += [one for one in gc.get_referents(thing) if not is_code(one)]
    return found


def is_code(thing: object) -> bool:
    return type(thing).__name__ in (
        "module",
        "function",
        "code",
        "builtin_function_or_method",
        "type",
    )


def test_the_search_finds_what_is_kept() -> None:
    capture = Capture()
    capture.open()
    capture.client(post(b"the body of " + SECRET))
    assert holders([capture], SECRET)


@pytest.mark.parametrize("size", [10_000, 50, 1])
@pytest.mark.parametrize("follow", [False, True])
def test_a_secret_of_a_head_is_in_no_object_once_its_request_is_read(
    size: int, follow: bool
) -> None:
    capture = Capture(follow=follow)
    capture.open()
    path = b"/v1/x?api_key=" + QUERY
    for target in (path, b"http://user:" + QUERY + b"@h/v1/x"):
        capture.client(post(b"{}", *HEADERS, path=target), size=size)
    assert holders([capture], SECRET) == holders([capture], QUERY) == []
    capture.client(post(b"x" * 100, *HEADERS, path=path)[:-50], size=size)  # its head is read
    if not follow:
        assert [request.path for request in capture.requests] == ["/v1/x", "/v1/x"]
    assert holders([capture], SECRET) == []
    capture.streams.close()
    assert len(capture.requests) == 3
    assert holders([capture], SECRET) == holders([capture], QUERY) == []


@pytest.mark.parametrize("cut", [60, 100, 150])
def test_a_secret_of_a_damaged_head_is_in_no_object(cut: int) -> None:
    capture = Capture()
    capture.open()
    data = post(b"{}", *HEADERS, path=b"/v1/x?key=" + SECRET)
    capture.client(data[:cut])
    capture.lose(30)
    capture.client(data[cut + 30 :])
    capture.client(post(b"{}", *HEADERS, b"No colon " + SECRET))
    capture.wait(3)
    assert capture.problems == ["30 bytes lost"]
    assert capture.losses.unparsed == 1
    assert holders([capture], SECRET) == []
