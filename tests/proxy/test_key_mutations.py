"""No two requests that a server may answer differently share a stored answer; equal ones in other spelling do.

By the proxy's own way from a request to the name that its answer is stored by: route, verified team, body, view and generation.
The fields are those of vLLM's request schema; every value however deep is tried in tests/test_request_key_fields.py.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.proxy.case import Case
from toolkit.proxy.desk.answering import Answering
from toolkit.proxy.exchange import Request, Served
from toolkit.proxy.keyring import Keyring
from toolkit.proxy.routes import ANSWERS, Route, route
from toolkit.proxy.settings import CacheSetting, Settings, TeamSetting, UpstreamSetting
from toolkit.proxy.upstreams.generations import Generations

SCHEMAS: dict[str, list[str]] = json.loads(
    (Path(__file__).parent.parent / "data" / "vllm-0.32.0-request-fields.json").read_text()
)["schemas"]
PATHS = {
    "ChatCompletionRequest": "/v1/chat/completions",
    "CompletionRequest": "/v1/completions",
    "ResponsesRequest": "/v1/responses",
    "AnthropicMessagesRequest": "/v1/messages",
    "BatchChatCompletionRequest": "/v1/chat/completions/batch",
}
CHAT = PATHS["ChatCompletionRequest"]
VIEWS = {"stream", "stream_options"}
FIELDS = [(schema, field) for schema in PATHS for field in SCHEMAS[schema] if field not in VIEWS]
ABSENT = object()
VALUES: list[Any] = [
    *(ABSENT, None, False, True, 0, 1, -1, 2, 2**53, 2**53 + 1, 2**63, 2**64 - 1, 0.5, 1e-9, 1e300),
    *("", " ", "a", "A", "a ", "\u00e9", "e\u0301", "0", "1", "true", "null", "0.5", "[]", "{}"),
    *([], [None], [0], [False], [[]], [{}], ["a"], ["a", "b"], ["b", "a"], ["ab"], [0, 1], [1, 0]),
    *({}, {"a": None}, {"a": 0}, {"a": False}, {"a": 1}, {"b": 1}, {"a": {"b": 1}}, {"a": [1]}),
    *([{"a": 1}], [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}], {"a": {"stream": True}}, {"a": {}}),
]  # fmt: skip
"""No two of these mean the same to a server."""
PLAIN: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "temperature": 0,
    "max_tokens": 5,
}
UPSTREAMS = (UpstreamSetting(name="one", url="http://127.0.0.1:9"),)
TEAMS = {
    team.name: team
    for team in (
        *(TeamSetting(name="red"), TeamSetting(name="blue")),
        *(TeamSetting(name="ann", pool="red"), TeamSetting(name="ben", pool="red")),
    )
}
KEYS = Keyring((name, f"key-of-{name}") for name in TEAMS)


def understood(
    body: bytes, path: str = CHAT, *, team: str | None = None, epochs: dict[str, int] | None = None,
    inert: frozenset[str] = frozenset(), query: str = "", more: tuple[tuple[bytes, bytes], ...] = (),
) -> tuple[Case, str | None]:  # fmt: skip
    """A request as far as the proxy understands it before it looks for an answer, and what is wrong with it."""
    settings = Settings(upstreams=UPSTREAMS, cache=CacheSetting(inert=inert))
    found = route("POST", path, settings)
    assert isinstance(found, Route)
    headers = [(b"content-type", b"application/json"), *more]
    if team is not None:
        headers.append((b"authorization", b"Bearer key-of-" + team.encode()))
    request = Request(method="POST", path=path, query=query, headers=headers, body=body)
    nobody: Any = SimpleNamespace(is_gone=False, request=request)
    told = Case(request=request, reply=nobody, served=Served(ts=0.0), taken_s=0.0)
    told.endpoint = found.endpoint
    known = KEYS.team(request.header(b"authorization"))
    told.team = None if known is None else TEAMS[known]
    kit = SimpleNamespace(generation=Generations(epochs or {}).of)
    process: Any = SimpleNamespace(_settings=settings, _kit=kit)
    return told, Answering.understand(process, told)


def case(body: bytes, path: str = CHAT, **told: Any) -> Case:
    found, problem = understood(body, path, **told)
    assert problem is None, problem
    return found


def name(fields: dict[str, Any], path: str = CHAT, **told: Any) -> bytes:
    return case(json.dumps(fields).encode(), path, **told).name


def with_field(field: str, value: Any) -> dict[str, Any]:
    fields = {each: inner for each, inner in PLAIN.items() if each != field}
    return fields if value is ABSENT else {**fields, field: value}


def test_the_schemas_are_those_of_a_large_server() -> None:
    assert set(PATHS) == set(SCHEMAS)
    assert len(FIELDS) > 200


@pytest.mark.parametrize(("schema", "field"), FIELDS)
def test_every_value_of_every_field_has_a_name_of_its_own(schema: str, field: str) -> None:
    names = {name(with_field(field, value), PATHS[schema]) for value in VALUES}
    assert len(names) == len(VALUES)


@pytest.mark.parametrize("schema", list(PATHS))
def test_no_two_fields_share_a_name_for_one_value(schema: str) -> None:
    fields = [field for field in SCHEMAS[schema] if field not in VIEWS and field not in PLAIN]
    names = {name({**PLAIN, field: 1}, PATHS[schema]) for field in fields}
    names |= {name({**PLAIN, f"{field} ": 1}, PATHS[schema]) for field in fields}
    assert len(names) == 2 * len(fields)


def test_a_field_that_no_schema_knows_counts() -> None:
    names = {name({**PLAIN, "of_a_later_version": value}) for value in (0, 1, "1", None)}
    assert len(names | {name(PLAIN)}) == 5


def test_endpoint_team_model_and_epoch_each_make_another_name() -> None:
    combinations = [
        (endpoint, team, model, epoch)
        for endpoint in sorted(set(ANSWERS.values()))
        for team in (None, "red", "blue", "ann")
        for model in ("m", "n", "m@1", None)
        for epoch in (0, 1, 2)
    ]
    paths = {endpoint: path for path, endpoint in ANSWERS.items()}
    names = {
        name({**PLAIN, "model": model}, paths[endpoint], team=team, epochs={str(model): epoch})
        for endpoint, team, model, epoch in combinations
        if model is not None
    }
    # 9 endpoints, 4 teams, 3 models, 3 epochs
    assert len(names) == len(set(ANSWERS.values())) * 4 * 3 * 3


def test_an_epoch_of_another_model_changes_nothing() -> None:
    assert name(PLAIN, epochs={"m": 3}) == name(PLAIN, epochs={"m": 3, "n": 7})
    assert name(PLAIN, epochs={"m": 3}) != name(PLAIN, epochs={"m": 4})


@pytest.mark.parametrize("told", [{"user": "blue"}, {"team": "blue"}, {"tenant": "team:blue"}])
def test_who_a_request_says_it_is_makes_it_nobody_else(told: dict[str, Any]) -> None:
    # it is another request, but never the other team's
    assert name({**PLAIN, **told}, team="red") != name({**PLAIN, **told}, team="blue")
    assert name({**PLAIN, **told}, team="red") != name(PLAIN, team="blue")


def test_no_header_but_the_verified_key_moves_a_request_to_another_team() -> None:
    more = tuple(
        (header, b"blue")
        for header in (b"x-team", b"x-tenant", b"openai-organization", b"x-forwarded-user", b"cookie", b"x-api-key")
    )  # fmt: skip
    assert name(PLAIN, team="red", more=more) == name(PLAIN, team="red")
    assert name(PLAIN, team="red") != name(PLAIN, team="blue")


def test_a_pool_shares_and_one_named_like_a_team_does_not_with_it() -> None:
    assert name(PLAIN, team="ann") == name(PLAIN, team="ben")
    assert len({name(PLAIN, team=team) for team in (None, "red", "blue", "ann")}) == 4


def test_headers_that_go_nowhere_are_no_part_of_a_request() -> None:
    more = ((b"accept", b"text/event-stream"), (b"user-agent", b"x"), (b"x-request-id", b"1"))
    assert name(PLAIN, more=more) == name(PLAIN)


def test_one_with_a_query_is_never_stored_for_the_name_has_none() -> None:
    assert case(json.dumps(PLAIN).encode(), query="a=1").key is None


# --- views ---------------------------------------------------------------------------------------------


CROSSING_VIEWS: list[dict[str, Any]] = [
    {},
    {"stream": False},
    {"stream": None},
    {"stream": True},
    {"stream": True, "stream_options": None},
    {"stream": True, "stream_options": {}},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": False}},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]


@pytest.mark.parametrize("schema", ["ChatCompletionRequest", "CompletionRequest"])
def test_all_views_of_a_completion_have_one_name(schema: str) -> None:
    cases = [case(json.dumps({**PLAIN, **view}).encode(), PATHS[schema]) for view in CROSSING_VIEWS]
    assert len({each.key for each in cases}) == 1
    assert cases[0].key is not None


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score"])
def test_where_no_view_can_be_made_of_the_other_each_has_its_own_name(path: str) -> None:
    whole, also, stream = (
        name({**PLAIN, **view}, path) for view in ({}, {"stream": False}, {"stream": True})
    )
    assert whole == also != stream


@pytest.mark.parametrize("field", ["echo", "prompt_logprobs"])
def test_a_field_that_one_view_alone_tells_parts_the_views(field: str) -> None:
    whole, stream = ({**PLAIN, field: 1, "stream": stream} for stream in (False, True))
    assert name(whole, PATHS["CompletionRequest"]) != name(stream, PATHS["CompletionRequest"])


@pytest.mark.parametrize(
    "odd",
    [
        {"stream": "true"},
        {"stream": 1},
        {"stream": []},
        {"stream": False, "stream_options": {"include_usage": True}},
        {"stream_options": {}},
        {"stream": True, "stream_options": {"include_usage": 1}},
        {"stream": True, "stream_options": {"include_usage": "yes"}},
        {"stream": True, "stream_options": {"of_a_later_version": True}},
        {"stream": True, "stream_options": [True]},
        {"stream": True, "stream_options": "include_usage"},
    ],
)
def test_a_view_that_is_not_known_is_shared_with_nobody(odd: dict[str, Any]) -> None:
    assert case(json.dumps({**PLAIN, **odd}).encode()).key is None


def test_a_view_counts_like_any_field_where_it_stands_deeper() -> None:
    names = {name({**PLAIN, "vllm_xargs": {"stream": value}}) for value in (True, False, None)}
    assert len(names) == 3


# --- spelling ------------------------------------------------------------------------------------------


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


LARGE: dict[str, Any] = {
    "model": "m",
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
    "user": "ann",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(set(PATHS.values())))
def test_every_spelling_of_a_request_has_its_name(path: str) -> None:
    chance = random.Random(6)
    spellings = {spelled(LARGE, chance) for _ in range(100)}
    assert len(spellings) == 100
    assert {case(text.encode(), path).name for text in spellings} == {name(LARGE, path)}


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


def test_no_small_change_of_a_request_keeps_its_name_or_meets_another_change() -> None:
    changes = [LARGE, *mutated(LARGE)]
    distinct = {json.dumps(each, sort_keys=True) for each in changes}
    assert len(distinct) > 100
    assert len({name(each) for each in changes}) == len(distinct)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"a","prompt":"b"}',
        b'{"model":"m","messages":[{"role":"user","role":"system","content":"a"}]}',
        b'{"model":"m","mod\\u0065l":"n","prompt":"a"}',
        b'{"temperature":NaN}',
        b'{"temperature":Infinity}',
        b'{"seed":18446744073709551616}',
        b'{"seed":1e400}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"\xff"}',
        b'\xef\xbb\xbf{"prompt":"a"}',
        '{"prompt":"a"}'.encode("utf-16"),
        b'["prompt"]',
        b'{"prompt":"a"} {"prompt":"b"}',
        b'{"prompt":"a",}',
        b"{'prompt':'a'}",
        b'{"prompt":"a"/* */}',
        b'{"a":' + b"[" * 70 + b"]" * 70 + b"}",
        b"",
    ],
)
def test_what_two_readers_may_take_for_different_requests_has_no_name(body: bytes) -> None:
    told, problem = understood(body)
    assert problem is not None
    assert (told.name, told.key) == (b"", None)


# --- inert ---------------------------------------------------------------------------------------------


def test_a_field_is_left_out_only_where_settings_say_so_and_only_at_the_top() -> None:
    inert = frozenset({"user", "metadata"})
    told = {name({**PLAIN, "user": user, "metadata": {"a": user}}, inert=inert) for user in "ab"}
    assert told == {name(PLAIN, inert=inert)}
    assert name({**PLAIN, "user": "a"}) != name(PLAIN)
    deeper = {name({**PLAIN, "vllm_xargs": {"user": user}}, inert=inert) for user in "ab"}
    assert len(deeper) == 2


def test_a_salt_of_the_clients_own_parts_it_from_all_others() -> None:
    assert len({name({**PLAIN, "cache_salt": salt}) for salt in ("a", "b", None)}) == 3
