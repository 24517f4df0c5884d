"""Which requests a log, a trace or a file of request bodies holds: its lines -> the same facts that a capture yields.

What a file is is found out by looking at its first lines. It opens nothing: lines come as an argument.

    capture    what `toolkit capture --json` prints and `--jsonl` writes
    proxy      what `toolkit proxy --log` writes; lines with `event` and without `request_id` are no requests, and are left out
    nginx      a log in JSON with `$request_body`, as below, or without, as `toolkit deploy` has it written
    bodies     one request body a line, or as `body` beside a capture's own keys, e.g., an OpenAI batch file; or an array of these
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

No trace holds a text. Of Azure and BurstGPT nobody knows which prompts were alike, so every row is one of its own;
Mooncake's ids, one per 512 tokens of a prompt, the last for what is left over, say it: equal ids and an equal length
are an equal prompt. Times count from the trace's own start where it has no calendar.
"""

import base64
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
from toolkit.units import counted
from toolkit.workload.columns import Identities

Kind = Literal["capture", "proxy", "nginx", "bodies", "azure", "burstgpt", "mooncake"]
Row = Mapping[str, Any]
Line = tuple[str, bytes]
"""Where it stands, as errors name it, and its text."""

FIELDS: dict[Kind, dict[str, tuple[str, ...]]] = {
    "capture": {},
    "proxy": {
        "client": ("team",),
        "server": ("upstream",),
        "output_tokens": ("completion_tokens",),
    },
    "nginx": {
        "ts": ("msec", "time_iso8601"),
        "client": ("remote_addr",),
        "server": ("server", "upstream_addr"),
        "method": ("request_method",),
        "path": ("request_uri",),
        "body": ("request_body",),
    },
    "bodies": {"ts": ("ts", "timestamp"), "path": ("path", "url")},
    "azure": {
        "ts": ("timestamp",),
        "prompt_tokens": ("contexttokens",),
        "output_tokens": ("generatedtokens",),
    },
    "burstgpt": {
        "ts": ("timestamp",),
        "prompt_tokens": ("request tokens",),
        "output_tokens": ("response tokens",),
        "model": ("model",),
    },
    "mooncake": {
        "ts": ("timestamp",),
        "prompt_tokens": ("input_length",),
        "output_tokens": ("output_length",),
    },
}
"""By our capture's name of a field: what it is called there, the first that is given counts. Columns of a table in lower case."""
TABLES: tuple[Kind, ...] = ("azure", "burstgpt")
PROMPTS = ("messages", "prompt", "input")
"""Where a request body keeps its prompt."""

LINE_BYTES = 64 * 1024 * 1024
"""A longer line is no request: a body of 16 MB takes four times as much where each of its bytes is escaped as one."""
ARRAY_BYTES = 512 * 1024 * 1024
"""A JSON array has to be read whole."""
LOOKED_AT = 20
"""Lines among which one must say what the file is."""
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

KNOWN = (
    "Known are lines of `toolkit capture --json`, the proxy's log, nginx's JSON log, request bodies one a line, and the"
    " Azure, BurstGPT and Mooncake traces"
)
BODY_EXAMPLE = 'A line is, e.g., `{"messages": [{"role": "user", "content": "Hi"}]}`, or has such an object as `body`'
TRACE_EXAMPLES: dict[Kind, str] = {
    "azure": "A row is, e.g., `2023-11-16 18:15:46.6805900,374,44`",
    "burstgpt": "A row is, e.g., `5,ChatGPT,472,18,490,Conversation log`, its first column seconds",
    "mooncake": (
        'A line is, e.g., `{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}`, '
        "its `timestamp` milliseconds, with one of `hash_ids` for each 512 tokens"
    ),
}
NOTES = {
    "torn": "{} cut off in the midst and left out",
    "no body": "{} POST without `request_body` in the log: nginx keeps it only up to `client_body_buffer_size`",
    "new": "the log itself calls {} new",
    "repeat": "the log itself calls {} a repeat",
    "no answer": "{} with an answer of no tokens, which BurstGPT's authors count as failures: their length is unknown",
}


