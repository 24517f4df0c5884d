"""A started proxy hands on no address that its engine would fetch from: not in any field, on any path, by any Content-Type."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client, request
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Server, chat, server

DATA = Path(__file__).parents[2] / "data"
NAMES = json.loads((DATA / "vllm-0.32.0-request-names.json").read_text())
SGLANG = """image video audio image_data video_data audio_data image_url video_url audio_url
    reference_url reference_image input_reference images image_pil""".split()
"""Fields of SGLang's requests that take an address (/generate, /v1/embeddings, /v1/images, /v1/videos and parts of messages), and
one that vLLM reads beside its schemas."""
ANSWERED = """/v1/chat/completions /v1/chat/completions/batch /v1/completions /v1/responses /v1/messages
    /v1/embeddings /v2/embed /v1/score /v1/rerank /v2/rerank""".split()
PASSED = """/v1/messages/count_tokens /v1/chat/completions/render /v1/completions/render""".split()
OPENED = ["/generate", "/tokenize", "/pooling", "/v1/systemone", "/v1/audio/transcriptions"]
"""Opened by the settings."""
PATHS = [*ANSWERED, *PASSED, *OPENED]
BAD = "http://10.0.0.4/a"
ADDRESSES = [
    BAD,
    "HTTPS://10.0.0.4/a",
    "http:10.0.0.4",
    "http:\\\\10.0.0.4",
    "ftp://good.example/a",
    "file:///etc/passwd",
    "s3://bucket/a",
    "gs://bucket/a",
    "hdfs://h/a",
    "http://good.example@10.0.0.4/",
    "http://good.example\\@10.0.0.4/",
    "http://[::1]/",
    "//10.0.0.4/a",
    " http://10.0.0.4/",
    "http://good.example.evil.example/",
]
FORM = "content-type: multipart/form-data; boundary=b"
TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/vnd.api+json",
    "application/jsonx",
    "application/octet-stream",
    "multipart/form-data; boundary=b",
    "application/json2; a=application/json",
    "text/plain, application/json",
    "",
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Server]:
    with server({"*": chat()}) as running:
        yield running


@pytest.fixture(scope="module")
def filtering(upstream: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    paths = json.dumps(OPENED)
    settings = f'paths = {paths}\nmedia_hosts = ["good.example"]\n[cache]\nfile = "none"\n'
    with proxy(upstream.url, settings, cwd=tmp_path_factory.mktemp("proxy")) as running:
        yield running


@pytest.fixture(autouse=True)
def quiet(upstream: Server) -> None:
    """What other tests sent is not this one's."""
    upstream.asked.clear()


def ways(name: str, address: str) -> list[Any]:
    """What holds an address by this name, wherever a server may look for it."""
    held = {name: address}
    part = {"type": name, **held}
    message = {"role": "user", "content": [{"type": "text", "text": "What?"}, part]}
    return [
        held,
        {name: [address]},
        {name: {"url": address}},
        {"type": "tool_use", "input": [message]},
        {"messages": [message]},
        {"messages": [{"role": "user", "type": "tool_use", "content": [part]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [part]}]}]},
        {"input": [{"text": "a", **held}]},
        {"inputs": [{"content": [part]}]},
        {"documents": {"content": [part]}},
        {"tools": [{"type": "mcp", **held}]},
        {"mm_processor_kwargs": held},
        {"a": [[[[{"b": held}]]]]},
    ]


def test_no_address_in_any_field_on_any_path_reaches_the_engine(
    filtering: Proxy, upstream: Server
) -> None:
    names = sorted({*NAMES["addresses"], *SGLANG})
    passed = []
    with Client(filtering.url) as client:

        def ask(path: str, body: Any) -> None:
            if client.ask({"model": "tiny", **body}, path=path).status != 400:
                passed.append((path, body))

        for path in PATHS:
            for name in names:
                for body in ways(name, BAD):
                    ask(path, body)
            ask(path, {"messages": [{"content": [{"source": {"type": "url", "url": BAD}}]}]})
        for name in names:
            for address in ADDRESSES:
                ask("/v1/responses", {name: address, "input": "Hi"})
    assert passed == []
    assert upstream.asked == []


