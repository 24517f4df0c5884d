"""A server of raw bytes on loopback: it can do what no framework lets a server do, and notes all that it was asked."""

import json
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-cpu"


@dataclass
class Asked:
    """One request as it came, and the way back to who sent it."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    connection: socket.socket
    keep: bool = True
    """Set to False to have the connection closed after the answer."""

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def is_gone(self, within_s: float = 0.0) -> bool:
        """Has the other side closed the connection, or does it so in that time?"""
        try:
            if not select.select([self.connection], [], [], within_s)[0]:
                return False
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            # reset, or its own thread has seen the end first and closed it
            return True

    def reset(self) -> None:
        """Die: the other side gets a reset."""
        self.keep = False
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


Answer = bytes | Callable[[Asked], None]
"""Bytes that are sent as they are, or a function that writes what it likes, in a thread of its own."""


def answer(body: bytes | str | object = b"", status: str = "200 OK", **headers: str) -> bytes:
    """One whole HTTP answer; what is no text or bytes goes as JSON; `cache_control="..."` becomes a header."""
    if not isinstance(body, str | bytes):
        body = json.dumps(body)
        headers = {"content_type": "application/json"} | headers
    data = body.encode() if isinstance(body, str) else body
    lines = {"content-length": str(len(data))} | {
        n.replace("_", "-"): v for n, v in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + data


def chat(text: str = "Hello there", *, model: str = "tiny", tokens: int = 2) -> bytes:
    """A complete chat completion."""
    return answer(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 5,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 7,
                "completion_tokens": tokens,
                "total_tokens": 7 + tokens,
            },
        }
    )


def vllm_pages(metrics: str = "metrics_after_load.txt") -> dict[str, Answer]:
    """The four pages of a real vLLM, as recorded."""

    def recorded(name: str, kind: str) -> bytes:
        return answer((RECORDED / name).read_bytes(), content_type=kind)

    return {
        "/health": answer(),
        "/version": recorded("version.json", "application/json"),
        "/v1/models": recorded("v1_models.json", "application/json"),
        "/metrics": recorded(metrics, "text/plain; version=1.0.0; charset=utf-8"),
    }


@dataclass
class Server:
    """One that listens; answers by path, `"*"` for all others, else 404."""

    pages: dict[str, Answer]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    """That were opened so far, asked over or not."""
    tls: ssl.SSLContext | None = None
    """Its certificate; None: it speaks plain HTTP."""

    def paths(self) -> list[str]:
        return [each.path for each in self.asked]


def _serve_connection(server: Server, connection: socket.socket) -> None:
    held = b""
    if server.tls is not None:
        with suppress(OSError):
            connection = server.tls.wrap_socket(connection, server_side=True)
    with connection, suppress(OSError):
        while True:
            while b"\r\n\r\n" not in held:
                data = connection.recv(65536)
                if not data:
                    return
                held += data
            head, _, held = held.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            method, path, _ = first.split(" ", 2)
            headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", 0))
            if "chunked" in headers.get("transfer-encoding", ""):
                while not held.endswith(b"0\r\n\r\n"):
                    held += connection.recv(65536)
                body, held = held, b""
            else:
                while len(held) < length:
                    data = connection.recv(1 << 20)
                    if not data:
                        return
                    held += data
                body, held = held[:length], held[length:]
            request = Asked(method, path, headers, body, connection)
            server.asked.append(request)
            page = server.pages.get(path.partition("?")[0]) or server.pages.get("*")
            if page is None:
                page = answer({"detail": "Not Found"}, "404 Not Found")
            if callable(page):
                page(request)
            else:
                request.send(page)
            if not request.keep:
                return


@contextmanager
def server(
    pages: Mapping[str, Answer], *, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """Listen on 127.0.0.1 until the block ends; then all of its connections are closed."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
    running = Server(dict(pages), url, tls=tls)
    opened: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                running.connections += 1
                opened.append(connection)
                threading.Thread(
                    target=_serve_connection, args=(running, connection), daemon=True
                ).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        # shutdown wakes accept(), close alone would not
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