@dataclass(slots=True, kw_only=True)
class RequestSource:
    """Where requests come from, and what is known of them."""

    kind: Kind
    seen: Iterator[Seen]
    """In the order of the file; to be read once."""
    identities: Identities
    beginnings: bool = False
    """Whether it is known how prompts begin alike; else `prompt_blocks` are empty whatever the prompts were."""
    arrivals: bool = True
    """False: the file has no times, and a request's `ts` is its place, 0 for the first."""
    notes: list[str] = field(default_factory=list)
    """What was met on the way; whole when `seen` has been read to its end."""
    summary: Row | None = None
    """What a capture says of its losses, once it was read: its last line."""


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
        row, is_first = _object(text), len(looked_at) == 1
        if is_first and text.startswith(b"["):
            return reader.array(chain(looked_at, numbered))
        if is_first and row is None:
            names = [cell.strip().lower() for cell in _cells(text)]
            if (kind := kind_of(names)) in TABLES:
                return reader.source(kind, {}, reader.rows(kind, numbered, names))
        elif row is not None and (kind := kind_of(row)) is not None:
            return reader.source(kind, row, reader.rows(kind, chain(looked_at, numbered)))
    if not looked_at:
        raise ToolkitError(f"`{name}` holds no request", KNOWN)
    raise ToolkitError(f"{looked_at[0][0]} is of no log or trace that is known", KNOWN)


def kind_of(fields: Iterable[str]) -> Kind | None:
    """What a JSON object is a line of, or a table, by the names of its fields or columns."""
    names = set(fields)
    for table in TABLES:
        if names.issuperset(chain(*FIELDS[table].values())):
            return table
    if "hash_ids" in names or {"timestamp", "input_length"} <= names:
        return "mooncake"
    if {"exact_key", "unique_so_far"} <= names or names == {"summary"}:
        return "capture"
    if "request_id" in names and names & {"team", "cache"}:
        return "proxy"
    is_timed = "request_time" in names and names & {"msec", "time_iso8601", "remote_addr"}
    if "request_body" in names or is_timed:
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


Entry = tuple[str, Row, bytes | None]
"""Where a row stands, the row, and the text that it was read from, if it has one of its own."""


