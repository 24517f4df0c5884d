"""Which two requests share a stored answer, and which must never: each row worked out by hand, asked of one started proxy."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client, Reply, request
from contract.harness.engines import Engine, serving
from contract.harness.programs import until
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
    "a mark of bytes' order": b"\xef\xbb\xbf" + ask(),
    "UTF-16": ask().decode().encode("utf-16"),
    "other quotes": ask().replace(b'"', b"'"),
    "nothing": b"",
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
ABSENT = object()
VALUES: list[Any] = [
    *(ABSENT, None, False, True, 0, 1, -1, 2, 2**53, 2**53 + 1, 2**63, 2**64 - 1, 0.5, 1e-9, 1e300),
    *("", " ", "a", "A", "a ", "\u00e9", "e\u0301", "0", "1", "true", "null", "0.5", "[]", "{}"),
    *([], [None], [0], [False], [[]], [{}], ["a"], ["a", "b"], ["b", "a"], ["ab"], [0, 1], [1, 0]),
    *({}, {"a": None}, {"a": 0}, {"a": False}, {"a": 1}, {"b": 1}, {"a": {"b": 1}}, {"a": [1]}),
    *([{"a": 1}], [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}], {"a": {"stream": True}}, {"a": {}}),
]  # fmt: skip
"""No two of these mean the same to a server."""
LARGE: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": 'Be kind \U0001f600 \u2028 " \\ / : {'},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ann"},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ],
    "logit_bias": {"17": -100, "18": 50},
    "stop": ["a", "hh"],
    "temperature": 0,
    "seed": 42,
    "n": 2,
    "metadata": "ann",
}
ODD_VIEWS: list[dict[str, Any]] = [
    {"stream": "true"},
    {"stream": 1},
    {"stream": []},
    {"stream": False, "stream_options": {"include_usage": True}},
    {"stream_options": {}},
    {"stream": True, "stream_options": {"include_usage": 1}},
    {"stream": True, "stream_options": {"of_a_later_version": True}},
    {"stream": True, "stream_options": [True]},
    {"stream": True, "stream_options": "include_usage"},
]
TEAMS = "".join(
    f'[[team]]\nname = "{name}"\nkey_env = "{name.upper()}"\n{more}'
    for name, more in (
        ("red", ""),
        ("blue", ""),
        ("ann", 'pool = "red"\n'),
        ("ben", 'pool = "red"\n'),
    )
)
KEYS = {name.upper(): f"key-of-{name}" for name in ("red", "blue", "ann", "ben")}


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


def spelled(value: Any, chance: random.Random) -> str:
    """A value as some writer may spell it: order of keys, spaces, escapes, integers as floats."""
    gap = chance.choice(["", "", " ", "\n\t"])
    if isinstance(value, dict):
        names = chance.sample(list(value), len(value))
        pairs = (f"{spelled(each, chance)}{gap}:{spelled(value[each], chance)}" for each in names)
        return "{" + gap + f",{gap}".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + f"{gap},".join(spelled(each, chance) for each in value) + gap + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=chance.random() < 0.5).replace("h", "\\u0068")
    if type(value) is int:
        return chance.choice([f"{value}", f"{value}.0", f"{value * 10}e-1"])
    return json.dumps(value)


def mutated(value: Any) -> Iterator[Any]:
    """Everything that one small change makes of a value: another leaf, an element less, doubled or moved, a key renamed or gone."""
    if isinstance(value, dict):
        for each, inner in value.items():
            rest = {key: kept for key, kept in value.items() if key != each}
            yield rest
            yield {**rest, each + "x": inner}
            for changed in mutated(inner):
                yield {**value, each: changed}
    elif isinstance(value, list):
        yield [value]
        for place, inner in enumerate(value):
            rest = [*value[:place], *value[place + 1 :]]
            yield rest
            yield [*value[: place + 1], *value[place:]]
            if place:
                yield [inner, *rest]
            for changed in mutated(inner):
                yield [*value[:place], changed, *value[place + 1 :]]
    elif isinstance(value, str):
        yield from (value + " ", value + "x", value.upper() + "_", None)
    else:
        yield from (value + 1, value + 0.5, -value - 3, str(value), [value], None, bool(value))


def test_no_value_is_taken_for_another_and_no_small_change_for_none(
    caching: Proxy, upstream: Server
) -> None:
    """Of a field that is known, of one that is not, and anywhere in a large request; and every spelling of that is itself."""
    asked_for: dict[str, dict[str, Any]] = {}
    for field in ("temperature", "of_a_later_version"):
        for value in VALUES:
            more = {} if value is ABSENT else {field: value}
            body = json.loads(alone(ask(), 88_888)) | {"max_tokens": 5, "for": field} | more
            asked_for[json.dumps(body, sort_keys=True)] = body
    for body in (LARGE, *mutated(LARGE)):
        # without messages it is no chat, and nothing of it is stored
        if isinstance(body.get("messages"), list):
            asked_for[json.dumps(body, sort_keys=True)] = body
    assert len(asked_for) > 200
    before = len(upstream.asked)
    with Client(caching.url) as client:
        hits = [body for body in asked_for.values() if client.ask(body).is_hit]
        assert hits == []
        assert len(upstream.asked) == before + len(asked_for)
        chance = random.Random(6)
        spellings = {spelled(LARGE, chance) for _ in range(100)}
        assert len(spellings) == 100
        told = {client.ask(LARGE).text}
        told |= {client.ask(text.encode()).text for text in spellings}
        assert len(told) == 1
    assert len(upstream.asked) == before + len(asked_for)


def test_a_stream_and_a_whole_are_one_answer_only_where_one_can_be_made_of_the_other(
    caching: Proxy, upstream: Server
) -> None:
    with Client(caching.url) as client:

        def is_asked(body: dict[str, Any], path: str = CHAT) -> bool:
            before = len(upstream.asked)
            assert client.ask(body, path=path).status == 200
            return len(upstream.asked) > before

        for number, path in enumerate(
            ("/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score")
        ):
            base = ENDPOINTS.get(path, ("", {"input": "Hi"}))[1]
            body = {"model": "tiny", **base, "seed": 90_000 + number}
            views = [{}, {"stream": False}, {"stream": True}, {}]
            told = [is_asked(body | view, path) for view in views]
            assert told == [True, False, True, False], path
        # a field that one view alone tells parts them
        for field in ("echo", "prompt_logprobs"):
            body = {"model": "tiny", "prompt": "Hi", field: 1}
            told = [is_asked(body | {"stream": stream}, TEXT) for stream in (False, True, False)]
            assert told == [True, True, False], field
        # deeper it is a field like any other
        deep = [json.loads(ask()) | {"vllm_xargs": {"stream": v}} for v in (True, False, None)]
        assert [is_asked(body) for body in deep + deep] == [True] * 3 + [False] * 3
        # what nobody knows how to look at is nobody's else
        for number, view in enumerate(ODD_VIEWS):
            body = json.loads(ask()) | {"seed": 91_000 + number}
            assert [is_asked(body | view) for _ in range(2)] == [True, True], view


def test_an_answer_is_of_a_team_or_pool_and_nothing_but_its_key_says_whose(
    upstream: Server, tmp_path: Path
) -> None:
    with proxy(upstream.url, TEAMS, cwd=tmp_path, env=KEYS) as door, Client(door.url) as client:
        spoofs = [
            "x-team: red",
            "x-tenant: team:red",
            "openai-organization: red",
            "x-forwarded-user: red",
            "cookie: red",
            "x-api-key: key-of-red",
        ]
        for number, (path, (_, base)) in enumerate(ENDPOINTS.items()):
            body = {"model": "tiny", **base, "seed": 92_000 + number}

            def asked(
                team: str, body: dict[str, Any] = body, path: str = path, **more: Any
            ) -> Reply:
                return client.ask(body, path=path, key=f"key-of-{team}", **more)

            teams = ("red", "red", "blue", "ann", "ben", "blue", "red")
            told = [asked(team).is_hit for team in teams]
            assert told == [False, True, False, False, True, True, True], path
            assert asked("red").body != asked("blue").body != asked("ann").body
            # who it says it is makes it nobody else
            for more in ({"user": "red"}, {"team": "red"}, {"tenant": "team:red"}):
                assert asked("red", body | more).body != asked("blue", body | more).body
            assert asked("blue", headers=spoofs).body == asked("blue").body


def test_who_answers_the_model_is_a_part_of_it(tmp_path: Path) -> None:
    """By version, weights and settings; and another model's are none of this one's."""
    tiny, big = Engine(), Engine("b", "big")
    settings = '[cache]\nepoch = "change"\n[routing]\nlook = "50ms"\n'
    with (
        serving(tiny) as one,
        serving(big) as two,
        proxy([one.url, two.url], settings, cwd=tmp_path, probes=True) as door,
        Client(door.url) as client,
    ):

        def told(model: str) -> str:
            return client.ask({**json.loads(ask()), "model": model}).text

        others = told("big")
        for version in ("0.33.0", "0.34.0"):
            before = told("tiny")
            assert told("tiny") == before
            tiny.version = version
            tiny.restart()
            until(lambda before=before: told("tiny") != before)
            assert told("big") == others
