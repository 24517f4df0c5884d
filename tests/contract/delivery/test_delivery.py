"""Answers on their way to clients: what one client costs the others, who leaves, how a proxy ends, and how long anybody is waited for."""

import json
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from contract.harness.clients import Client, ask, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, chat, server

MIB = 2**20
NO_FILE = "[cache]\nfile = 'none'\n"
STREAMED = {"model": "tiny", "messages": [{"role": "user", "content": "Go on"}], "stream": True}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, finish: str | None = None) -> bytes:
    said = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return chunk(b"data: %b\n\n" % json.dumps({"id": "c", "choices": [said]}).encode())


END = event("", "stop") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def idler(door: Proxy, body: object) -> socket.socket:
    """It asks, and reads nothing; the kernel holds as little for it as it may."""
    place = urlsplit(door.url)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect((place.hostname, place.port))
    one.sendall(request(body))
    return one


def read_until(client: Client, mark: bytes, seen: bytearray) -> None:
    while mark not in seen[-len(mark) - 70_000 :]:
        data = client.socket.recv(65536)
        assert data, "the stream ended early"
        seen += data


def test_of_twins_on_one_stream_those_that_do_not_read_delay_nobody_and_cost_no_memory(
    tmp_path: Path,
) -> None:
    texts = [f"<{number:03}>" + "x" * 2**16 for number in range(100)]  # 6.4 MiB in all
    gates = [threading.Event() for _ in texts]

    def stepwise(asked: Asked) -> None:
        asked.send(HEAD)
        for text, gate in zip(texts, gates, strict=True):
            gate.wait(60)
            asked.send(event(text))
        asked.send(END)

    with (
        server({"*": stepwise}) as engine,
        proxy(engine.url, NO_FILE, cwd=tmp_path) as door,
        ExitStack() as open_ones,
    ):
        idlers = [open_ones.enter_context(idler(door, STREAMED)) for _ in range(24)]
        readers = [open_ones.enter_context(Client(door.url)) for _ in range(4)]
        seen = [bytearray() for _ in readers]
        for reader in readers:
            reader.send(request(STREAMED))
        until(lambda: len(engine.asked) == 1)
        before = door.program.rss_bytes()
        for text, gate in zip(texts, gates, strict=True):
            gate.set()
            # the next one is sent once all who read have this one, whatever the others do
            for reader, body in zip(readers, seen, strict=True):
                read_until(reader, text[:5].encode(), body)
        for reader, body in zip(readers, seen, strict=True):
            read_until(reader, b"[DONE]\n\n\r\n0\r\n\r\n", body)
        bodies = {bytes(body).partition(b"\r\n\r\n")[2] for body in seen}
        assert len(bodies) == 1
        assert len(engine.asked) == 1
        # the answer is held once, not once for each of the 24; some 3 MiB of each the kernel holds
        grown = door.program.rss_bytes() - before
        assert grown < 8 * 6.4 * MIB, f"{grown / MIB:.0f} MiB"
        # who comes back to reading gets the whole of it all the same
        slow = Client.__new__(Client)
        slow.socket, slow._held = idlers[0], b""
        slow.socket.settimeout(60)
        assert slow.reply().text == "".join(texts)


def test_a_client_that_does_not_read_a_huge_answer_holds_the_server_back(tmp_path: Path) -> None:
    sent = [0]
    total = 96

    def huge(asked: Asked) -> None:
        asked.send(HEAD)
        for number in range(total):
            asked.send(event(f"<{number}>" + "y" * MIB))
            sent[0] += 1
        asked.send(END)

    with server({"*": huge}) as engine, proxy(engine.url, NO_FILE, cwd=tmp_path) as door:
        before = door.program.rss_bytes()
        with idler(door, STREAMED) as one:
            until(lambda: sent[0] > 4)
            time.sleep(2)
            held = sent[0]
            assert held < total - 20
            assert door.program.rss_bytes() - before < 64 * MIB
            slow = Client.__new__(Client)
            slow.socket, slow._held = one, b""
            one.settimeout(60)
            seen = bytearray()
            read_until(slow, b"<40>", seen)
            until(lambda: sent[0] > held)
        # it left, and so the rest is not read
        assert sent[0] < total


def test_the_last_client_that_leaves_ends_the_call_and_until_then_it_goes_on(
    tmp_path: Path,
) -> None:
    go_on = threading.Event()

    def begun(asked: Asked) -> None:
        asked.send(HEAD + event("one"))
        go_on.wait(60)
        asked.send(event("two") + END)

    with server({"*": begun}) as engine, proxy(engine.url, NO_FILE, cwd=tmp_path) as door:
        first, second = Client(door.url), Client(door.url)
        for client in (first, second):
            client.send(request(STREAMED))
            read_until(client, b"one", bytearray())
        first.socket.close()
        until(lambda: door.total("toolkit_proxy_clients_left_total") == 1)
        go_on.set()
        read_until(second, b"[DONE]", bytearray())
        second.socket.close()
        assert len(engine.asked) == 1
        # alone: the server sees at once that nobody waits any more
        go_on.clear()
        with Client(door.url) as alone:
            alone.send(request(STREAMED | {"seed": 1}))
            read_until(alone, b"one", bytearray())
        assert engine.asked[1].is_gone(within_s=60)
        until(lambda: door.total("toolkit_proxy_clients_left_total") == 2)
        go_on.set()


