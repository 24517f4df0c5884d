"""Answers as bytes on the wire, from what a real vLLM said: whole, and as the chunks of a stream."""

from toolkit.capture.records import HttpAnswer

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = (
    OK + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def json_answer(body: bytes, head: bytes = OK) -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return head + b"content-type: application/json\r\n" + length + b"\r\n" + body


def events(body: bytes) -> list[bytes]:
    """A stream's events, each with its blank line."""
    return [event + b"\n\n" for event in body.split(b"\n\n") if event.strip()]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def streamed(body: bytes) -> list[bytes]:
    """As uvicorn sends it: a segment for the head, for each event, and for the end."""
    return [STREAM, *map(chunk, events(body)), b"0\r\n\r\n"]


def tokens(answer: HttpAnswer) -> tuple[int | None, int | None, int | None, str | None]:
    """What an answer tells of tokens: read, written, cached, and why it ended."""
    return (
        answer.prompt_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.finish_reason,
    )
