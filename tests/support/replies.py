"""One client's way back that only takes down what is sent, and one call whose answer a test dictates: no socket, no loop."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from support import chat

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.delivery import Live
from toolkit.proxy.calls.flights import Flights
from toolkit.proxy.exchange import Headers, Job, Rejection, Request, View
from toolkit.proxy.faults import Fault
from toolkit.proxy.http.sending import Sent

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"


Callback = Callable[[], None]


class FakeReply:
    """A Reply. `reads` says how many bytes the client takes before it is full; `read` lets it take more."""

    def __init__(self, *, reads: float = float("inf")) -> None:
        self.request = Request(method="POST", path="/v1/chat/completions")
        self.is_gone = False
        self.on_writable: Callback | None = None
        self.on_gone: Callback | None = None
        self.calls: list[str] = []
        """`whole`, `begin`, `write`, `end`, `abort`, in order."""
        self.status: int | None = None
        self.headers: Headers = ()
        self.length: int | None = None
        self.writes: list[bytes] = []
        self._reads = reads

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def is_paused(self) -> bool:
        return len(self.body) >= self._reads

    def header(self, name: bytes) -> bytes | None:
        values = [value for each, value in self.headers if each == name]
        assert len(values) <= 1, f"{name!r} was sent twice"
        return values[0] if values else None

    def read(self, count: float = float("inf")) -> None:
        """The client takes so many bytes more."""
        was_paused = self.is_paused
        self._reads = max(self._reads, len(self.body)) + count
        if was_paused and not self.is_paused and self.on_writable is not None:
            self.on_writable()

    def leave(self) -> None:
        self.is_gone = True
        if self.on_gone is not None:
            self.on_gone()

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self._note("whole")
        self.status, self.headers, self.length = status, headers, len(body)
        self.writes.append(body)

    def begin(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        self._note("begin")
        self.status, self.headers, self.length = status, headers, length

    def write(self, data: bytes) -> None:
        self._note("write")
        self.writes.append(data)

    def end(self) -> None:
        self._note("end")

    def abort(self) -> None:
        self._note("abort")

    def _note(self, call: str) -> None:
        over = {"whole", "end", "abort"} & set(self.calls)
        assert not over, f"{call} after {over}"
        assert call in ("whole", "begin") or "begin" in self.calls, f"{call} before begin"
        assert call not in ("whole", "begin") or not self.calls, f"{call} after {self.calls}"
        self.calls.append(call)


@dataclass(slots=True)
class Watched:
    """One client with its Live, and everything that its owner was told."""

    reply: FakeReply
    view: View
    live: Live | None = None
    ended: list[Sent] = field(default_factory=list)
    left: int = 0
    again: int = 0

    @property
    def sent(self) -> Sent:
        assert len(self.ended) == 1, "the end is told once"
        return self.ended[0]


class Dictated:
    """One call, led in a view; its clock moves by a second with every read of the answer."""

    def __init__(
        self,
        view: View | None = None,
        *,
        usage_is_ours: bool = False,
        endpoint: str = "chat/completions",
        max_bytes: int = 2**24,
    ) -> None:
        job = Job(path=f"/v1/{endpoint}", body=b"{}", view=view or View(stream=True))
        self.job = replace(job, usage_is_ours=usage_is_ours, endpoint=endpoint)
        self.max_bytes = max_bytes
        self.now = 100.0
        self.call = Call(
            key=None, job=self.job, flights=Flights(), told=lambda _name, _told: None, asked_s=0.0
        )
        self.clients: list[Watched] = []

    def client(self, view: View | None = None, *, reads: float = float("inf")) -> Watched:
        """A client comes, as the desk lets it in."""
        watched = Watched(FakeReply(reads=reads), view or self.job.view)
        self.clients.append(watched)
        watched.live = Live(
            watched.reply,
            watched.view,
            headers=_headers,
            ended=watched.ended.append,
            left=lambda: self._left(watched),
            again=lambda: self._again(watched),
            clock=lambda: self.now,
            jitter=lambda: 0.5,
        )
        if not self.call.is_over:
            self.call.aboard[watched.live] = None
        watched.live.join(self.call)
        return watched

    def begin(self, status: int = 200, content_type: str = SSE) -> None:
        """Give the head; as in a real call, clients hear of it with the first part."""
        self.call.sent_s = 100.0
        self.recorder = Recorder(
            status=status,
            content_type=content_type,
            endpoint=self.job.endpoint,
            view=self.job.view,
            usage_is_ours=self.job.usage_is_ours,
            sent_s=100.0,
            max_bytes=self.max_bytes,
        )

    def feed(self, data: bytes) -> None:
        self.now += 1
        if not self.recorder.feed(data, self.now):
            return
        if self.call.recorder is None:
            self.call.begin(self.recorder.status, [(b"x-up", b"1")], self.recorder)
        else:
            self.call.grow()

    def end(self, fault: Fault | None = None) -> None:
        self.now += 1
        if self.call.recorder is None and fault is None:
            self.call.begin(self.recorder.status, [], self.recorder)
        if self.call.recorder is not None:
            self.call.recorded = self.recorder.end(self.now, fault.message if fault else None)
        self.call.error, self.call.is_over = fault, True
        self.call.tell(lambda listener: listener.ended(self.call))
        self.call.aboard.clear()

    def reject(self, rejection: Rejection) -> None:
        self.call.rejection, self.call.is_over = rejection, True
        self.call.tell(lambda listener: listener.rejected(rejection))

    def _left(self, watched: Watched) -> None:
        watched.left += 1
        self.call.aboard.pop(watched.live, None)  # type: ignore[arg-type]

    @staticmethod
    def _again(watched: Watched) -> None:
        watched.again += 1


def _headers(call: Call | None) -> Headers:
    return [(b"x-own", b"1")] if call is None else [*call.headers, (b"cache-status", b"toolkit")]


def _unchunked(data: bytes) -> bytes:
    return data.partition(b"\r\n")[2].removesuffix(b"\r\n")


ROLE, FINISH, USAGE, DONE = map(_unchunked, (chat.ROLE, chat.FINISH, chat.USAGE, chat.DONE))
"""Events of a stream, not chunked."""


def said(*texts: str) -> bytes:
    """Events of a token each."""
    return b"".join(_unchunked(chat.token(text)) for text in texts)