class _Reader:
    """Reads one file: holds the bodies that it met, so that equal ones share one record, and counts what is to be noted."""

    def __init__(self, name: str, *, client: Callable[[str], str], keep_text: bool) -> None:
        self._name, self._client, self._keep_text = name, client, keep_text
        self._remembered: dict[str, Asked] = {}
        self._met: Counter[str] = Counter()

    # --- Files ----------------------------------------------------------------------------------

    def source(self, kind: Kind, row: Row, rows: Iterator[Entry]) -> RequestSource:
        """What is known of requests in such a file, judged by one row of it."""
        names = row.keys()
        has_bodies = kind == "bodies" or bool(names & {"body", "request_body"})
        identities: Identities = None
        if kind == "capture" or has_bodies or {"prompt_key", "request_key"} <= names:
            identities = "bodies"
        elif kind == "mooncake" or "prompt_key" in names:
            identities = "prompts"
        source = RequestSource(
            kind=kind,
            seen=iter(()),
            identities=identities,
            beginnings=has_bodies or kind == "mooncake",
            arrivals=kind != "bodies"
            or (_has_body(row) and _first(row, *FIELDS[kind]["ts"]) is not None),
        )

        def requests() -> Iterator[Seen]:
            place = 0
            for where, one, text in rows:
                if one.keys() == {"summary"}:
                    source.summary = one["summary"] if isinstance(one["summary"], dict) else None
                    continue
                yield self._request(kind, one, text, where, None if source.arrivals else place)
                place += 1
            for what, sentence in NOTES.items():
                if times := self._met[what]:
                    thing = "line" if what == "torn" else "request"
                    source.notes.append(sentence.format(counted(times, thing)))

        source.seen = requests()
        return source

    def rows(
        self, kind: Kind, lines: Iterator[Line], columns: list[str] | None = None
    ) -> Iterator[Entry]:
        """Each line's place, row and text; those that were cut off are counted. `columns`: names of a table's columns."""
        following, is_first = next(lines, None), True
        while following is not None:
            (where, text), following = following, next(lines, None)
            row = _object(text)
            if columns is not None:
                row = dict(zip(columns, _cells(text), strict=False))
                at, prompt, output, *_ = (row.get(name) for [name] in FIELDS[kind].values())
                if moment(at) is None or count(prompt) is None or count(output) is None:
                    row = None
            if row is not None:
                yield where, row, text
            # a new writer begins on a new line after one that the old one left unfinished; `tail -c` cuts the first
            elif following is None or (
                kind in ("capture", "proxy")
                and (is_first or (text.startswith(b"{") and not text.endswith(b"}")))
            ):
                self._met["torn"] += 1
            else:
                what, hint = "is not a JSON object", KNOWN
                if columns is not None:
                    what, hint = f"is no row of the {kind} trace", TRACE_EXAMPLES[kind]
                raise ToolkitError(f"{where} {what}", hint)
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

    # --- Rows -----------------------------------------------------------------------------------

    def _request(
        self, kind: Kind, row: Row, text: bytes | None, where: str, place: int | None
    ) -> Seen:
        """One request of any kind; without times, `ts` is its place."""
        if kind == "bodies" and not _has_body(row):
            # the line is the body; bytes that nobody kept are written as most clients write them
            row = {"ts": row.get("ts"), "body": text or json.dumps(row).encode()}
        row = {**row, **{name: _first(row, *theirs) for name, theirs in FIELDS[kind].items()}}
        at = moment(row.get("ts")) if place is None else float(place)
        if kind == "nginx":
            took_s = span(row.get("request_time"))
            row["latency_ms"] = None if took_s is None else took_s * 1e3
            # nginx writes a line when it is done with a request
            at = None if at is None else at - (took_s or 0.0)
            # the request's first line, e.g., `POST /v1/completions HTTP/1.1`
            first, _, target = (_text(row.get("request")) or "").partition(" ")
            row["method"] = row["method"] or first
            row["path"] = row["path"] or target.partition(" ")[0]
        elif kind == "mooncake":
            at = self._mooncake(row, where)
        elif kind == "burstgpt" and not count(row["output_tokens"]):
            # its authors count an answer of no tokens as a failure, which says nothing of lengths
            row["output_tokens"] = None
            self._met["no answer"] += 1
        elif kind == "proxy" and isinstance(row.get("new"), bool):
            self._met["new" if row["new"] else "repeat"] += 1
        if at is None:
            name = FIELDS[kind].get("ts", ("ts",))[0]
            raise ToolkitError(
                f"{where} has no time that can be read", f"Write seconds since 1970 as `{name}`"
            )
        fields = _converted(row, EXCHANGE)
        fields["path"] = _text((fields["path"] or "").partition("?")[0])
        if fields["client"] is not None and kind in ("nginx", "bodies"):
            fields["client"] = self._client(fields["client"])
        asked = self._asked(kind, row, where, fields["method"], fields["path"])
        if kind in TRACE_EXAMPLES:
            fields["prompt_tokens"] = None  # it is the request's, and not by the answer's usage
        damaged, cache = row.get("damaged") is True, row.get("cache")
        return Seen(
            ts=at,
            asked=asked,
            damaged=damaged,
            problem=_text(row.get("problem")) if damaged else None,
            cache=cache if cache in ("hit", "miss", "coalesced") else None,
            **fields,
        )

    def _mooncake(self, row: dict[str, Any], where: str) -> float:
        """Check a line of Mooncake's, give its row the keys and blocks of its prompt, and say when it came."""
        ms, ids, tokens = number(row["ts"]), row.get("hash_ids"), count(row["prompt_tokens"])
        whole, rest = divmod(tokens or 0, MOONCAKE_BLOCK)
        # one for each 512 tokens and one for the rest, which a trace may leave out
        if (
            (ms is None or ms < 0 or tokens is None)
            or not isinstance(ids, list)
            or not all(type(one) is int and 0 <= one < 2**64 for one in ids)
            or not whole <= len(ids) <= whole + bool(rest)
        ):
            raise ToolkitError(
                f"{where} is no line of the mooncake trace", TRACE_EXAMPLES["mooncake"]
            )
        blocks = b"".join(one.to_bytes(8) for one in ids)
        # without an id for the rest of it nobody knows what a prompt ends with
        is_known = len(ids) * MOONCAKE_BLOCK >= tokens
        key = key_of(blocks.hex(), tokens, "" if is_known else where)
        row |= dict.fromkeys(("exact_key", "request_key", "prompt_key"), key)
        row["prompt_blocks"] = blocks[: 8 * whole]
        return ms / 1e3

    def _asked(
        self, kind: Kind, row: Row, where: str, method: str | None, path: str | None
    ) -> Asked | None:
        """What is asked for: by the body's bytes where they were kept, else by its keys; else it is like no other, or no prompt."""
        body, coded = row.get("body"), row.get("body_base64")
        if isinstance(coded, str):
            try:
                body = base64.b64decode(coded, validate=True)
            except ValueError:
                body = None
        elif kind == "bodies" and isinstance(body, dict):
            body = json.dumps(body).encode()
        elif isinstance(body, str) and not (kind == "nginx" and body in ("", "-")):
            body = body.encode("utf-8", "surrogateescape")
        elif kind == "bodies" and not isinstance(body, bytes):
            raise ToolkitError(f"{where}: `body` is neither an object nor a text", BODY_EXAMPLE)
        if isinstance(body, bytes):
            known = self._remembered.get(body_key(body))
            return known or self._shared(asked_of(body, path=path, keep_text=self._keep_text))

        keys = {name: _text(row.get(name)) for name in ("exact_key", "request_key", "prompt_key")}
        exact = keys["exact_key"] or keys["request_key"] or keys["prompt_key"]
        if exact is None:
            # a line of the proxy's with `prompt_key` without a value is of a request that had no prompt, e.g., `GET /v1/models`
            is_asking = kind in TABLES or (kind == "proxy" and "prompt_key" not in row)
            if kind == "nginx" and method == "POST":
                is_asking = True
                self._met["no body"] += 1
            if not is_asking:
                return None
            # nobody knows whether another was like it
            exact = keys["prompt_key"] = key_of(where)
        if kind == "proxy":
            # a body whose prompt the proxy did not understand is a prompt of its own
            keys["prompt_key"] = keys["prompt_key"] or keys["request_key"] or exact
        if exact in self._remembered:
            return self._remembered[exact]
        fields = _converted(row, SETTINGS)
        stream, seed, options = row.get("stream"), row.get("seed"), row.get("options")
        preview = _text(row.get("prompt_preview"))
        if preview is not None and len(preview) < PREVIEW_CHARS and self._keep_text:
            fields["prompt_text"] = preview
        if kind in TRACE_EXAMPLES:
            fields["prompt_tokens"] = count(row["prompt_tokens"])
        if kind == "mooncake":
            fields |= {"prompt_blocks": row["prompt_blocks"], "block_tokens": float(MOONCAKE_BLOCK)}
        if isinstance(options, list):
            fields["options"] = tuple(one for one in options if isinstance(one, str))
        return self._shared(
            Asked(
                exact_key=exact,
                request_key=keys["request_key"],
                prompt_key=keys["prompt_key"],
                problem=None if row.get("damaged") else _text(row.get("problem")),
                body_bytes=count(row.get("body_bytes")) or 0,
                images=count(row.get("images")) or 0,
                stream=stream if isinstance(stream, bool) else None,
                seed=seed if type(seed) is int and abs(seed) <= MOST else None,
                **fields,
            )
        )

    def _shared(self, asked: Asked) -> Asked:
        """The one record of all equal bodies."""
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        return self._remembered.setdefault(asked.exact_key, asked)


def _has_body(row: Row) -> bool:
    """Whether a line holds a request body, rather than being one."""
    return row.get("body") is not None and all(row.get(name) is None for name in PROMPTS)


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
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8) + text)
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


Types = dict[Callable[[object], Any], tuple[str, ...]]

EXCHANGE: Types = {
    _text: ("client", "server", "method", "path", "finish_reason"),
    span: ("took_ms", "ttft_ms", "latency_ms"),
    count: ("status", "prompt_tokens", "cached_tokens", "output_tokens", "in_flight"),
}
"""Fields of a row that are Seen's, by what they have to be."""
SETTINGS: Types = {
    _text: ("model",),
    count: ("max_tokens", "n", "messages", "prompt_chars"),
    number: ("temperature", "top_p"),
}
"""The same of Asked's."""


def _converted(row: Row, types: Types) -> dict[str, Any]:
    return {name: convert(row.get(name)) for convert, names in types.items() for name in names}