def test_a_body_of_another_type_reaches_no_engine(filtering: Proxy, upstream: Server) -> None:
    body = json.dumps({"model": "tiny", "image": BAD, "messages": [{"image_url": BAD}]}).encode()
    odd = [[f"content-type: {each}"] for each in TYPES]
    odd += [
        ["x-nothing: 1", "Content-Type: text/plain", "Content-Type: application/json"],
        ["Content-Type: application/json", "Content-Type: text/plain"],
    ]
    bodies = [body, b" \r\n" + body, b"\xef\xbb\xbf" + body, body.decode().encode("utf-16")]
    form = b'--b\r\nContent-Disposition: form-data; name="url"\r\n\r\n%b\r\n--b--' % BAD.encode()
    passed = []
    for path in PATHS:
        cases = [request(each, path=path, headers=kind) for each in bodies for kind in odd]
        plain = request(body, path=path)
        cases.append(plain.replace(b"content-type: application/json\r\n", b""))
        for spaces in (b"", b"  ", b" \r\n" * 40):
            spaced = form.replace(b"http:", spaces + b"http:")
            cases.append(request(spaced, path=path, headers=[FORM]))
        for case in cases:
            # some are refused by their head, and the connection with them
            with Client(filtering.url) as client:
                client.send(case)
                if (status := client.reply().status) not in (400, 415):
                    passed.append((status, case))
    assert passed == []
    assert upstream.asked == []


def test_what_nobody_fetches_passes_and_is_sent_on_as_json(
    filtering: Proxy, upstream: Server
) -> None:
    data = "data:image/png;base64,iVBORw0KGgo="
    text = f"see {BAD} and file:///etc/passwd"
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": data}},
        {"type": "image_url", "image_url": {"url": "https://GOOD.example:8443/a.png?b=1"}},
        {"type": "input_audio", "input_audio": {"data": "//uQxAAAAAAAA", "format": "wav"}},
    ]
    schema = {"properties": {"image": {"type": "string", "description": BAD}}}
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"image_url": BAD, "image": BAD}}
    cited = {"type": "url_citation", "url": BAD, "title": "a"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": BAD}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": parts[:3]}]}),
        ("/v1/chat/completions", {"tools": [{"function": {"parameters": schema}}]}),
        ("/v1/chat/completions", {"response_format": {"json_schema": {"schema": schema}}}),
        ("/v1/chat/completions", {"documents": [{"title": "a", "text": text, "url": BAD}]}),
        ("/v1/chat/completions", {"media_io_kwargs": {"video": {"num_frames": 4, "backend": "a"}}}),
        ("/v1/chat/completions", {"metadata": {"image": BAD}, "chat_template_kwargs": {"a": BAD}}),
        ("/v1/completions", {"prompt": BAD}),
        ("/v1/responses", {"input": [{"content": [{"text": "a", "annotations": [cited]}]}]}),
        ("/v1/responses", {"text": {"format": {"schema": schema}}, "input": BAD}),
        ("/v1/messages", {"messages": [{"role": "assistant", "content": [call]}]}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": schema}]}),
        ("/v1/messages", {"messages": [{"content": [{"source": BAD, "type": "search_result"}]}]}),
        ("/v1/embeddings", {"input": [{"text": text, "image": data}]}),
        ("/v1/embeddings", {"input": [{"image": "/9j/4AAQSkZJRgABAQ"}]}),
        ("/v2/embed", {"images": [data, "https://good.example/a.png"]}),
        ("/v1/rerank", {"query": BAD, "documents": [BAD]}),
        ("/v1/chat/completions/render", {"messages": [{"content": parts[:3]}]}),
        ("/tokenize", {"prompt": BAD}),
    ]
    with Client(filtering.url) as client:
        for number, (path, body) in enumerate(bodies):
            before = len(upstream.asked)
            sent = {"model": "tiny", "seed": number, **body}
            # what is called JSON in any spelling is sent on as such
            kind = ["Content-Type: APPLICATION/json ; charset=utf-16"]
            assert client.ask(sent, path=path, headers=kind).status == 200, (path, body)
            got = upstream.asked[before]
            assert got.path == path
            assert got.headers["content-type"] == "application/json"
            arrived = json.loads(got.body)
            assert {name: arrived[name] for name in sent} == sent
        form = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\0\0'
            b'\r\n--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nHi\r\n--b--\r\n'
        )
        assert client.ask(form, path="/v1/audio/transcriptions", headers=[FORM]).status == 200
        assert upstream.asked[-1].body == form
        assert f"content-type: {upstream.asked[-1].headers['content-type']}" == FORM
        # a body-less request for what settings opened
        assert client.ask(b"", path="/pooling").status == 200
