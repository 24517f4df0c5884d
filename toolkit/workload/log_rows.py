"""One line of a log of requests -> what arrived: our capture's and proxy's, others' proxies', nginx's, plain bodies. It opens nothing.

What nginx has to log, with bodies of up to a megabyte (a larger one, or one that went to a file, is not in the log):

    log_format requests escape=json '{"msec":$msec,"remote_addr":"$remote_addr","server":"$server_addr:$server_port",'
        '"request_method":"$request_method","request_uri":"$request_uri","status":$status,'
        '"request_time":$request_time,"request_body":"$request_body"}';
    access_log /var/log/nginx/requests.jsonl requests;
    client_body_buffer_size 1m;
    client_body_in_single_buffer on;

Such a log holds every prompt in plain text, and `$request_body` is known only where nginx hands requests on (`proxy_pass`).
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from toolkit.errors import ToolkitError
from toolkit.protocol.request import asked as asked_of
from toolkit.protocol.request_key import body_key
from toolkit.records import Asked, Seen, SeenCache
from toolkit.workload.log_values import (
    count,
    first,
    flag,
    integer,
    key_of,
    moment,
    number,
    span,
    text,
    words,
)

LogKind = Literal["capture", "proxy", "requests", "nginx", "bodies"]

REMEMBERED = 65_536
"""So many different bodies are held to be shared by those that are equal, then forgotten at once."""

PREVIEW_CHARS = 80
"""A shorter preview of our capture's is the whole text."""
TIMES = ("ts", "timestamp", "time", "at", "received_at", "created_at", "started_at")
PROMPTS = ("messages", "prompt", "input", "inputs")
"""Where a request body keeps its prompt."""

_CACHE: dict[str, SeenCache] = {
    "hit": "hit",
    "miss": "miss",
    "coalesced": "coalesced",
    "joined": "coalesced",
}

Row = Mapping[str, Any]


