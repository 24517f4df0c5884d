"""Requests from elsewhere: lines of a log, of a trace or of plain request bodies -> the same facts that a capture yields.

What a file is is found out by looking at its first lines. It opens nothing: lines come as an argument.

    capture    what `toolkit capture --json` prints and `--jsonl` writes
    proxy      what `toolkit proxy --log` writes: request_id, team, model, prompt_tokens, completion_tokens, ttft_ms, cache,
               finish_reason, new; lines with `event` and without `request_id` are no requests, and are left out
    nginx      a log in JSON with `$request_body`, as `toolkit deploy` has it written (below)
    bodies     one request body a line, or as `body` in it, e.g., an OpenAI batch file; or a JSON array of these
    azure      TIMESTAMP,ContextTokens,GeneratedTokens                                   Azure LLM inference 2023, 2024
    burstgpt   Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    mooncake   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}

What nginx has to log, with bodies of up to a megabyte (a larger one, or one that went to a file, is not in the log):

    log_format requests escape=json '{"msec":$msec,"remote_addr":"$remote_addr","server":"$server_addr:$server_port",'
        '"request_method":"$request_method","request_uri":"$request_uri","status":$status,'
        '"request_time":$request_time,"request_body":"$request_body"}';
    access_log /var/log/nginx/requests.jsonl requests;
    client_body_buffer_size 1m;
    client_body_in_single_buffer on;

Such a log holds every prompt in plain text, and `$request_body` is known only where nginx hands requests on (`proxy_pass`).

No trace holds a text. Of Azure and BurstGPT nobody can tell which prompts were alike, so every row is one of its own;
Mooncake's ids, one per 512 tokens of a prompt, the last for what is left over, say it: equal ids and an equal length
are an equal prompt. Times count from the trace's own start where it has no calendar.
"""

import base64
import binascii
import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Literal

import orjson

from toolkit.errors import ToolkitError
from toolkit.protocol.request import asked as asked_of
from toolkit.protocol.request_key import body_key
from toolkit.records import Asked, Seen
from toolkit.workload.columns import Identities

Kind = Literal["capture", "proxy", "nginx", "bodies", "azure", "burstgpt", "mooncake"]
Row = Mapping[str, Any]
Line = tuple[str, bytes]
"""Where it stands, as errors name it, and its text."""

LINE_BYTES = 64 * 1024 * 1024
"""A longer line is no request: a body of 16 MB takes four times as much where each of its bytes is escaped as one."""
ARRAY_BYTES = 512 * 1024 * 1024
"""A JSON array has to be read whole."""
LOOKED_AT = 20
"""Lines among which one must tell what the file is."""
REMEMBERED = 65_536
"""So many different bodies are held to be shared by those that are equal, then forgotten at once."""
PREVIEW_CHARS = 80
"""A shorter preview of our capture's is the whole text."""
MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's ids stands for."""
MOST = 2**63 - 1
"""No count is larger; it is somebody's nonsense, and unknown."""
MOST_SPAN = 1e12
"""Milliseconds: 31 years."""

TIMES = ("ts", "timestamp", "time", "at", "received_at", "created_at", "started_at")
PROMPTS = ("messages", "prompt", "input", "inputs")
"""Where a request body keeps its prompt."""
AZURE = ("timestamp", "contexttokens", "generatedtokens")
BURSTGPT = ("timestamp", "request tokens", "response tokens", "model")
"""Columns that tell a table, in lower case; more may follow."""

KNOWN = (
    "Known are lines of `toolkit capture --json`, the proxy's log, nginx's JSON log, request bodies one a line, and the"
    " Azure, BurstGPT and Mooncake traces"
)
BODY_EXAMPLE = 'A line is, e.g., `{"messages": [{"role": "user", "content": "Hi"}]}`, or has such an object as `body`'
AZURE_EXAMPLE = "A row is, e.g., `2023-11-16 18:15:46.6805900,374,44`"
BURSTGPT_EXAMPLE = (
    "A row is, e.g., `5,ChatGPT,472,18,490,Conversation log`, its first column seconds"
)
MOONCAKE_EXAMPLE = (
    'A line is, e.g., `{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}`, '
    "its `timestamp` milliseconds, with one of `hash_ids` for each 512 tokens"
)

