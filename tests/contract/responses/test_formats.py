"""One answer for who wants it whole, streamed, or streamed with its usage: each sees what vLLM itself sends in that form."""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client, ask, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import RECORDED, Asked, Server, server

PAIRS = RECORDED / "pairs"
NAMES = sorted(path.name.removesuffix(".request.json") for path in PAIRS.glob("*.request.json"))
ONE_FORM = [
    # of a prompt's logprobs and of an echo a stream tells less than a whole body
    *"chat_echo chat_prompt_logprobs text_echo text_echo_logprobs text_prompt_logprobs".split(),
    # of a call that its length cut off, vLLM streams the parts and gives its raw text whole
    *"chat_tool_auto chat_tool_cut".split(),
]
BOTH_FORMS = [name for name in NAMES if name not in ONE_FORM]
WITHOUT_USAGE = ["chat", "chat_logprobs", "chat_n2", "text"]
"""Of these vLLM was asked for a stream without its usage, too."""
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
STREAM = {"stream": True}
CHAT = "/v1/chat/completions"
Fields = dict[str, Any]
Case = tuple[bytes, bytes]
"""What the upstream says whole, and as a stream with its usage."""


class Upstream:
    """Answers a request with the case whose number it has as its seed, streams in reads of `cut` bytes."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.cut = 2**20
        self.server: Server
        self.log: Path
        """Of the proxy in front of it."""

    def add(self, whole: bytes, stream: bytes) -> int:
        self.cases.append((whole, stream))
        return len(self.cases) - 1

    def recorded(self, name: str) -> tuple[str, Fields]:
        """Path and body of a recorded request, which gets its recorded answers."""
        whole, stream = (PAIRS / f"{name}.json").read_bytes(), (PAIRS / f"{name}.txt").read_bytes()
        fields = json.loads((PAIRS / f"{name}.request.json").read_bytes())
        return fields.pop("path"), fields | {"seed": self.add(whole, stream)}

    def written(self, whole: bytes = b"", stream: bytes = b"") -> Fields:
        """A chat's body that gets these answers."""
        said = [{"role": "user", "content": "Hi"}]
        return {"model": "tiny", "messages": said, "seed": self.add(whole, stream)}

    def tell(self, asked: Asked) -> None:
        fields = json.loads(asked.body)
        whole, stream = self.cases[fields["seed"]]
        if not fields.get("stream"):
            head = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
            asked.send(b"HTTP/1.1 200 OK\r\n" + head + whole)
            return
        begin(asked)
        for first in range(0, len(stream), self.cut):
            send(asked, stream[first : first + self.cut])
        asked.send(b"0\r\n\r\n")