class Rows:
    """Reads the lines of one log; what it met on the way is counted by reason in `met`.

    `client` turns an address into what is shown of it. `keep_text`: prompts are kept to read.
    """

    def __init__(self, name: str, *, client: Callable[[str], str], keep_text: bool) -> None:
        self._name, self._client, self._keep_text = name, client, keep_text
        self._remembered: dict[str, Asked] = {}
        self._previews: dict[str, str] = {}
        self.met: dict[str, int] = {}
        self.has_times = True
        """False: nothing in the file says when."""

    def seen(self, kind: LogKind, row: Row, line: bytes | None, where: str, place: int) -> Seen:
        """What one line tells; `line` is what it was read from, where that is one request's body byte for byte."""
        match kind:
            case "capture":
                return self._capture(row, where)
            case "proxy":
                return self._proxy(row, where)
            case "requests":
                return self._requests(row, where)
            case "nginx":
                return self._nginx(row, where)
            case "bodies":
                return self._body(row, line, where, place)

    def remembered(self, asked: Asked) -> Asked:
        """The one that all equal ones share."""
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        return self._remembered.setdefault(asked.exact_key, asked)

    def meet(self, what: str) -> None:
        """Count something that is to be told in the end."""
        self.met[what] = self.met.get(what, 0) + 1

    # --- Our own capture ------------------------------------------------------------------------

    def _capture(self, row: Row, where: str) -> Seen:
        damaged = flag(row.get("damaged")) or False
        return Seen(
            ts=_moment(row, where),
            took_ms=span(row.get("took_ms")),
            server=text(row.get("server")),
            method=text(row.get("method")),
            asked=self._captured(row),
            damaged=damaged,
            problem=text(row.get("problem")) if damaged else None,
            in_flight=count(row.get("in_flight")),
            **_answer(row),
            client=text(row.get("client")),
            path=_path(row),
        )

    def _captured(self, row: Row) -> Asked | None:
        body = _whole(row)
        if body is not None:
            return self._asked(body, _path(row))
        exact = text(row.get("exact_key"))
        if exact is None:
            return None
        known = self._remembered.get(exact)
        return known or self.remembered(self._by_keys(row, exact))

    def _by_keys(self, row: Row, exact: str) -> Asked:
        preview, chars = text(row.get("prompt_preview")), count(row.get("prompt_chars"))
        is_whole = preview is not None and len(preview) < PREVIEW_CHARS
        return Asked(
            exact_key=exact,
            request_key=text(row.get("request_key")),
            prompt_key=text(row.get("prompt_key")),
            problem=None if row.get("damaged") else text(row.get("problem")),
            body_bytes=count(row.get("body_bytes")) or 0,
            **_parameters(row),
            messages=count(row.get("messages")),
            images=count(row.get("images")) or 0,
            prompt_chars=chars,
            prompt_text=preview if is_whole and self._keep_text else None,
        )

    # --- A proxy's log --------------------------------------------------------------------------

    def _proxy(self, row: Row, where: str) -> Seen:
        self._meet_repeat(row)
        return Seen(
            ts=_moment(row, where),
            server=text(first(row, "server", "upstream")),
            method=text(row.get("method")),
            path=_path(row),
            asked=self._proxied(row, where),
            client=text(first(row, "team", "client", "user")),
            cache=_cache(row),
            **_answer(row),
        )

    def _proxied(self, row: Row, where: str) -> Asked | None:
        prompt, request = text(row.get("prompt_key")), text(row.get("request_key"))
        exact = text(row.get("exact_key")) or request or prompt
        if exact is None and "prompt_key" in row:
            return None  # it names prompts, and this request had none, e.g., `GET /v1/models`
        exact = exact or key_of(self._name, where)
        asked = Asked(
            exact_key=exact,
            request_key=request,
            prompt_key=prompt or request or exact,
            body_bytes=count(row.get("body_bytes")) or 0,
            **_parameters(row),
            prompt_chars=count(row.get("prompt_chars")),
        )
        return self.remembered(asked)

    def _meet_repeat(self, row: Row) -> None:
        is_new = _is_new(row)
        if is_new is not None:
            self.meet("new" if is_new else "repeat")

    # --- A cache proxy that a user wrote: preview, new or repeat, a running count ----------------

    def _requests(self, row: Row, where: str) -> Seen:
        prompt = self._prompt_by_preview(row, where)
        preview = text(first(row, "prompt_preview", "preview", "prompt"))
        parameters = _parameters(row)
        shown = tuple(f"{name}={value}" for name, value in parameters.items())
        exact = key_of(prompt, *shown)
        asked = Asked(
            exact_key=exact,
            request_key=key_of(prompt, *(one for one in shown if not one.startswith("stream="))),
            prompt_key=prompt,
            body_bytes=0,
            **parameters,
            prompt_chars=count(first(row, "prompt_chars", "prompt_length", "prompt_len")),
            prompt_text=preview if self._keep_text else None,
        )
        return Seen(
            ts=_moment(row, where),
            method=text(row.get("method")),
            path=_path(row),
            asked=self.remembered(asked),
            client=self._address(first(row, "client", "client_ip", "remote_addr", "ip")),
            cache=_cache(row),
            **_answer(row),
        )

    def _prompt_by_preview(self, row: Row, where: str) -> str:
        """A new prompt's key is its own; a repeat's is that of the last new one with this preview."""
        preview = text(first(row, "prompt_preview", "preview", "prompt")) or ""
        is_new = _is_new(row)
        if is_new is not None:
            self.meet("new" if is_new else "repeat")
        known = self._previews.get(preview)
        if known is None:
            known = self._previews[preview] = key_of(preview)
        elif is_new:
            self.meet("same preview")
            known = self._previews[preview] = key_of(preview, where)
        return known

    # --- nginx ----------------------------------------------------------------------------------

    def _nginx(self, row: Row, where: str) -> Seen:
        took = span(row.get("request_time"))
        method, path = _request_line(row)
        body = row.get("request_body")
        asked = None
        if isinstance(body, str) and body not in ("", "-"):
            asked = self._asked(body.encode("utf-8", "surrogateescape"), path)
        elif method == "POST":
            self.meet("no body")
            asked = self._unlike(where)
        return Seen(
            # nginx writes a line when it is done with a request
            ts=_moment(row, where, "msec", "time_iso8601", *TIMES) - (took or 0.0),
            client=self._address(first(row, "remote_addr", "client")),
            server=text(first(row, "server", "upstream_addr", "server_addr", "host")),
            method=method,
            path=path,
            asked=asked,
            status=count(row.get("status")),
            latency_ms=None if took is None else took * 1e3,
        )

    def _unlike(self, where: str) -> Asked:
        """What a request asks of which only this much is known: that it asks something."""
        key = key_of(self._name, where)
        return Asked(exact_key=key, prompt_key=key, body_bytes=0)

    # --- Bodies ---------------------------------------------------------------------------------

    def _body(self, row: Row, line: bytes | None, where: str, place: int) -> Seen:
        body = row.get("body")
        if not has_body(row):
            whole = _dumped(row) if line is None else line
            return Seen(ts=float(place), asked=self._asked(whole, None))
        if not isinstance(body, str | dict):
            raise ToolkitError(f"{where}: `body` is neither an object nor a text", BODY_EXAMPLE)
        whole = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else _dumped(body)
        path = _path(row)
        return Seen(
            ts=_moment(row, where) if self.has_times else float(place),
            client=self._address(first(row, "client", "remote_addr", "user")),
            method=text(row.get("method")),
            path=path,
            asked=self._asked(whole, path),
            **_answer(row),
        )

    def _asked(self, body: bytes, path: str | None) -> Asked:
        known = self._remembered.get(body_key(body))
        return known or self.remembered(asked_of(body, path=path, keep_text=self._keep_text))

    def _address(self, told: object) -> str | None:
        word = text(told)
        return None if word is None else self._client(word)