_NOTES = {
    "torn": "{count} cut off in the midst and left out",
    "no body": "{count} POST without `request_body` in the log: nginx keeps it only up to `client_body_buffer_size`",
    "new": "the log itself calls {count} new",
    "repeat": "the log itself calls {count} a repeat",
    "no answer": "{count} with an answer of no tokens, which BurstGPT's authors count as failures: their length is unknown",
}


@dataclass(slots=True, kw_only=True)
class RequestSource:
    """Where requests come from, and what can be said of them."""

    kind: Kind
    seen: Iterator[Seen]
    """In the order of the file; to be read once."""
    identities: Identities
    beginnings: bool = False
    """Whether it is known how prompts begin alike; else `prompt_blocks` are empty whatever the prompts were."""
    arrivals: bool = True
    """False: the file tells no times, and a request's `ts` is its place, 0 for the first."""
    notes: list[str] = field(default_factory=list)
    """What was met on the way; whole when `seen` has been read to its end."""
    summary: Row | None = None
    """A capture's own word on its losses, once it was read: its last line."""


def lines_of(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """A file's lines, none longer than what is refused anyway: a file of one line must not fill the memory."""
    return iter(lambda: readline(LINE_BYTES + 2), b"")


def read(
    lines: Iterable[bytes], name: str, *, client: Callable[[str], str], keep_text: bool = False
) -> RequestSource:
    """Find out what the lines of file `name` are and read them. Raises ToolkitError naming the line at fault.

    `client` turns an address into what is shown of it. `keep_text`: prompts are kept to read. The error of a later
    line comes from the iterator.
    """
    reader = _Reader(name, client=client, keep_text=keep_text)
    numbered = _numbered(lines, name)
    looked_at: list[Line] = []
    for where, text in islice(numbered, LOOKED_AT):
        looked_at.append((where, text))
        is_first = len(looked_at) == 1
        if is_first:
            names = [cell.strip().lower() for cell in _cells(text)]
            if set(AZURE) <= set(names):
                return reader.table("azure", names, numbered)
            if set(BURSTGPT) <= set(names):
                return reader.table("burstgpt", names, numbered)
        if text.startswith(b"["):
            if is_first:
                return reader.array(chain(looked_at, numbered))
            continue
        row = _object(text)
        kind = None if row is None else kind_of(row)
        if row is not None and kind is not None:
            rows = reader.objects(kind, chain(looked_at, numbered))
            return reader.source(kind, row, rows)
    if not looked_at:
        raise ToolkitError(f"`{name}` holds no request", KNOWN)
    raise ToolkitError(f"{looked_at[0][0]} is of no log or trace that is known", KNOWN)


def kind_of(row: Row) -> Kind | None:
    """What a JSON object is a line of, by the names of its fields."""
    names = row.keys()
    if "hash_ids" in names or {"timestamp", "input_length"} <= names:
        return "mooncake"
    if {"exact_key", "unique_so_far"} <= names or names == {"summary"}:
        return "capture"
    if "request_id" in names and names & {
        *("team", "cache", "ttft_ms", "completion_tokens", "finish_reason")
    }:
        return "proxy"
    is_nginx = "request_time" in names and names & {"msec", "time_iso8601", "remote_addr"}
    if "request_body" in names or is_nginx:
        return "nginx"
    return "bodies" if names & {"body", *PROMPTS} else None


def _numbered(lines: Iterable[bytes], name: str) -> Iterator[Line]:
    """Lines with their place, but blank ones and the proxy's events."""
    for number, line in enumerate(lines, start=1):
        where = f"`{name}` line {number}"
        if len(line) > LINE_BYTES + 1:
            raise ToolkitError(
                f"{where} is longer than {LINE_BYTES >> 20} MiB", "Write one request a line"
            )
        text = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if text.startswith(b'{"event":'):
            row = _object(text)
            if row is not None and "ts" in row and kind_of(row) is None:
                continue
        if text:
            yield where, text


class _Reader:
    """Reads one file: holds the bodies that it met, so that equal ones share one record, and counts what is to be noted."""

    def __init__(self, name: str, *, client: Callable[[str], str], keep_text: bool) -> None:
        self._name, self._client, self._keep_text = name, client, keep_text
        self._remembered: dict[str, Asked] = {}
        self._met: Counter[str] = Counter()

    # --- Files ----------------------------------------------------------------------------------

    def source(
        self, kind: Kind, row: Row, rows: Iterator[tuple[str, Row, bytes | None]]
    ) -> RequestSource:
        """What can be said of requests in such a file, judged by one row of it."""
        keys, has_body = len({"prompt_key", "request_key"} & row.keys()), "request_body" in row
        is_nameless = (kind == "proxy" and not keys) or (kind == "nginx" and not has_body)
        is_by_prompt = kind == "mooncake" or (kind == "proxy" and keys == 1)
        source = RequestSource(
            kind=kind,
            seen=iter(()),
            identities=None if is_nameless else "prompts" if is_by_prompt else "bodies",
            beginnings=kind in ("bodies", "mooncake")
            or (kind == "capture" and "body" in row)
            or (kind == "nginx" and has_body),
            arrivals=kind != "bodies" or (_has_body(row) and _first(row, *TIMES) is not None),
        )
        source.seen = self._read(source, rows)
        return source

    def _read(
        self, source: RequestSource, rows: Iterator[tuple[str, Row, bytes | None]]
    ) -> Iterator[Seen]:
        place = 0
        for where, row, line in rows:
            if row.keys() == {"summary"}:
                source.summary = row["summary"] if isinstance(row["summary"], dict) else None
                continue
            match source.kind:
                case "capture":
                    yield self._captured(row, where)
                case "proxy":
                    yield self._proxied(row, where)
                case "nginx":
                    yield self._nginx(row, where)
                case "mooncake":
                    yield self._mooncake(row, where)
                case _:
                    ts = _time(row, where) if source.arrivals else float(place)
                    yield self._body(row, line, where, ts)
            place += 1
        source.notes += self._notes()

    def objects(self, kind: Kind, lines: Iterator[Line]) -> Iterator[tuple[str, Row, bytes | None]]:
        """Each line's place, object and text; those that were cut off are counted."""
        following, is_first = next(lines, None), True
        while following is not None:
            (where, text), following = following, next(lines, None)
            row = _object(text)
            if row is not None:
                yield where, row, text
            # a new writer begins on a new line after one that the old one left unfinished; `tail -c` cuts the first
            elif following is None or (
                kind in ("capture", "proxy")
                and (is_first or (text.startswith(b"{") and not text.endswith(b"}")))
            ):
                self._met["torn"] += 1
            else:
                raise ToolkitError(f"{where} is not a JSON object", KNOWN)
            is_first = False

    def array(self, lines: Iterator[Line]) -> RequestSource:
        """A list of objects, which are then read like lines."""
        size, parts = 0, []
        for _, text in lines:
            parts.append(text)
            size += len(text)
            if size > ARRAY_BYTES:
                raise ToolkitError(
                    f"`{self._name}` is a list of more than {ARRAY_BYTES >> 20} MiB",
                    "Write one request a line, e.g., with `jq -c '.[]'`",
                )
        entries = _loaded(b"\n".join(parts))
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise ToolkitError(f"`{self._name}` is no JSON list of objects", KNOWN)
        kind = kind_of(entries[0]) if entries else None
        if kind is None:
            raise ToolkitError(f"`{self._name}` is a list of nothing that is known", KNOWN)
        rows = (
            (f"`{self._name}` entry {number}", row, None) for number, row in enumerate(entries, 1)
        )
        return self.source(kind, entries[0], rows)

    def table(
        self, kind: Literal["azure", "burstgpt"], names: list[str], lines: Iterator[Line]
    ) -> RequestSource:
        """Rows of a trace in columns."""
        source = RequestSource(kind=kind, seen=iter(()), identities=None)
        is_azure = kind == "azure"

        def requests() -> Iterator[Seen]:
            for where, text in lines:
                row = dict(zip(names, _cells(text), strict=False))
                when, asked_tokens, answered_tokens, *_ = AZURE if is_azure else BURSTGPT
                ts = moment(row.get(when)) if is_azure else number(row.get(when))
                prompt, output = count(row.get(asked_tokens)), count(row.get(answered_tokens))
                if ts is None or ts < 0 or prompt is None or output is None:
                    if next(lines, None) is None:
                        self._met["torn"] += 1
                        break
                    trace, example = (
                        ("an Azure", AZURE_EXAMPLE)
                        if is_azure
                        else ("a BurstGPT", BURSTGPT_EXAMPLE)
                    )
                    raise ToolkitError(f"{where} is no row of {trace} trace", example)
                if not is_azure and not output:
                    # its authors count an answer of no tokens as a failure, which says nothing of lengths
                    output = None
                    self._met["no answer"] += 1
                key = key_of(self._name, where)  # nobody knows whether another was like it
                asked = Asked(
                    exact_key=key,
                    prompt_key=key,
                    body_bytes=0,
                    model=None if is_azure else _text(row.get("model")),
                    prompt_tokens=prompt,
                )
                yield Seen(ts=ts, asked=asked, output_tokens=output)
            source.notes += self._notes()

        source.seen = requests()
        return source

    def _notes(self) -> list[str]:
        found = []
        for what, sentence in _NOTES.items():
            if times := self._met[what]:
                thing = "line" if what == "torn" else "request"
                found.append(sentence.format(count=f"{times:,} {thing}{'' if times == 1 else 's'}"))
        return found

    # --- Rows -----------------------------------------------------------------------------------

    def _captured(self, row: Row, where: str) -> Seen:
        """A request by its body's bytes where they were kept, else by its keys."""
        coded, body = row.get("body_base64"), row.get("body")
        whole = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else None
        if isinstance(coded, str):
            try:
                whole = base64.b64decode(coded, validate=True)
            except binascii.Error:
                whole = None
        damaged, problem = row.get("damaged") is True, _text(row.get("problem"))
        exact, asked = _text(row.get("exact_key")), None
        if whole is not None:
            asked = self._asked(whole, _path(row))
        elif exact is not None and (asked := self._remembered.get(exact)) is None:
            preview = _text(row.get("prompt_preview"))
            is_whole = preview is not None and len(preview) < PREVIEW_CHARS
            asked = self._shared(
                Asked(
                    exact_key=exact,
                    request_key=_text(row.get("request_key")),
                    prompt_key=_text(row.get("prompt_key")),
                    problem=None if row.get("damaged") else problem,
                    body_bytes=count(row.get("body_bytes")) or 0,
                    messages=count(row.get("messages")),
                    images=count(row.get("images")) or 0,
                    prompt_chars=count(row.get("prompt_chars")),
                    prompt_text=preview if is_whole and self._keep_text else None,
                    **_parameters(row),
                )
            )
        return Seen(
            ts=_time(row, where),
            took_ms=span(row.get("took_ms")),
            server=_text(row.get("server")),
            asked=asked,
            damaged=damaged,
            problem=problem if damaged else None,
            in_flight=count(row.get("in_flight")),
            client=_text(row.get("client")),
            **_exchange(row),
        )

    def _proxied(self, row: Row, where: str) -> Seen:
        if isinstance(row.get("new"), bool):
            self._met["new" if row["new"] else "repeat"] += 1
        prompt, request = _text(row.get("prompt_key")), _text(row.get("request_key"))
        exact = _text(row.get("exact_key")) or request or prompt
        asked = None
        # a line that has `prompt_key` without a value is of a request that had no prompt, e.g., `GET /v1/models`
        if exact is not None or "prompt_key" not in row:
            exact = exact or key_of(self._name, where)
            asked = self._shared(
                Asked(
                    exact_key=exact,
                    request_key=request,
                    prompt_key=prompt or request or exact,
                    body_bytes=count(row.get("body_bytes")) or 0,
                    prompt_chars=count(row.get("prompt_chars")),
                    **_parameters(row),
                )
            )
        cache = row.get("cache")
        return Seen(
            ts=_time(row, where),
            server=_text(row.get("upstream")),
            asked=asked,
            client=_text(row.get("team")),
            cache=cache if cache in ("hit", "miss", "coalesced") else None,
            **_exchange(row),
        )

    def _nginx(self, row: Row, where: str) -> Seen:
        exchange = _exchange(row)
        took_s = span(row.get("request_time"))
        exchange["latency_ms"] = None if took_s is None else took_s * 1e3
        exchange["method"] = _text(_first(row, "request_method", "method"))
        line = _text(row.get("request"))
        if line is not None:  # the request's first line, e.g., `POST /v1/completions HTTP/1.1`
            method, _, target = line.partition(" ")
            path = target.split(" ")[0].partition("?")[0]
            exchange["method"] = exchange["method"] or method
            exchange["path"] = exchange["path"] or path or None
        body, asked = row.get("request_body"), None
        if isinstance(body, str) and body not in ("", "-"):
            asked = self._asked(body.encode("utf-8", "surrogateescape"), exchange["path"])
        elif exchange["method"] == "POST":
            self._met["no body"] += 1
            key = key_of(self._name, where)
            asked = Asked(exact_key=key, prompt_key=key, body_bytes=0)
        return Seen(
            # nginx writes a line when it is done with a request
            ts=_time(row, where, "msec", "time_iso8601", *TIMES) - (took_s or 0.0),
            client=self._address(_first(row, "remote_addr", "client")),
            server=_text(_first(row, "server", "upstream_addr", "server_addr", "host")),
            asked=asked,
            **exchange,
        )

    def _body(self, row: Row, line: bytes | None, where: str, ts: float) -> Seen:
        """A line that is a request's body, byte for byte, or holds one."""
        if not _has_body(row):
            # bytes that nobody kept are written as most clients write them
            return Seen(ts=ts, asked=self._asked(line or json.dumps(row).encode(), None))
        body = row["body"]
        if not isinstance(body, str | dict):
            raise ToolkitError(f"{where}: `body` is neither an object nor a text", BODY_EXAMPLE)
        text = body if isinstance(body, str) else json.dumps(body)
        return Seen(
            ts=ts,
            client=self._address(_first(row, "client", "remote_addr", "user")),
            asked=self._asked(text.encode("utf-8", "surrogateescape"), _path(row)),
            **_exchange(row),
        )

    def _mooncake(self, row: Row, where: str) -> Seen:
        ms, ids = number(row.get("timestamp")), row.get("hash_ids")
        tokens, output = count(row.get("input_length")), count(row.get("output_length"))
        whole, rest = divmod(tokens or 0, MOONCAKE_BLOCK)
        # one for each 512 tokens and one for the rest, which a trace may leave out
        if (
            (ms is None or ms < 0 or tokens is None)
            or not isinstance(ids, list)
            or not all(type(one) is int and 0 <= one < 2**64 for one in ids)
            or not whole <= len(ids) <= whole + bool(rest)
        ):
            raise ToolkitError(f"{where} is no line of a Mooncake trace", MOONCAKE_EXAMPLE)
        blocks = b"".join(one.to_bytes(8) for one in ids)
        # without an id for the rest of it nobody knows what a prompt ends with
        is_known = len(ids) * MOONCAKE_BLOCK >= tokens
        key = key_of(blocks.hex(), tokens, "" if is_known else where)
        asked = Asked(
            exact_key=key,
            request_key=key,
            prompt_key=key,
            body_bytes=0,
            prompt_tokens=tokens,
            prompt_blocks=blocks[: 8 * whole],
            block_tokens=float(MOONCAKE_BLOCK),
        )
        return Seen(ts=ms / 1e3, asked=self._shared(asked), output_tokens=output)

    def _asked(self, body: bytes, path: str | None) -> Asked:
        known = self._remembered.get(body_key(body))
        return known or self._shared(asked_of(body, path=path, keep_text=self._keep_text))

    def _shared(self, asked: Asked) -> Asked:
        """The one record of all equal bodies."""
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        return self._remembered.setdefault(asked.exact_key, asked)

    def _address(self, value: object) -> str | None:
        word = _text(value)
        return None if word is None else self._client(word)


def _has_body(row: Row) -> bool:
    """Whether a line holds a request body, rather than being one."""
    return row.get("body") is not None and all(row.get(name) is None for name in PROMPTS)


def _time(row: Row, where: str, *names: str) -> float:
    """When; a request without a time has no place among the others."""
    found = moment(_first(row, *(names or TIMES)))
    if found is None:
        wanted = "`msec` or `time_iso8601`" if names else "`ts` or `timestamp`"
        raise ToolkitError(
            f"{where} has no time that can be read", f"Write seconds since 1970 as {wanted}"
        )
    return found


def _exchange(row: Row) -> dict[str, Any]:
    """Method, path and what a line tells of the answer, in the words that are usual for it."""
    output = count(_first(row, "output_tokens", "completion_tokens"))
    ttft = span(row.get("ttft_ms"))
    latency = span(_first(row, "latency_ms", "e2e_ms", "duration_ms"))
    tpot = span(row.get("tpot_ms"))
    if latency is None and ttft is not None and tpot is not None and output:
        latency = ttft + tpot * (output - 1)  # what the time per output token says
    return {
        "method": _text(row.get("method")),
        "path": _path(row),
        "status": count(_first(row, "status", "status_code")),
        "ttft_ms": ttft,
        "latency_ms": latency,
        "prompt_tokens": count(row.get("prompt_tokens")),
        "cached_tokens": count(row.get("cached_tokens")),
        "output_tokens": output,
        "finish_reason": _text(row.get("finish_reason")),
    }


def _parameters(row: Row) -> dict[str, Any]:
    """What a line tells of the request's own settings."""
    stream, seed, options = row.get("stream"), row.get("seed"), row.get("options")
    return {
        "model": _text(row.get("model")),
        "stream": stream if isinstance(stream, bool) else None,
        "max_tokens": count(_first(row, "max_tokens", "max_completion_tokens")),
        "temperature": number(row.get("temperature")),
        "top_p": number(row.get("top_p")),
        "n": count(row.get("n")),
        "seed": seed if type(seed) is int and abs(seed) <= MOST else None,
        "options": tuple(one for one in options if isinstance(one, str))
        if isinstance(options, list)
        else (),
    }


def _path(row: Row) -> str | None:
    path = _text(_first(row, "path", "request_uri", "uri", "url", "endpoint"))
    return None if path is None else path.partition("?")[0]


# --- Values that others wrote, taken for what they are meant to be; what is none is None --------------


def _first(fields: Row, *names: str) -> Any:
    """The first of these fields that says anything."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _text(value: object) -> str | None:
    """A text that is not empty; nginx and others write `-` for none."""
    return value if isinstance(value, str) and value not in ("", "-") else None


def number(value: object) -> float | None:
    """A finite number, also one that stands in quotes."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def span(value: object) -> float | None:
    """A length of time from 0 up, in whatever unit; one that nobody can have waited is unknown."""
    found = number(value)
    return None if found is None or not 0 <= found <= MOST_SPAN else found


def count(value: object) -> int | None:
    """A whole number from 0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MOST else None
    found = number(value)
    if found is None or found != int(found) or not 0 <= found <= 2**53:
        return None  # past 2**53 a float is not sure of its last digit
    return int(found)


def moment(value: object) -> float | None:
    """Seconds since 1970, of a number (its size tells the unit) or of a date and time; without a zone it is UTC."""
    found = number(value)
    if found is not None:
        if found < 0:
            return None
        # 1e11 s is the year 5138, 1e11 ms is March 1973
        units = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (math.inf, 1e9))
        return next(found / each for below, each in units if found < below)
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if read is None:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def key_of(*parts: object) -> str:
    """32 hexadecimal digits, equal for equal parts."""
    digest = blake2b(digest_size=16)
    for part in parts:
        told = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(told).to_bytes(8) + told)
    return digest.hexdigest()


def _object(line: bytes) -> Row | None:
    found = _loaded(line)
    return found if isinstance(found, dict) else None


def _loaded(text: bytes) -> Any:
    """JSON, also with what orjson refuses but logs hold: bytes that are no UTF-8, half surrogate pairs."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error:  # a field beyond csv's limit of 128 KB, a bare carriage return
        return []
