"""What the bench's client learns of a host beside its answers: pages, the round trip; and TLS towards it."""

import asyncio
import ssl
import time

import pytest
import trustme
from support.chat import (
    CHAT,
    STREAM,
    ask,
    client_of,
    context,
    hang,
    models_page,
    one_shot,
    until,
)
from support.raw_server import RawServer, http, recorded

from toolkit.bench.client import MAX_PAGE_BYTES, PageError

# --- TLS -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_side(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.usefixtures("loop")
async def test_a_private_authority_can_be_trusted(
    authority: trustme.CA, server_side: ssl.SSLContext
) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async with (
        RawServer({CHAT: STREAM}, tls=server_side) as server,
        client_of(server.url, tls=trusting) as client,
    ):
        shots = [await client.send(context(), ask(n), time.monotonic()) for n in range(3)]
        asked = server.connections
        rtt_ms, connections = await client.rtt_ms(), asked
    assert [(shot.ok, shot.output_tokens, shot.error) for shot in shots] == [(True, 2, None)] * 3
    assert rtt_ms is not None
    assert connections == 1


@pytest.mark.usefixtures("loop")
async def test_an_unknown_authority_is_a_fault_of_tls(server_side: ssl.SSLContext) -> None:
    async with RawServer({CHAT: STREAM}, tls=server_side) as server:
        shot = await one_shot(server.url)
    assert (shot.ok, shot.error_kind) == (False, "tls")
    assert shot.error is not None
    assert "certificate not trusted" in shot.error


@pytest.mark.usefixtures("loop")
async def test_a_port_that_wants_tls_says_so(server_side: ssl.SSLContext) -> None:
    async with (
        RawServer({CHAT: STREAM}, tls=server_side) as server,
        client_of(server.url.replace("https:", "http:")) as client,
    ):
        with pytest.raises(PageError) as caught:
            await client.models()
    assert str(caught.value) == "wants TLS; write `https://` before the address"
    assert not caught.value.answered


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize(("path", "hint"), [("", ""), ("/v2", "; drop the path `/v2` unless")])
async def test_a_page_that_is_not_found_below_a_path_names_the_path(path: str, hint: str) -> None:
    async with RawServer({}) as server, client_of(f"{server.url}{path}") as client:
        with pytest.raises(PageError) as caught:
            await client.models()
    assert str(caught.value).startswith(f"`/v1/models` answered 404{hint}")
    assert bool(hint) == ("path" in str(caught.value))


