"""A whole proxy in front of an upstream that dies anywhere in its answer: nothing half is kept, or looks whole."""

import json
import random

import pytest
from support.chat import chunk
from support.proxied import ANSWER, ASKED, Answer, proxied, whole
from support.proxy_calls import run
from support.scripted_upstream import Line, Script, ScriptedUpstream, streaming

SEED = 6
PLACES = 40
"""In each answer; all of them take a minute, and found no more."""
JSON = json.dumps(ANSWER).encode()
SSE = b"".join(
    b"data: %b\n\n" % each
    for each in (
        b'{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
        '{"id":"c","choices":[{"index":0,"delta":{"content":"Hé"},"finish_reason":null}]}'.encode(),
        b'{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b'{"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}',
        b"[DONE]",
    )
)
FINISHED = SSE.index(b'"stop"') + len(b'"stop"}]}')
"""From here on a stream without a length has all that a choice says: only that it ended is missing."""


def in_chunks(body: bytes) -> bytes:
    parts = [body[first : first + 50] for first in range(0, len(body), 50)]
    return b"".join(map(chunk, parts)) + b"0\r\n\r\n"


def framed(body: bytes, framing: str) -> bytes:
    kind = b"application/json" if body.startswith(b"{") else b"text/event-stream"
    if framing == "closing":
        return b"HTTP/1.0 200 OK\r\ncontent-type: %b\r\n\r\n%b" % (kind, body)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % kind
    if framing == "length":
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    return head + b"transfer-encoding: chunked\r\n\r\n" + in_chunks(body)


def cut_at(data: bytes, place: int) -> Script:
    async def play(line: Line) -> None:
        line.send(data[:place])
        line.close()

    return play


def looks_whole(answer: Answer) -> bool:
    return answer.status == 200 and answer.is_whole


@pytest.mark.parametrize("framing", ["length", "chunks", "closing"])
@pytest.mark.parametrize("body", [JSON, SSE], ids=["whole", "stream"])
def test_an_answer_that_dies_anywhere_is_not_kept_and_does_not_look_whole(
    body: bytes, framing: str
) -> None:
    is_stream = body is SSE
    data = framed(body, framing)
    start = data.index(b"\r\n\r\n") + 4
    places = random.Random(SEED).sample(range(len(data)), PLACES)
    # what closes after its last byte is whole, by whatever it is framed
    if framing == "closing":
        places = [place for place in places if not is_stream or place < start + FINISHED]

    async def test() -> None:
        async with ScriptedUpstream() as engine, proxied(engine) as proxy:
            for place in places:
                asked = ASKED | {"stream": is_stream, "seed": place}
                engine.script = cut_at(data, place)
                answer = await proxy.ask(asked)
                # behind its last event a stream has nothing more to lose
                is_all = is_stream and b"[DONE]" in answer.body
                assert is_all or not looks_whole(answer), (place, answer)
                engine.script = streaming() if is_stream else whole()
                again = await proxy.ask(asked)
                assert again.is_hit == is_all, place
            state = (await proxy.admin("/state")).json
            assert (state["flights"], state["slots"], state["busy"]) == (0, 0, 0)
            assert state["upstreams"][0]["in_flight"] == 0

    run(test())
