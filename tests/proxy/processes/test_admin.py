"""The admin's listener: what each page and deed asks of Control, and how it answers when that can't be."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.proxy.http.front import Front
from toolkit.proxy.processes.admin import AdminDesk, Purge, Question
from toolkit.proxy.settings import FrontSetting


class Controlled:
    """A proxy that does nothing but remember what it was told to."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.fault: Exception | None = None
        self.why: str | None = None

    async def metrics(self) -> bytes:
        return b"toolkit_proxy_workers 1.0\n"

    async def why_not_ready(self) -> str | None:
        return self.why

    async def state(self) -> Mapping[str, Any]:
        return {"upstreams": [{"name": "a", "state": "up"}], "epochs": {"qwen": 3}}

    async def purge(self, what: Purge) -> int:
        await asyncio.sleep(0)
        if self.fault:
            raise self.fault
        self.done.append(what)
        return 7

    async def explain(self, question: Question) -> Mapping[str, Any]:
        self.done.append(question)
        return {"reason": "never seen"}

    async def drain(
        self, upstream: str | None, why: str = "order", back_in_s: float | None = None
    ) -> None:
        if upstream == "nobody":
            raise ToolkitError("there is no upstream `nobody`", "There are a and b")
        self.done.append(("drain", upstream, why, back_in_s))

    async def undrain(self, upstream: str | None, start_s: float | None = None) -> None:
        self.done.append(("undrain", upstream, start_s))


Answer = tuple[int, dict[str, str], bytes]


def asked(
    control: Controlled, method: str, path: str, body: bytes | object = b"", *headers: str
) -> Answer:
    """One request over a socket; what came back."""
    return asyncio.run(_asked(control, method, path, body, headers))


async def _asked(
    control: Controlled, method: str, path: str, body: bytes | object, headers: tuple[str, ...]
) -> Answer:
    front = Front(AdminDesk(control), FrontSetting())
    server = await asyncio.get_running_loop().create_server(front, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    if method == "POST":
        lines.append(f"content-length: {len(sent)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    status, *told = head.decode().split("\r\n")
    pairs = dict(line.lower().split(": ", 1) for line in told)
    return int(status.split(" ")[1]), pairs, rest


def test_the_pages_are_told() -> None:
    control = Controlled()
    status, headers, body = asked(control, "GET", "/metrics")
    assert (status, body) == (200, b"toolkit_proxy_workers 1.0\n")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    status, headers, body = asked(control, "GET", "/state")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["epochs"] == {"qwen": 3}
    assert json.loads(asked(control, "GET", "/ping")[2]) == {"status": "ok"}
    assert asked(control, "HEAD", "/ping")[2] == b""


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_ready_and_health_say_why_not(path: str) -> None:
    control = Controlled()
    assert asked(control, "GET", path)[0] == 200
    control.why = "upstream `a` refuses connections"
    status, _, body = asked(control, "GET", path)
    assert (status, json.loads(body)) == (503, {"ready": False, "why": control.why})


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"all": True}, Purge(everything=True)),
        ({"team": "red"}, Purge(team="red")),
        ({"model": "qwen", "team": "red", "all": False}, Purge(team="red", model="qwen")),
        (
            {"request": {"body": '{"model": "qwen" }', "team": "red"}},
            Purge(
                question=Question(
                    path="/v1/chat/completions", body=b'{"model": "qwen" }', team="red"
                )
            ),
        ),
    ],
)
def test_what_is_to_go_is_asked_of_control_and_counted(body: object, what: Purge) -> None:
    control = Controlled()
    status, _, told = asked(control, "POST", "/purge", body)
    assert (status, json.loads(told)) == (200, {"purged": 7})
    assert control.done == [what]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        {},
        {"all": False},
        {"all": 1},
        {"all": True, "team": "red"},
        {"all": True, "request": {"body": {}}},
        {"team": None},
        {"team": 5},
        {"teem": "red"},
        {"team": "red", "modell": "qwen"},
        {"request": "x"},
        {"request": {}},
        {"request": {"body": 5}},
    ],
)
def test_what_is_half_understood_purges_nothing(body: object) -> None:
    control = Controlled()
    status, _, told = asked(control, "POST", "/purge", body)
    assert status == 400
    assert '{"all": true}' in json.loads(told)["error"]["hint"]
    assert control.done == []