def test_a_server_that_dies_in_the_midst_is_told_and_looks_cut(tmp_path: Path) -> None:
    is_read = threading.Event()

    def dying(asked: Asked) -> None:
        asked.send(HEAD + event("one"))
        # or the reset would overtake it
        is_read.wait(60)
        asked.reset()

    with server({"*": dying}) as engine, proxy(engine.url, NO_FILE, cwd=tmp_path) as door:
        for number in range(2):
            is_read.clear()
            with Client(door.url) as client:
                client.send(request(STREAMED))
                seen = bytearray()
                read_until(client, b"one", seen)
                client._held = bytes(seen)
                is_read.set()
                cut = client.reply()
            assert not cut.is_whole
            assert b'"error"' in cut.body
            # and is not stored
            assert len(engine.asked) == number + 1
        engine.pages["*"] = chat()
        assert ask(door.url, STREAMED | {"stream": False}).text == "Hello there"

        # one that ends by closing has no other end: half of it is no whole one
        def half(asked: Asked) -> None:
            said = event("one").partition(b"\r\n")[2][:-2]
            asked.send(HEAD.replace(b"transfer-encoding: chunked", b"connection: close") + said)
            asked.keep = False

        engine.pages["*"] = half
        cut = ask(door.url, STREAMED | {"seed": 2})
        assert (cut.status, cut.is_whole, b'"error"' in cut.body) == (200, False, True)


def test_told_to_end_it_answers_what_it_was_asked_and_takes_nothing_new(tmp_path: Path) -> None:
    go_on = threading.Event()

    def begun(asked: Asked) -> None:
        asked.send(HEAD + event("one"))
        go_on.wait(60)
        asked.send(event("two") + END)

    def late(asked: Asked) -> None:
        go_on.wait(60)
        asked.send(chat())

    pages = {"/v1/chat/completions": begun, "/v1/completions": late}
    with (
        server(pages) as engine,
        proxy(engine.url, NO_FILE, cwd=tmp_path) as door,
        Client(door.url) as idle,
        Client(door.url) as streaming,
        Client(door.url) as waiting,
    ):
        assert idle.ask(b"", method="GET", path="/ping").status == 200
        seen = bytearray()
        streaming.send(request(STREAMED))
        read_until(streaming, b"one", seen)
        waiting.send(request({"model": "tiny", "prompt": "x"}, path="/v1/completions"))
        until(lambda: len(engine.asked) == 2)
        door.program.process.send_signal(signal.SIGTERM)
        assert idle.is_closed()

        def is_shut() -> bool:
            try:
                Client(door.url, 5).socket.close()
            except ConnectionError:
                return True
            return False

        until(is_shut)
        assert door.program.process.poll() is None
        go_on.set()
        read_until(streaming, b"[DONE]\n\n\r\n0\r\n\r\n", seen)
        assert b"two" in seen
        answer = waiting.reply()
        assert (answer.status, answer.text, answer.headers["connection"]) == (200, "Hello there", "close")  # fmt: skip
        assert door.program.wait() == 0


def test_heads_and_bodies_have_their_time_and_answers_all_they_need(tmp_path: Path) -> None:
    settings = NO_FILE + '[front]\nheader_time = "2s"\nbody_time = "2s"\nidle = "2s"\n'

    def late(asked: Asked) -> None:
        time.sleep(4)
        asked.send(chat())

    with (
        server({"*": late}) as engine,
        proxy(engine.url, settings, cwd=tmp_path) as door,
        ExitStack() as open_ones,
    ):

        def sending(data: bytes) -> Client:
            client = open_ones.enter_context(Client(door.url))
            client.send(data)
            return client

        asking = sending(request(STREAMED | {"stream": False}))
        silent = open_ones.enter_context(Client(door.url))
        half_head = sending(b"POST /v1/chat/comp")
        half_body = sending(request(b"{}", headers=["content-length: 100"]))
        trickling = open_ones.enter_context(Client(door.url))
        for byte in b"POST /v1/chat":
            # sent in time each, and not the whole
            try:
                trickling.send(bytes([byte]))
            except ConnectionError:
                break
            time.sleep(0.3)
        for client in (half_head, half_body, trickling):
            told = client.reply()
            assert (told.status, told.headers["connection"]) == (408, "close")
            assert client.is_closed()
        assert silent.is_closed()
        assert asking.reply().status == 200
        assert door.total("toolkit_proxy_refused_requests_total", reason="header_timeout") == 2
        assert door.total("toolkit_proxy_refused_requests_total", reason="body_timeout") == 1
