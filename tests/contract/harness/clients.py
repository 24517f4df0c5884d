"""A client of raw bytes: sends what no HTTP library would, and tells exactly what came back."""

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Reply:
    """What came back; `is_whole` is False where the connection ended before the answer did."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    is_whole: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """What the model says in it, whole or streamed."""
        if not self.body.startswith(b"data:"):
            return "".join(each["message"]["content"] for each in self.json["choices"])
        return "".join(
            choice["delta"].get("content") or "" for one in self.events for choice in one["choices"]
        )

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in re.findall(rb"data: (\{.*\})\n\n", self.body)]

    @property
    def is_hit(self) -> bool:
        return "; hit" in self.headers.get("cache-status", "")


def request(
    body: object = BODY,
    *,
    path: str = CHAT,
    method: str = "POST",
    key: str | None = None,
    headers: Sequence[str] = (),
) -> bytes:
    """A request's bytes; bytes go as they are, all else as JSON. `headers`: whole lines."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {line.partition(":")[0].lower() for line in headers}
    lines = [f"{method} {path} HTTP/1.1"]
    if "host" not in named:
        lines.append("host: localhost")
    if not named & {"content-length", "transfer-encoding"}:
        lines.append(f"content-length: {len(data)}")
    if "content-type" not in named:
        lines.append("content-type: application/json")
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


class Client:
    """One connection to `url`."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection(
            (place.hostname or "127.0.0.1", place.port or 80), timeout_s
        )
        self._held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, body: object = BODY, **more: Any) -> Reply:
        """Send one request, read one answer."""
        self.send(request(body, **more))
        return self.reply()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> Reply:
        """Read one answer; ConnectionError when there is none."""
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
        found = Reply(int(first.split(" ")[1]), headers, b"")
        try:
            if "chunked" in headers.get("transfer-encoding", ""):
                while size := int(self._until(b"\r\n").partition(b";")[0], 16):
                    found.body += self._exactly(size)
                    self._exactly(2)
                self._until(b"\r\n")
            elif "content-length" in headers:
                found.body = self._exactly(int(headers["content-length"]))
        except ConnectionError:
            found.is_whole = False
        return found

    def is_closed(self) -> bool:
        """Wait until the other side closes or the timeout passes; bytes that come meanwhile are kept."""
        try:
            while data := self.socket.recv(65536):
                self._held += data
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the connection ended")
        self._held += data

    def _until(self, end: bytes) -> bytes:
        while end not in self._held:
            self._more()
        found, _, self._held = self._held.partition(end)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._held) < size:
            self._more()
        found, self._held = self._held[:size], self._held[size:]
        return found


def ask(url: str, body: object = BODY, **more: Any) -> Reply:
    """One request over a connection of its own."""
    with Client(url) as client:
        return client.ask(body, **more)


def get(url: str, path: str, **more: Any) -> Reply:
    """GET it over a connection of its own."""
    return ask(url, b"", path=path, method="GET", **more)