def test_a_request_is_explained_by_its_text_or_its_fields() -> None:
    control = Controlled()
    asked(control, "POST", "/explain", {"path": "/v1/completions", "body": {"prompt": "Hi"}})
    asked(control, "POST", "/explain", {"body": '{"a":1, "a":2}', "team": "red", "values": True})
    assert control.done == [
        Question(path="/v1/completions", body=b'{"prompt":"Hi"}'),
        Question(path="/v1/chat/completions", body=b'{"a":1, "a":2}', team="red", values=True),
    ]
    assert asked(control, "POST", "/explain", {"body": {}, "valves": True})[0] == 400
    assert asked(control, "POST", "/explain", {"body": {}, "values": "yes"})[0] == 400


def test_a_body_too_deep_to_be_written_is_the_admins_slip_and_no_fault_of_ours() -> None:
    body: object = 1
    for _ in range(400):
        body = {"a": body}
    for path, told in (("/explain", {"body": body}), ("/purge", {"request": {"body": body}})):
        control = Controlled()
        status, _, answer = asked(control, "POST", path, told)
        assert (status, control.done) == (400, [])
        assert "as a text" in json.loads(answer)["error"]["message"]


def test_an_upstream_or_the_proxy_is_drained_and_taken_back() -> None:
    control = Controlled()
    assert json.loads(asked(control, "POST", "/drain", {"upstream": "a"})[2]) == {
        "upstream": "a",
        "draining": True,
    }
    asked(control, "POST", "/drain")
    assert json.loads(asked(control, "POST", "/undrain", {})[2])["draining"] is False
    assert control.done == [
        ("drain", "a", "order", None),
        ("drain", None, "order", None),
        ("undrain", None, None),
    ]


def test_whoever_starts_an_upstream_says_when_it_will_be_back_and_how_long_that_takes() -> None:
    control = Controlled()
    asked(control, "POST", "/drain", {"upstream": "a", "why": "restart", "back_in_s": 40.5})
    asked(control, "POST", "/undrain", {"upstream": "a", "start_s": 40})
    assert control.done == [("drain", "a", "restart", 40.5), ("undrain", "a", 40)]
    for path, fields in (
        ("/drain", {"upstream": "a", "why": "tea"}),
        ("/drain", {"upstream": "a", "back_in_s": "soon"}),
        ("/undrain", {"upstream": "a", "start_s": True}),
    ):
        assert asked(control, "POST", path, fields)[0] == 400


def test_what_control_finds_wrong_is_told_with_its_hint() -> None:
    status, _, body = asked(Controlled(), "POST", "/drain", {"upstream": "nobody"})
    assert (status, json.loads(body)) == (
        400,
        {"error": {"message": "there is no upstream `nobody`", "hint": "There are a and b"}},
    )


def test_a_fault_of_ours_is_answered() -> None:
    control = Controlled()
    control.fault = RuntimeError("broken \ud800")
    status, _, body = asked(control, "POST", "/purge", {"all": True})
    assert (status, json.loads(body)["error"]["message"]) == (500, "RuntimeError: broken ?")


def test_an_unknown_path_names_those_that_there_are() -> None:
    status, headers, body = asked(Controlled(), "GET", "/v1/models")
    assert (status, headers["content-type"]) == (404, "application/json")
    assert "/metrics" in json.loads(body)["error"]["hint"]


def test_a_page_is_read_and_a_deed_is_posted() -> None:
    control = Controlled()
    status, headers, _ = asked(control, "POST", "/state")
    assert (status, headers["allow"]) == (405, "get, head")
    assert asked(control, "GET", "/purge")[0] == 405
    assert control.done == []


def test_a_page_in_a_browser_may_look_at_nothing_it_can_change() -> None:
    control = Controlled()
    status, _, _ = asked(control, "POST", "/purge", {"all": True}, "origin: http://elsewhere")
    assert (status, control.done) == (403, [])