def has_body(row: Row) -> bool:
    """Whether a line holds a request body, rather than being one."""
    return row.get("body") is not None and all(row.get(name) is None for name in PROMPTS)


def has_time(row: Row) -> bool:
    """Whether a line with a request body says when it came."""
    return has_body(row) and first(row, *TIMES) is not None


BODY_EXAMPLE = 'A line is, e.g., `{"messages": [{"role": "user", "content": "Hi"}]}`, or has such an object as `body`'


def _moment(row: Row, where: str, *names: str) -> float:
    """When; a request without a time has no place among the others."""
    told = first(row, *(names or TIMES))
    found = moment(told)
    if found is None:
        wanted = "`msec` or `time_iso8601`" if names else "`ts` or `timestamp`"
        raise ToolkitError(
            f"{where} has no time that can be read", f"Write seconds since 1970 as {wanted}"
        )
    return found


def _answer(row: Row) -> dict[str, Any]:
    """What a line tells of the answer, in the words that are usual for it."""
    output = count(first(row, "output_tokens", "completion_tokens"))
    ttft = span(row.get("ttft_ms"))
    latency = span(first(row, "latency_ms", "e2e_ms", "duration_ms"))
    tpot = span(row.get("tpot_ms"))
    if latency is None and ttft is not None and tpot is not None and output:
        latency = ttft + tpot * (output - 1)  # what the time per output token says
    return {
        "status": count(first(row, "status", "status_code")),
        "ttft_ms": ttft,
        "latency_ms": latency,
        "prompt_tokens": count(row.get("prompt_tokens")),
        "cached_tokens": count(row.get("cached_tokens")),
        "output_tokens": output,
        "finish_reason": text(row.get("finish_reason")),
    }


def _parameters(row: Row) -> dict[str, Any]:
    """What a line tells of the request's own settings."""
    return {
        "model": text(row.get("model")),
        "stream": flag(first(row, "stream", "streaming")),
        "max_tokens": count(first(row, "max_tokens", "max_completion_tokens")),
        "temperature": number(row.get("temperature")),
        "top_p": number(row.get("top_p")),
        "n": count(row.get("n")),
        "seed": integer(row.get("seed")),
        "options": words(row.get("options")),
    }


def _cache(row: Row) -> SeenCache | None:
    told = first(row, "cache", "cache_status")
    return _CACHE.get(told.lower()) if isinstance(told, str) else None


def _is_new(row: Row) -> bool | None:
    """Whether a log calls a prompt new; some write a flag, some a word."""
    told = first(row, "new", "is_new", "unique", "is_unique", "new_or_repeat", "seen", "kind")
    if isinstance(told, str):
        return {"new": True, "unique": True, "repeat": False, "repeated": False}.get(told.lower())
    return flag(told)


def _path(row: Row) -> str | None:
    told = text(first(row, "path", "request_uri", "uri", "url", "endpoint"))
    return None if told is None else told.partition("?")[0]


def _request_line(row: Row) -> tuple[str | None, str | None]:
    """Method and path, told apart or as the request's first line."""
    method, path = text(first(row, "request_method", "method")), _path(row)
    line = text(row.get("request"))
    if line is not None and (method is None or path is None):
        parts = line.split(" ")
        method = method or parts[0]
        path = path or (parts[1].partition("?")[0] if len(parts) > 1 else None)
    return method, path


def _whole(row: Row) -> bytes | None:
    """A captured body, byte for byte; None: the line has none."""
    coded, body = row.get("body_base64"), row.get("body")
    if isinstance(coded, str):
        try:
            return base64.b64decode(coded, validate=True)
        except binascii.Error:
            return None
    return body.encode("utf-8", "surrogateescape") if isinstance(body, str) else None


def _dumped(fields: Row) -> bytes:
    """A body whose bytes nobody kept, written as most clients write it."""
    return json.dumps(fields, ensure_ascii=True).encode()
