"""Which two requests share a stored answer, and which must never: each row worked out by hand, asked of one started proxy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client, request
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, answer, server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FIELDS = json.loads(
    (Path(__file__).parents[2] / "data" / "vllm-0.32.0-request-fields.json").read_text()
)["schemas"]
HI = b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}]'
"""A chat without its last brace."""
SETTINGS = '[cache]\ninert = ["user"]\n'


def ask(more: str = "", text: str = "Hi") -> bytes:
    """A chat that asks this, and more fields."""
    said = f'{{"model":"tiny","messages":[{{"role":"user","content":"{text}"}}]'
    return (said + ("," + more if more else "") + "}").encode()


def tool(parameters: str) -> bytes:
    function = f'{{"name":"f","parameters":{parameters}}}'
    return ask(f'"tools":[{{"type":"function","function":{function}}}]')


def parts(one: str) -> bytes:
    said = f'[{{"type":"text","text":"Hi"}},{one}]'
    return f'{{"model":"tiny","messages":[{{"role":"user","content":{said}}}]}}'.encode()


def image(data: str) -> bytes:
    return parts(
        f'{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}","detail":"low"}}}}'
    )


SHARED: dict[str, tuple[bytes, bytes]] = {
    "itself": (ask(), ask()),
    "spaces": (ask(), b' {"model" : "tiny", "messages": [ {"role":"user", "content":"Hi"} ] }'),
    "lines": (ask(), HI.replace(b",", b",\r\n\t") + b"\n}\n"),
    "order of fields": (
        ask('"seed":1'),
        b'{"seed":1,"messages":[{"role":"user","content":"Hi"}],"model":"tiny"}',
    ),
    "order in a message": (
        ask(),
        b'{"model":"tiny","messages":[{"content":"Hi","role":"user"}]}',
    ),
    "order in a part": (
        parts('{"type":"text","text":"a"}'),
        parts('{"text":"a","type":"text"}'),
    ),
    "1 and 1.0": (ask('"temperature":1'), ask('"temperature":1.0')),
    "0 and 0.0": (ask('"temperature":0'), ask('"temperature":0.0')),
    "0 and -0.0": (ask('"temperature":0'), ask('"temperature":-0.0')),
    "1 and 1e0": (ask('"top_p":1'), ask('"top_p":1e0')),
    "100 and 1E2": (ask('"max_tokens":100'), ask('"max_tokens":1E2')),
    "0.5 and 5e-1": (ask('"top_p":0.5'), ask('"top_p":5e-1')),
    "0.5 and 0.50": (ask('"top_p":0.5'), ask('"top_p":0.50')),
    "an escaped letter": (ask(text="Hi A"), ask(text="Hi \\u0041")),
    "an escaped accent": (ask(text="Hi é"), ask(text="Hi \\u00e9")),
    "an escaped accent, in capitals": (ask(text="Hi é"), ask(text="Hi \\u00E9")),
    "an escaped smile": (ask(text="Hi 😀"), ask(text="Hi \\ud83d\\ude00")),
    "an escaped slash": (ask(text="Hi /"), ask(text="Hi \\/")),
    "an escaped tab": (ask(text="Hi \\t"), ask(text="Hi \\u0009")),
    "an escaped key": (ask('"seed":1'), ask('"se\\u0065d":1')),
    "an escape in a tool": (tool('{"title":"é"}'), tool('{"title":"\\u00e9"}')),
    "spaces in a tool": (tool('{"a":[1,2]}'), tool('{ "a" : [1, 2] }')),
    "no stream": (ask(), ask('"stream":false')),
    "stream of null": (ask(), ask('"stream":null')),
    "shown as a stream": (ask(), ask('"stream":true')),
    "shown as a whole": (ask('"stream":true'), ask()),
    "usage of a stream": (
        ask('"stream":true'),
        ask('"stream":true,"stream_options":{"include_usage":true}'),
    ),
    "an ignored field": (ask(), ask('"user":"a"')),
    "an ignored field's value": (ask('"user":"a"'), ask('"user":{"b":[1]}')),
    "order of tokens": (ask('"logit_bias":{"1":2,"3":4}'), ask('"logit_bias":{"3":4,"1":2}')),
    "numbers of tokens": (ask('"logit_bias":{"1":2}'), ask('"logit_bias":{"1":2.0}')),
    "numbers in a list": (ask('"stop_token_ids":[1,2]'), ask('"stop_token_ids":[ 1, 2 ]')),
}
DIFFERENT: dict[str, tuple[bytes, bytes]] = {
    "model": (ask(), ask().replace(b"tiny", b"Tiny")),
    "text": (ask(), ask(text="Hi!")),
    "a capital": (ask(text="Hi a"), ask(text="Hi A")),
    "a space behind": (ask(), ask(text="Hi ")),
    "a space before": (ask(), ask(text=" Hi")),
    "two spaces": (ask(text="Hi a"), ask(text="Hi  a")),
    "a line's end": (ask(text="Hi\\n"), ask(text="Hi\\r\\n")),
    "an accent of two characters": (ask(text="Hi \\u00e9"), ask(text="Hi e\\u0301")),
    "a space that does not break": (ask(text="Hi a"), ask(text="Hi\\u00a0a")),
    "nothing that is seen": (ask(), ask(text="Hi\\u200b")),
    "a zero byte": (ask(), ask(text="Hi\\u0000")),
    "an escape of an escape": (ask(text="Hi \\n"), ask(text="Hi \\\\n")),
    "role": (ask(), ask().replace(b"user", b"system")),
    "name in a message": (ask(), ask().replace(b'"role"', b'"name":"a","role"')),
    "another message": (
        ask(),
        ask().replace(b"[{", b'[{"role":"system","content":"a"},{'),
    ),
    "order of messages": (
        b'{"model":"tiny","messages":[{"role":"user","content":"Hi"},{"role":"user","content":"a"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"a"},{"role":"user","content":"Hi"}]}',
    ),
    "text in parts": (ask(), ask().replace(b'"Hi"', b'[{"type":"text","text":"Hi"}]')),
    "another part": (parts('{"type":"text","text":"a"}'), parts('{"type":"text","text":"b"}')),
    "image": (image("AAAA"), image("AAAB")),
    "detail of an image": (image("AAAA"), image("AAAA").replace(b"low", b"high")),
    "order of stops": (ask('"stop":["a","b"]'), ask('"stop":["b","a"]')),
    "one stop in a list": (ask('"stop":"a"'), ask('"stop":["a"]')),
    "null and nothing": (ask(), ask('"temperature":null')),
    "null and 0": (ask('"temperature":null'), ask('"temperature":0')),
    "0 and nothing": (ask(), ask('"temperature":0')),
    "0 and false": (ask('"logprobs":0'), ask('"logprobs":false')),
    "1 and true": (ask('"logprobs":1'), ask('"logprobs":true')),
    "1 and a text of it": (ask('"seed":1'), ask('"seed":"1"')),
    "nothing and an empty text": (ask(), ask('"stop":""')),
    "nothing and an empty list": (ask(), ask('"stop":[]')),
    "nothing and an empty object": (ask(), ask('"chat_template_kwargs":{}')),
    "an empty list and an object": (ask('"stop":[]'), ask('"stop":{}')),
    "neighbours": (ask('"temperature":0.1'), ask('"temperature":0.10000000000000002')),
    "long seeds": (ask('"seed":9007199254740993'), ask('"seed":9007199254740992')),
    "longest seeds": (ask('"seed":18446744073709551615'), ask('"seed":18446744073709551614')),
    "tokens": (ask('"logit_bias":{"1":2}'), ask('"logit_bias":{"1":3}')),
    "order in a tool": (tool('{"a":1,"b":2}'), tool('{"b":2,"a":1}')),
    "order deep in a tool": (
        tool('{"properties":{"a":{},"b":{}}}'),
        tool('{"properties":{"b":{},"a":{}}}'),
    ),
    "a number in a tool": (tool('{"default":1}'), tool('{"default":1.0}')),
    "a tool": (tool('{"a":1}'), ask()),
    "order of a schema": (
        ask('"response_format":{"type":"json_schema","json_schema":{"schema":{"a":1,"b":2}}}'),
        ask('"response_format":{"type":"json_schema","json_schema":{"schema":{"b":2,"a":1}}}'),
    ),
    "order of a guided schema": (
        ask('"structured_outputs":{"json":{"a":1,"b":2}}'),
        ask('"structured_outputs":{"json":{"b":2,"a":1}}'),
    ),
    "a template's argument": (
        ask('"chat_template_kwargs":{"enable_thinking":true}'),
        ask('"chat_template_kwargs":{"enable_thinking":false}'),
    ),
    "a salt": (ask('"cache_salt":"a"'), ask('"cache_salt":"b"')),
    "a field that nobody knows": (ask(), ask('"novel":1')),
    "metadata, which nobody called inert": (ask(), ask('"metadata":{"user":"a"}')),
    "a key's case": (ask('"seed":1'), ask('"Seed":1')),
    "a field inside a message": (ask(), ask().replace(b'"role"', b'"seed":1,"role"')),
    "users inside a message": (
        ask().replace(b'"role"', b'"user":"a","role"'),
        ask().replace(b'"role"', b'"user":"b","role"'),
    ),
}
REFUSED = {
    "equal keys": ask('"seed":1,"seed":2'),
    "equal keys, one escaped": ask('"seed":1,"se\\u0065d":2'),
    "equal keys in a tool": tool('{"a":1,"a":2}'),
    "NaN": ask('"temperature":NaN'),
    "Infinity": ask('"temperature":Infinity'),
    "1e999": ask('"temperature":1e999'),
    "a longer integer": ask('"seed":18446744073709551616'),
    "half a pair": ask(text="Hi \\ud83d"),
    "no UTF-8": HI[:-3] + b'\xff"}]}',
    "a comment": ask('"seed":1 /* a */'),
    "a last comma": HI + b",}",
    "two values": ask() + ask(),
    "a list": b"[" + ask() + b"]",
    "65 levels": ask(f'"a":{"[" * 65}{"]" * 65}'),
}
"""What two readers may read as two requests has no key, and nobody is asked for it."""
ENDPOINTS = {
    CHAT: ("ChatCompletionRequest", {"messages": [{"role": "user", "content": "Hi"}]}),
    TEXT: ("CompletionRequest", {"prompt": "Hi"}),
    "/v1/responses": ("ResponsesRequest", {"input": "Hi"}),
    "/v1/messages": (
        "AnthropicMessagesRequest",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    ),
}
VIEWS = {"stream", "stream_options", "user"}
"""Ways to look at an answer, and what these settings call inert."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Server]:
    """Never says the same twice."""
    count = 0

    def tell(asked: Asked) -> None:
        nonlocal count
        count += 1
        said = f"answer {count}"
        head = {"id": said, "created": 5, "model": "tiny"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        end: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if json.loads(asked.body).get("stream") is True:
            head["object"] = "chat.completion.chunk"
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": said}]
            chunks = [
                {"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas
            ]
            chunks += [{"choices": [end | {"delta": {}}]}, {"choices": [], "usage": usage}]
            events = "".join(f"data: {json.dumps(head | each)}\n\n" for each in chunks)
            asked.send(answer(events + "data: [DONE]\n\n", content_type="text/event-stream"))
            return
        message = {"role": "assistant", "content": said}
        bodies: dict[str, dict[str, Any]] = {
            CHAT: {"object": "chat.completion", "choices": [end | {"message": message}]},
            TEXT: {"object": "text_completion", "choices": [end | {"text": said}]},
            "/v1/responses": {"object": "response", "status": "completed", "output": []},
            "/v1/messages": {
                "type": "message",
                "content": [{"type": "text", "text": said}],
                "stop_reason": "end_turn",
            },
        }
        path = asked.path.partition("?")[0]
        asked.send(
            answer(head | bodies.get(path, {"data": [{"embedding": [count]}]}) | {"usage": usage})
        )

    with server({"*": tell}) as running:
        yield running


@pytest.fixture(scope="module")
def caching(upstream: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy(upstream.url, SETTINGS, cwd=tmp_path_factory.mktemp("proxy")) as running:
        yield running


def alone(body: bytes, number: int) -> bytes:
    """The same request of this pair's own."""
    return body.replace(b"Hi", b"Hi%d" % number)


def test_equal_requests_share_one_answer_and_no_others_do(caching: Proxy, upstream: Server) -> None:
    wrong = []
    with Client(caching.url) as client:
        for number, (name, pair) in enumerate({**SHARED, **DIFFERENT}.items()):
            shares = name in SHARED
            before = len(upstream.asked)
            first, second = (client.ask(alone(each, number)) for each in pair)
            asked = len(upstream.asked) - before
            again = client.ask(alone(pair[1], number))
            good = first.status == second.status == again.status == 200 and again.is_hit
            good = good and (first.text == second.text) is shares and second.text == again.text
            if not good or asked != (1 if shares else 2) or second.is_hit is not shares:
                wrong.append((name, asked, first, second, again))
    assert wrong == []


def test_what_may_be_read_in_two_ways_is_asked_of_nobody(caching: Proxy, upstream: Server) -> None:
    before = len(upstream.asked)
    with Client(caching.url) as client:
        told = {name: client.ask(body).status for name, body in REFUSED.items()}
    assert set(told.values()) == {400}, told
    assert len(upstream.asked) == before


def test_every_field_of_vllm_s_requests_divides_answers(caching: Proxy, upstream: Server) -> None:
    wrong = []
    for place, (path, (schema, base)) in enumerate(ENDPOINTS.items()):
        with Client(caching.url) as client:
            for number, field in enumerate(sorted(set(FIELDS[schema]) - VIEWS - {"model"})):
                plain = json.dumps({"model": "tiny", **base}).encode()
                plain = alone(plain, 10_000 * (place + 1) + number)
                others = [json.dumps(json.loads(plain) | {field: each}).encode() for each in "ab"]
                before = len(upstream.asked)
                for each in (plain, *others):
                    reply = client.ask(each, path=path)
                    if reply.status != 200 or reply.is_hit:
                        wrong.append((path, field, reply))
                if len(upstream.asked) - before != 3:
                    wrong.append((path, field, "asked", len(upstream.asked) - before))
                if not client.ask(plain, path=path).is_hit:
                    wrong.append((path, field, "was not stored at all"))
    assert wrong == []


def test_a_path_a_query_and_headers(caching: Proxy, upstream: Server) -> None:
    with Client(caching.url) as client:
        both = json.dumps(
            {"model": "tiny", "prompt": "Hi", "messages": [{"content": "Hi", "role": "user"}]}
        )
        every = [client.ask(both.encode(), path=path) for path in (CHAT, TEXT, "/v1/messages")]
        assert [each.is_hit for each in every] == [False] * 3
        embedded = [
            client.ask({"model": "tiny", "input": "Hi"}, path=path)
            for path in ("/v1/embeddings", "/v1/score", "/v1/embeddings")
        ]
        assert [each.is_hit for each in embedded] == [False, False, True]
        body = alone(ask(), 77_777)
        assert not client.ask(body).is_hit
        asked = len(upstream.asked)
        # what a query holds is in no key
        assert not client.ask(body, path=f"{CHAT}?a=1").is_hit
        assert not client.ask(body, path=f"{CHAT}?a=1").is_hit
        assert len(upstream.asked) == asked + 2
        for lines in (
            ["Accept: text/html", "User-Agent: a"],
            ["X-Request-Id: a1"],
            ["traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
            ["Content-Type: application/json; charset=utf-8"],
            ["Authorization: Bearer whoever"],
        ):
            assert client.ask(body, headers=lines).is_hit, lines
        client.send(
            request(
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), headers=["Transfer-Encoding: chunked"]
            )
        )
        assert client.reply().is_hit
        assert len(upstream.asked) == asked + 2