def begin(asked: Asked) -> None:
    kind = b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked"
    asked.send(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")


def send(asked: Asked, data: bytes) -> None:
    asked.send(b"%x\r\n%b\r\n" % (len(data), data))


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    mine = Upstream()
    with server({"*": mine.tell}) as running:
        mine.server = running
        yield mine


@pytest.fixture(scope="module")
def caching(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    upstream.log = folder / "log.jsonl"
    with proxy(upstream.server.url, '[tell]\nlog = "log.jsonl"\n', cwd=folder) as running:
        yield running


@pytest.fixture(autouse=True)
def _in_one_read(upstream: Upstream) -> Iterator[None]:
    yield
    upstream.cut = 2**20


def compared(body: Fields) -> Fields:
    """Without what differs between any two answers: their ids and times, a call's id, the white space in its arguments."""
    text = re.sub(r'"(chatcmpl|cmpl)-[-\w]+"', '"ID"', json.dumps(body))
    body = json.loads(text) | {"created": 0}
    for choice in body["choices"]:
        for call in choice.get("message", choice.get("delta", {})).get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    # a null that only a whole body's usage has; a stream tells what is not null
    (body.get("usage", {}).get("prompt_tokens_details") or {}).pop("multimodal_tokens", None)
    return body


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


ONCE = {"id", "object", "created", "model", "index", "role", "system_fingerprint", "prompt_text"}


def merge(whole: Fields, part: Fields) -> None:
    """Add a piece as OpenAI's rule for deltas has it: texts and lists grow, what has an index is merged by it."""
    for name, value in part.items():
        old = whole.get(name)
        if value is None or name in ONCE:
            whole[name] = value if old is None else old
        elif isinstance(value, dict):
            whole[name] = old or {}
            merge(whole[name], value)
        elif (
            isinstance(value, list) and value and isinstance(value[0], dict) and "index" in value[0]
        ):
            whole[name] = old or []
            for entry in value:
                same = [each for each in whole[name] if each["index"] == entry["index"]]
                if not same:
                    whole[name].append({})
                merge(same[0] if same else whole[name][-1], entry)
        elif isinstance(value, list | str):
            whole[name] = (old or type(value)()) + value
        else:
            whole[name] = value


def merged(body: bytes) -> Fields:
    """What a client holds at the end of a stream."""
    events = body.decode().removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    whole: Fields = {}
    for event in events[:-1]:
        merge(whole, json.loads(event.removeprefix("data: ")))
    whole["choices"].sort(key=lambda choice: choice["index"])
    return without_nulls(whole)


def own(body: bytes) -> bytes:
    """A stream without its ids and times."""
    return re.sub(rb'"id":"[^"]+"|"created":\d+', b"", body)


def recorded_stream(name: str) -> bytes:
    return (PAIRS / f"{name}.txt").read_bytes()


def test_a_stored_stream_is_given_whole_as_vllm_gives_it(
    caching: Proxy, upstream: Upstream
) -> None:
    wrong = []
    for name in BOTH_FORMS:
        path, body = upstream.recorded(name)
        first = ask(caching.url, body | USAGE, path=path)
        whole = ask(caching.url, body, path=path)
        recorded = json.loads((PAIRS / f"{name}.json").read_bytes())
        if first.body != recorded_stream(name) or not whole.is_hit:
            wrong.append((name, first, whole))
        # in the same order, too
        elif compared(whole.json) != compared(recorded) or list(whole.json) != list(recorded):
            wrong.append((name, whole, recorded))
        elif whole.headers["content-type"] != "application/json":
            wrong.append((name, whole.headers))
    assert wrong == []


def test_a_stored_body_is_streamed_so_that_it_comes_to_what_vllm_streams(
    caching: Proxy, upstream: Upstream
) -> None:
    wrong = []
    for name in BOTH_FORMS:
        path, body = upstream.recorded(name)
        first = ask(caching.url, body, path=path)
        usage, plain = (ask(caching.url, body | form, path=path) for form in (USAGE, STREAM))
        expected = compared(merged(recorded_stream(name)))
        if first.body != (PAIRS / f"{name}.json").read_bytes() or not (
            usage.is_hit and plain.is_hit
        ):
            wrong.append((name, first, usage, plain))
        elif compared(merged(usage.body)) != expected:
            wrong.append((name, merged(usage.body), expected))
        elif compared(merged(plain.body)) != {n: v for n, v in expected.items() if n != "usage"}:
            wrong.append((name, merged(plain.body), expected))
        elif usage.body.count(b"fingerprint") != recorded_stream(name).count(b"fingerprint"):
            wrong.append((name, "fingerprint", usage.body))
        elif usage.headers["content-type"] != "text/event-stream; charset=utf-8":
            wrong.append((name, usage.headers))
        # a role, the texts, their end: each choice ends once, and says so where it ends
        ends = [one for each in usage.events for one in each["choices"] if one["finish_reason"]]
        if len(ends) != len(expected["choices"]):
            wrong.append((name, ends))
    assert wrong == []


@pytest.mark.parametrize("cut", [2**20, 1, 7, 214, 1000])
def test_who_did_not_ask_for_the_usage_sees_byte_for_byte_what_vllm_sends_without_it(
    caching: Proxy, upstream: Upstream, cut: int
) -> None:
    upstream.cut = cut
    wrong = []
    for name in WITHOUT_USAGE:
        path, body = upstream.recorded(name)
        expected = own((PAIRS / f"{name}.nousage.txt").read_bytes())
        live, hit = (ask(caching.url, body | STREAM, path=path) for _ in range(2))
        sent = json.loads(upstream.server.asked[-1].body)
        if sent.get("stream_options") != {"include_usage": True}:
            wrong.append((name, sent))
        # of several choices only the last to end can wait for what the usage tells beside it
        if name != "chat_n2" and own(live.body) != expected:
            wrong.append((name, "live", live.body))
        if merged(live.body)["choices"] != merged(hit.body)["choices"] or "usage" in merged(
            live.body
        ):
            wrong.append((name, "live", live.body))
        if own(hit.body) != expected or not hit.is_hit:
            wrong.append((name, "hit", hit.body))
        usage, whole = (ask(caching.url, body | form, path=path) for form in (USAGE, {}))
        if usage.body != recorded_stream(name) or not (usage.is_hit and whole.is_hit):
            wrong.append((name, "with usage", usage, whole))
    assert wrong == []


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("cut", [2**20, 1, 100])
def test_whatever_ends_its_lines_a_stream_loses_nothing_but_the_usage(
    caching: Proxy, upstream: Upstream, line_end: bytes, cut: int
) -> None:
    upstream.cut = cut
    *tokens, usage, done = [each + b"\n\n" for each in recorded_stream("chat").split(b"\n\n")[:-1]]
    sent = b"".join((b": ping\n\n", *tokens[:2], b": a comment\nid: 7\n", *tokens[2:], usage, done))
    body = upstream.written(b"", sent.replace(b"\n", line_end))
    full, plain = (ask(caching.url, body | form) for form in (USAGE, STREAM))
    alone = ask(caching.url, body | STREAM | {"max_tokens": 9})
    # the very last line end may come when the end was read already
    assert (full.body + b"\n").startswith(sent.replace(b"\n", line_end))
    assert plain.is_hit
    assert not alone.is_hit
    for reply in (plain, alone):
        lines = re.sub(rb"\r\n|\r|\n", b"\n", reply.body).rstrip(b"\n") + b"\n\n"
        told = b',"system_fingerprint":"vllm-0.32.0-53336189"'
        assert lines.replace(told, b"") == sent.replace(usage, b"")
    whole = ask(caching.url, body)
    assert whole.is_hit
    assert whole.text == json.loads((PAIRS / "chat.json").read_bytes())["choices"][0]["message"]["content"]  # fmt: skip


@pytest.mark.parametrize("left", [b"", b"\n"])
def test_a_stream_that_ends_without_its_last_blank_line_is_complete_and_gets_one(
    caching: Proxy, upstream: Upstream, left: bytes
) -> None:
    sent = recorded_stream("chat")
    body = upstream.written(b"", sent.removesuffix(b"\n\n") + left)
    live, hit = (ask(caching.url, body | USAGE) for _ in range(2))
    assert (live.body, hit.body, hit.is_hit) == (sent, sent, True)


@pytest.mark.parametrize("name", ONE_FORM)
def test_what_only_one_form_tells_is_not_given_in_the_other(
    caching: Proxy, upstream: Upstream, name: str
) -> None:
    for first, second in ((USAGE, {}), ({}, USAGE)):
        path, body = upstream.recorded(name)
        before = len(upstream.server.asked)
        replies = [ask(caching.url, body | form, path=path) for form in (first, second, second)]
        assert [each.is_hit for each in replies] == [False, False, True]
        assert len(upstream.server.asked) - before == 2
        recorded = PAIRS / (f"{name}.txt" if second else f"{name}.json")
        assert replies[2].body == recorded.read_bytes()


def chunk(choices: Any, **more: Any) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    return b"data: %b\n\n" % json.dumps(head | {"choices": choices} | more).encode()


def delta(said: Any, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    return chunk([{"index": index, "delta": said, "finish_reason": finish, **more}])


COUNTS = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
ROLE, HELLO, STOP = delta({"role": "assistant", "content": ""}), delta({"content": "Hello"}), delta({}, "stop")  # fmt: skip
COUNTED, DONE = chunk([], usage=COUNTS), b"data: [DONE]\n\n"
CALL = delta({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]})  # fmt: skip
REST = delta({"tool_calls": [{"index": 0, "function": {"arguments": '"x": 1}'}}]})
UNKNOWN = {
    "a field of a chunk": (ROLE, chunk([], novel=1), HELLO, STOP, COUNTED, DONE),
    "a field of a choice": (ROLE, delta({"content": "Hello"}, novel={"a": 1}), STOP, COUNTED, DONE),
    "a field of a delta": (ROLE, delta({"content": "Hello", "novel": 1}), STOP, COUNTED, DONE),
    "a field of a call": (
        ROLE,
        delta({"tool_calls": [{"index": 0, "novel": 1}]}),
        STOP,
        COUNTED,
        DONE,
    ),
    "metrics": (ROLE, HELLO, STOP, chunk([], metrics={"a": 1}), COUNTED, DONE),
    "a content that is no text": (ROLE, delta({"content": 7}), STOP, COUNTED, DONE),
    "a chunk of another answer": (ROLE, HELLO, STOP.replace(b'"c"', b'"d"'), COUNTED, DONE),
    "a named event": (b"event: note\n" + ROLE, HELLO, STOP, COUNTED, DONE),
    "no role": (HELLO, STOP, COUNTED, DONE),
    "another role": (ROLE, delta({"role": "user", "content": "a"}), STOP, COUNTED, DONE),
    "an index left out": (
        ROLE,
        HELLO,
        STOP,
        delta({"role": "assistant"}, "stop", 2),
        COUNTED,
        DONE,
    ),
    "more behind the end": (ROLE, STOP, HELLO, COUNTED, DONE),
    "two ends": (ROLE, STOP, delta({"content": "Hello"}, "stop"), COUNTED, DONE),
    "a call without its end": (ROLE, CALL, delta({}, "tool_calls"), COUNTED, DONE),
    "a call of a later index": (
        ROLE,
        REST.replace(b'"index": 0, "function"', b'"index": 1, "function"'),
        STOP,
        COUNTED,
        DONE,
    ),
    "a call cut by its length": (ROLE, CALL, REST, delta({}, "length"), COUNTED, DONE),
    "logprobs of some tokens": (
        ROLE,
        delta({"content": "a"}, logprobs={"content": [{}]}),
        HELLO,
        STOP,
        COUNTED,
        DONE,
    ),
    "no usage": (ROLE, HELLO, STOP, DONE),
}
"""Streams that are complete, and hold what no whole body could be sure to tell."""


def test_what_is_not_known_is_not_carried_over(caching: Proxy, upstream: Upstream) -> None:
    wrong = []
    whole = (PAIRS / "chat.json").read_bytes()
    for name, events in UNKNOWN.items():
        body = upstream.written(whole, b"".join(events))
        first, again, other = (ask(caching.url, body | form) for form in (STREAM, STREAM, {}))
        if (first.is_hit, again.is_hit, other.is_hit, other.body) != (False, True, False, whole):
            wrong.append((name, first, again, other))
        if first.body != b"".join(events).replace(COUNTED, b""):
            wrong.append((name, first.body))
    body = upstream.written(whole, ROLE + HELLO + STOP + DONE)
    assert not ask(caching.url, body | STREAM).is_hit
    # a stored stream without its usage is not for who asked for it
    assert [ask(caching.url, body | form).is_hit for form in (STREAM, USAGE)] == [True, False]
    for place, value in (
        (("novel",), 1), (("usage",), None), (("prompt_logprobs",), [None, {}]), (("metrics",), {"a": 1}),
        (("choices", 0, "novel"), 1), (("choices", 0, "index"), 1), (("choices", 0, "logprobs"), {"novel": []}),
        (("choices", 0, "message", "novel"), 1), (("choices", 0, "message", "role"), None),
        (("choices", 0, "message", "content"), [{"type": "text"}]), (("choices", 0, "message", "audio"), {"id": "a"}),
        (("choices", 0, "message", "tool_calls"), [{"id": "a", "function": {"name": "f"}}]),
    ):  # fmt: skip
        odd = json.loads(whole)
        holder = odd
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = value
        body = upstream.written(json.dumps(odd).encode(), recorded_stream("chat"))
        first, again, other = (ask(caching.url, body | form) for form in ({}, {}, USAGE))
        hits = (first.is_hit, again.is_hit, other.is_hit)
        if hits != (False, True, False) or other.body != recorded_stream("chat"):
            wrong.append((place, value, hits))
    assert wrong == []


def test_calls_thoughts_and_refusals_come_out_in_both_forms(
    caching: Proxy, upstream: Upstream
) -> None:
    thoughts = delta({"reasoning_content": "h", "reasoning": "h"}), delta({"reasoning_content": "m", "reasoning": "m"})  # fmt: skip
    refusal = delta({"refusal": "I "}), delta({"refusal": "won't"})
    second = CALL.replace(b'"index": 0, "id": "a"', b'"index": 1, "id": "b"')
    calls = CALL, REST, second, REST.replace(b'"index": 0, "function"', b'"index": 1, "function"')
    function = {"name": "f", "arguments": '{"x": 1}'}
    for events, finish, expected in (
        (thoughts, "stop", {"reasoning_content": "hm", "reasoning": "hm", "content": None}),
        (refusal, "stop", {"refusal": "I won't", "content": ""}),
        (calls, "tool_calls", {"content": None, "tool_calls": [{"id": one, "type": "function", "function": function} for one in "ab"]}),
    ):  # fmt: skip
        body = upstream.written(b"", b"".join((ROLE, *events, delta({}, finish), COUNTED, DONE)))
        assert not ask(caching.url, body | STREAM).is_hit
        whole = ask(caching.url, body)
        assert whole.is_hit
        (choice,) = whole.json["choices"]
        assert {name: choice["message"].get(name) for name in expected} == expected
        assert (choice["finish_reason"], whole.json["usage"]["completion_tokens"]) == (finish, 2)
        # and what was made whole comes back as a stream, once it is what an upstream says
        body = upstream.written(whole.body, b"")
        assert not ask(caching.url, body).is_hit
        back = merged(ask(caching.url, body | STREAM).body)["choices"][0]
        assert back["finish_reason"] == finish
        told = {name: value for name, value in expected.items() if value and name != "tool_calls"}
        assert told.items() <= back["delta"].items()
        named = [(one["id"], one["function"]) for one in back["delta"].get("tool_calls", ())]
        assert named == [(one["id"], one["function"]) for one in expected.get("tool_calls", ())]


def test_a_usage_in_each_event_is_for_who_asked_for_it(caching: Proxy, upstream: Upstream) -> None:
    continuous = (RECORDED / "chat_stream_contusage.body").read_bytes()
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    body = upstream.written((PAIRS / "chat.json").read_bytes(), continuous)
    first, again = (ask(caching.url, body | STREAM | options) for _ in range(2))
    assert (first.body, again.body, again.is_hit) == (continuous, continuous, True)
    whole = ask(caching.url, body)
    assert whole.is_hit
    assert whole.json["usage"]["completion_tokens"] == 4
    for form in (STREAM, USAGE):
        assert not ask(caching.url, body | form).is_hit
        # the other way round: what tells it once is not for who wants it in each
        other = upstream.written(b"", recorded_stream("chat"))
        assert not ask(caching.url, other | form).is_hit
        assert not ask(caching.url, other | STREAM | options).is_hit


GOOD = json.loads((PAIRS / "chat.json").read_bytes())


def spoilt(**more: Any) -> bytes:
    choice = GOOD["choices"][0] | more
    return json.dumps(GOOD | {"choices": [choice]}).encode()


ERROR = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
INCOMPLETE: dict[str, tuple[str, bytes, bytes]] = {
    "no finish reason": (CHAT, spoilt(finish_reason=None), ROLE + HELLO + COUNTED + DONE),
    "given up": (CHAT, spoilt(finish_reason="abort"), ROLE + HELLO + delta({}, "abort") + DONE),
    "an error": (CHAT, b'{"error":{"message":"no"}}', ROLE + HELLO + ERROR + STOP + DONE),
    "an error at the end": (CHAT, json.dumps(GOOD | {"error": "x"}).encode(), ROLE + HELLO + STOP + ERROR + DONE),
    "a named error": (CHAT, b'{"object":"error","message":"no"}', ROLE + HELLO + STOP + b"event: error\ndata: full\n\n" + DONE),
    "a choice without an end": (CHAT, b'{"choices":[]}', ROLE + delta({"role": "assistant"}, index=1) + STOP + DONE),
    "no end": (CHAT, b'{"choices":7}', ROLE + HELLO + STOP + COUNTED),
    "nothing": (CHAT, b"", b""),
    "no JSON": (CHAT, b"<html>", ROLE + b"data: {broken\n\n" + STOP + DONE),
    "only an end": (CHAT, b"null", DONE),
    "a response under way": ("/v1/responses", b'{"output":[],"status":"in_progress"}', b'event: response.created\ndata: {"response":{}}\n\n'),
    "a response that failed": ("/v1/responses", b'{"output":[],"status":"failed"}', b'event: response.failed\ndata: {"response":{}}\n\n'),
    "a message without an end": ("/v1/messages", b'{"content":[],"stop_reason":null}', (PAIRS / "messages.txt").read_bytes().partition(b"event: message_stop")[0]),
    "a message that is none": ("/v1/messages", b'{"content":"a","stop_reason":"end_turn"}', b'event: error\ndata: {"type":"error"}\n\n' + (PAIRS / "messages.txt").read_bytes()),
    "no embeddings": ("/v1/embeddings", b'{"detail":"loading"}', b""),
    "an error for embeddings": ("/v1/embeddings", b'{"object":"error","data":[]}', b""),
}  # fmt: skip


@pytest.mark.parametrize("cut", [2**20, 5])
def test_what_is_not_complete_is_passed_on_and_never_stored(
    caching: Proxy, upstream: Upstream, cut: int
) -> None:
    upstream.cut = cut
    wrong = []
    for name, (path, whole, stream) in INCOMPLETE.items():
        for form in ({}, STREAM):
            body = {"model": "tiny", "seed": upstream.add(whole, stream), "input": "Hi", **form}
            body |= {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
            replies = [ask(caching.url, body, path=path) for _ in range(2)]
            expected = stream.replace(COUNTED, b"") if form else whole
            if any(each.is_hit or each.body != expected for each in replies):
                wrong.append((name, form, replies))
    assert wrong == []


def test_other_endpoints_are_stored_as_they_came_and_their_tokens_counted(
    caching: Proxy, upstream: Upstream
) -> None:
    for name in ("responses", "messages"):
        stream, whole = recorded_stream(name), (PAIRS / f"{name}.json").read_bytes()
        seed = upstream.add(whole, stream + b"event: ping\ndata: {}\n\n")
        said = {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "max_tokens": 4}
        body = {"model": name, "seed": seed, **said}
        replies = [ask(caching.url, body | form, path=f"/v1/{name}") for form in (STREAM, STREAM, {}, {})]  # fmt: skip
        assert [each.is_hit for each in replies] == [False, True, False, True]
        assert [each.body for each in replies] == [stream, stream, whole, whole]
        lines = logged(upstream, name, 4)
        told = {(line["prompt_tokens"], line["completion_tokens"]) for line in lines}
        assert told == {(16, 4)}
        reasons = {line.get("finish_reason") for line in lines}
        assert reasons == ({"max_tokens"} if name == "messages" else {None})
    whole = b'{"object":"list","model":"e","data":[{"index":0}],"usage":{"prompt_tokens":5}}'
    body = {"model": "e", "input": "Hi", "seed": upstream.add(whole, b"")}
    assert [ask(caching.url, body, path="/v1/embeddings").is_hit for _ in range(2)] == [False, True]
    assert {line["prompt_tokens"] for line in logged(upstream, "e", 2)} == {5}


def logged(upstream: Upstream, model: str, count: int) -> list[Fields]:
    """The log's lines about a model, as soon as there are so many."""
    found: list[Fields] = []

    def are_there() -> bool:
        text = upstream.log.read_text() if upstream.log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        found[:] = [each for each in lines if each.get("model") == model]
        return len(found) == count

    until(are_there)
    return found


def test_the_log_tells_the_tokens_and_the_end_of_each_answer(
    caching: Proxy, upstream: Upstream
) -> None:
    cases: list[tuple[str, bytes, Fields]] = [
        ("live", recorded_stream("chat"), STREAM),
        ("live-unknown", ROLE + HELLO * 3 + STOP + DONE, STREAM),
        ("live-cut", ROLE + HELLO + ERROR, STREAM),
        ("live-open", ROLE + HELLO + COUNTED + DONE, STREAM),
        ("whole", (PAIRS / "chat.json").read_bytes(), {}),
        ("whole-open", spoilt(finish_reason=None), {}),
    ]
    told = {}
    for model, data, form in cases:
        body = upstream.written(data, data) | {"model": model} | form
        for _ in range(2):
            ask(caching.url, body)
        first, second = logged(upstream, model, 2)
        names = ("cache", "prompt_tokens", "completion_tokens", "finish_reason", "error_kind")
        told[model] = [[line.get(name) for name in names] for line in (first, second)]
        is_whole = model in ("live", "whole", "live-unknown")
        assert ("ttft_ms" in first, "ttft_ms" in second) == (form == STREAM,) * 2
        assert ("tpot_ms" in first) == (model in ("live", "live-unknown"))
        assert (first.get("stored"), second.get("stored")) == (is_whole or None, None)
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    body = json.dumps(GOOD | {"usage": GOOD["usage"] | details}).encode()
    ask(caching.url, upstream.written(body) | {"model": "warm"})
    assert logged(upstream, "warm", 1)[0]["cached_tokens"] == 4
    full = [["miss", 16, 6, "length", None], ["hit", 16, 6, "length", None]]
    assert told["live"] == full
    assert told["whole"] == full
    # chunks are counted where no usage is told, and not taken for tokens ever after
    assert told["live-unknown"] == [
        ["miss", None, 3, "stop", None],
        ["hit", None, None, "stop", None],
    ]
    assert told["live-cut"] == [["miss", None, 1, None, "stream_error"]] * 2
    assert told["live-open"] == [["miss", 3, 2, None, "no_finish"]] * 2
    assert told["whole-open"] == [["miss", 16, 6, None, "no_finish"]] * 2


def test_a_token_is_passed_on_at_once_and_the_end_of_a_choice_with_the_event_behind_it(
    tmp_path: Path,
) -> None:
    go_on = threading.Semaphore(0)
    usage = (
        chunk([], usage=COUNTS, system_fingerprint="f").replace(b": ", b":").replace(b", ", b",")
    )
    stop = STOP.replace(b": ", b":").replace(b", ", b",").replace(b"data:", b"data: ")
    usage = usage.replace(b"data:", b"data: ")

    def stepwise(asked: Asked) -> None:
        begin(asked)
        for part in (ROLE, HELLO, stop, usage, DONE + b"data: more\n\n"):
            # its blank line comes in a read of its own
            send(asked, part[:-1])
            time.sleep(0.05)
            send(asked, part[-1:])
            go_on.acquire(timeout=60)
        # it never ends its body: the last event has ended the answer

    with (
        server({"*": stepwise}) as engine,
        proxy(engine.url, cwd=tmp_path) as door,
        Client(door.url) as client,
        Client(door.url) as joined,
        Client(door.url) as whole,
    ):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 1}
        seen, full = bytearray(), bytearray()

        def read(one: Client, into: bytearray, mark: bytes) -> None:
            while mark not in into:
                into += one.socket.recv(65536)

        client.send(request(body | STREAM))
        read(client, seen, b'"assistant"')
        joined.send(request(body | USAGE))
        whole.send(request(body))
        read(joined, full, b'"assistant"')
        go_on.release()
        read(client, seen, b"Hello")
        read(joined, full, b"Hello")
        go_on.release()
        # who asked for the usage waits for nothing
        read(joined, full, b'"stop"')
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            read(client, seen, b'"stop"')
        client.socket.settimeout(60)
        go_on.release()
        read(client, seen, b'"stop"')
        assert b'"system_fingerprint":"f"}\n\n' in seen
        assert b"usage" not in seen
        go_on.release()
        for one, into in ((client, seen), (joined, full)):
            read(one, into, b"0\r\n\r\n")
            assert into.rstrip().endswith(b"data: [DONE]\n\n\r\n0")
        reply = whole.reply()
        assert (reply.text, reply.json["usage"]) == ("Hello", COUNTS | {
            "prompt_tokens_details": None, "completion_tokens_details": None})  # fmt: skip
        assert "collapsed" in reply.headers["cache-status"]
        assert len(engine.asked) == 1
        assert ask(door.url, body | STREAM).is_hit
        go_on.release()


def test_a_large_answer_is_passed_on_and_not_stored_and_a_stored_one_comes_at_its_pace(
    upstream: Upstream, tmp_path: Path
) -> None:
    settings = '[cache]\nmax_answer = "4KiB"\nreplay = 10\n'
    with proxy(upstream.server.url, settings, cwd=tmp_path) as door:
        large = spoilt(message={"role": "assistant", "content": "y" * 5000})
        stream = ROLE + delta({"content": "x" * 5000}) + STOP + DONE
        body = upstream.written(large, stream)
        for form, data in (({}, large), (STREAM, stream)):
            for _ in range(2):
                reply = ask(door.url, body | form)
                assert (reply.body, reply.is_hit) == (data, False)
        path, body = upstream.recorded("chat")
        first = ask(door.url, body | STREAM, path=path)
        # each time: what is known by its very bytes would come at once
        for _ in range(4):
            began_s = time.monotonic()
            again = ask(door.url, body | STREAM, path=path)
            # 6 tokens at 10 a second: the last is due 5 / 10 s after the first
            assert time.monotonic() - began_s > 0.48
            assert (again.is_hit, again.body) == (True, first.body)