@pytest.mark.usefixtures("loop")
async def test_a_port_without_tls_says_so() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(http("Invalid HTTP request received.", "400 Bad Request"))
        await reader.read()  # until the other side ends it
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        shot = await one_shot(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (shot.ok, shot.error_kind) == (False, "tls")
    assert shot.error == "the port does not speak TLS; write `http://` if it is a plain one"


# --- pages ---------------------------------------------------------------------------------------------


async def test_models_are_read_as_the_host_lists_them() -> None:
    odd = [
        {"id": "base", "root": "org/Base", "max_model_len": 4096},
        {"id": "bare"},
        {"id": "odd", "root": 7, "max_model_len": True},
        {"id": "vast", "max_model_len": 2**63},
        {"id": ""},
        {"id": 7},
        "text",
        {"id": "x" * 301},
    ]

    pages = {"/v1/models": models_page(*odd)}
    async with RawServer(pages) as server, client_of(server.url) as client:
        found = [(each.id, each.root, each.max_model_len) for each in await client.models()]
    assert found == [
        ("base", "org/Base", 4096),
        ("bare", None, None),
        ("odd", None, None),
        ("vast", None, None),
    ]


def json_page(text: str, status: str = "200 OK") -> bytes:
    return http(text, status, content_type="application/json")


NOT_A_LIST = "`/v1/models` is not the list that OpenAI's API has"


@pytest.mark.parametrize(
    ("page", "error", "answered"),
    [
        (json_page("{}", "404 Not Found"), "`/v1/models` answered 404", True),
        (json_page("{}", "401 Unauthorized"), "`/v1/models` answered 401", True),
        (json_page("{}"), NOT_A_LIST, True),
        (json_page("[]"), NOT_A_LIST, True),
        (json_page('{"data": null}'), NOT_A_LIST, True),
        (json_page("<html>"), NOT_A_LIST, True),
        (json_page("[" * 100_000), NOT_A_LIST, True),
        (json_page('{"data": []}'), "`/v1/models` lists no model", True),
        (json_page('{"data": {"id": "x"}}'), "`/v1/models` lists no model", True),
        (json_page(" " * (MAX_PAGE_BYTES + 1)), "`/v1/models` is longer than 16 MiB", True),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "`/v1/models`: no HTTP answer", False),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_models_page_that_is_none_says_why(page: bytes, error: str, answered: bool) -> None:
    async with RawServer({"/v1/models": page}) as server, client_of(server.url) as client:
        with pytest.raises(PageError) as raised:
            await client.models()
        found = raised.value
    assert str(found).startswith(error)
    assert found.answered is answered


async def test_a_page_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.client.PAGE_TIMEOUT_S", 0.05)

    async with RawServer({"/v1/models": hang}) as server, client_of(server.url) as client:
        with pytest.raises(PageError) as raised:
            await client.models()
        found = raised.value
    assert (str(found), found.answered) == ("`/v1/models` did not finish within 0.05 s", False)


async def test_counters_are_read_and_a_long_page_is_read_beside_the_streams() -> None:
    page = recorded("metrics_after_load.txt")
    long = page + b"# HELP padding\n" * 30_000  # 450 KB: past what is read between two tokens

    found = []
    for body in (page, long):
        async with (
            RawServer({"/metrics": http(body, content_type="text/plain")}) as server,
            client_of(server.url) as client,
        ):
            numbers = await client.numbers()
            found.append((numbers.requests_total, numbers.generation_tokens_total))
    short, padded = found
    assert short == padded
    assert None not in short


@pytest.mark.parametrize(
    ("page", "most_bytes", "error"),
    [
        (http("", "404 Not Found"), 2**20, "`/metrics` answered 404"),
        (http("<html>hello</html>"), 2**20, "`/metrics` is no page of a known engine"),
        (http(" " * (2**20 + 1)), 2**20, "`/metrics` is longer than 1 MiB"),
        (http("", "401 Unauthorized"), 2**20, "`/metrics` answered 401"),
    ],
    ids=["absent", "html", "huge", "refused"],
)
async def test_a_metrics_page_that_is_none_says_why(
    page: bytes, most_bytes: int, error: str
) -> None:
    async with RawServer({"/metrics": page}) as server, client_of(server.url) as client:
        with pytest.raises(PageError) as raised:
            await client.numbers(most_bytes=most_bytes)
        assert str(raised.value) == error


async def test_a_page_that_moved_on_the_same_host_is_followed() -> None:
    """LiteLLM's metrics stand at `/metrics/`."""
    page = http(recorded("metrics_after_load.txt"), content_type="text/plain")
    moved = http("", "307 Temporary Redirect", location="/metrics/")
    async with (
        RawServer({"/metrics": moved, "/metrics/": page}) as server,
        client_of(server.url) as client,
    ):
        assert (await client.numbers()).requests_total == 1022


async def test_the_round_trip_is_a_handshake_and_asks_nothing() -> None:
    async with RawServer({}) as server, client_of(server.url) as client:
        rtt_ms = await client.rtt_ms()
        await until(lambda: server.connections >= 3)
        connections, paths = server.connections, server.paths()
    assert rtt_ms is not None
    assert rtt_ms > 0
    assert (connections, paths) == (3, [])


async def test_a_host_that_is_not_there_has_no_round_trip() -> None:
    async with RawServer({}) as server:
        url = server.url
    async with client_of(url) as client:
        found = await client.rtt_ms()
    assert found is None
