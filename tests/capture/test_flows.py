"""Streams: segments in any order and state -> the requests that were sent."""

from support.streams import Capture, post


def test_a_request_in_one_segment_is_whole() -> None:
    capture = Capture()
    capture.open()
    capture.client(post(b'{"a": 1}'))
    (request,) = capture.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/x", b'{"a": 1}')
