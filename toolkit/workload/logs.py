"""Requests from elsewhere: lines of a log, of a trace or of plain request bodies -> the same facts that a capture yields.

What a file is is found out by looking at its first lines. It opens nothing: lines come as an argument.

    capture    what `toolkit capture --json` prints and `--jsonl` writes
    proxy      a proxy's log: request_id, team, model, prompt_tokens, completion_tokens, ttft_ms, cache, finish_reason, new;
               lines with `event` and without `request_id` tell of no request, and are left out
    requests   a cache proxy's log: prompt preview, new or repeat, stream, max_tokens, temperature, model
    nginx      a log in JSON with `$request_body` (log_rows.py has the line to put into nginx.conf)
    bodies     one request body a line, or as `body` in it, e.g., an OpenAI batch file; or a JSON array of these
    azure, burstgpt, mooncake    public traces (traces.py)
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import orjson

from toolkit.errors import ToolkitError
from toolkit.records import Seen
from toolkit.workload import traces
from toolkit.workload.log_rows import PROMPTS, LogKind, Rows, has_time

Kind = Literal["capture", "proxy", "requests", "nginx", "bodies", "azure", "burstgpt", "mooncake"]

LINE_BYTES = 64 * 1024 * 1024
"""A longer line is no request: a body of 16 MB takes four times as much where each of its bytes is escaped as one."""
ARRAY_BYTES = 512 * 1024 * 1024
"""A JSON array has to be read whole."""
LOOKED_AT = 20
"""Lines among which one must tell what the file is."""

KNOWN = (
    "Known are lines of `toolkit capture --json`, a proxy's or nginx's JSON log, request bodies one a line, and the"
    " Azure, BurstGPT and Mooncake traces"
)

_NOTES = {
    "torn": "{count} cut off in the midst and left out",
    "no body": "{count} POST without `request_body` in the log: nginx keeps it only up to `client_body_buffer_size`",
    "new": "the log itself calls {count} new",
    "repeat": "the log itself calls {count} a repeat",
    "same preview": "{count} called new with a preview that came before: repeats of it count as the latest's",
    "no answer": "{count} with an answer of no tokens, which BurstGPT's authors count as failures: their length is unknown",
}


@dataclass(slots=True, kw_only=True)
class RequestSource:
    """Where requests come from, and what can be said of them."""

    kind: Kind
    seen: Iterator[Seen]
    """In the order of the file; to be read once."""
    identities: Literal["bodies", "prompts"] | None
    """What tells requests apart: whole bodies; prompts only, the settings not; None: nothing, so that each counts as
    unlike all others, and nothing that depends on repetition is known."""
    beginnings: bool = False
    """Whether it is known how prompts begin alike; else `prompt_blocks` are empty whatever the prompts were."""
    arrivals: bool
    """False: the file tells no times, and a request's `ts` is its place, 0 for the first."""
    notes: list[str] = field(default_factory=list)
    """What was met on the way; whole when `seen` has been read to its end."""
    summary: Mapping[str, Any] | None = None
    """A capture's own word on its losses, once it was read: its last line."""


@dataclass(frozen=True, slots=True)
class _LogLine:
    where: str
    text: bytes
    is_last: bool
    is_first: bool


def lines_of(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """A file's lines, none longer than what is refused anyway: a file of one line must not fill the memory."""
    return iter(lambda: readline(LINE_BYTES + 2), b"")


def read(
    lines: Iterable[bytes],
    name: str,
    *,
    client: Callable[[str], str],
    keep_text: bool = False,
) -> RequestSource:
    """Find out what the lines of file `name` are and read them. Raises ToolkitError naming the line at fault.

    `client` turns an address into what is shown of it. `keep_text`: prompts are kept to read. The error of a later
    line comes from the iterator.
    """
    numbered = (line for line in _numbered(lines, name) if not _is_event(line.text))
    looked_at: list[_LogLine] = []
    for line in numbered:
        looked_at.append(line)
        source = _source(line, name, chain(looked_at, numbered), client, keep_text)
        if source is not None:
            return source
        if len(looked_at) == LOOKED_AT:
            break
    if not looked_at:
        raise ToolkitError(f"`{name}` holds no request", KNOWN)
    raise ToolkitError(f"{looked_at[0].where} is of no log or trace that is known", KNOWN)


def _numbered(lines: Iterable[bytes], name: str) -> Iterator[_LogLine]:
    """Lines that are not blank, with their place."""
    held: _LogLine | None = None
    is_first = True
    for number, line in enumerate(lines, start=1):
        where = f"`{name}` line {number}"
        if len(line) > LINE_BYTES + 1:
            raise ToolkitError(
                f"{where} is longer than {LINE_BYTES >> 20} MiB", "Write one request a line"
            )
        told = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if told:
            if held is not None:
                yield held
            held = _LogLine(where, told, is_last=False, is_first=is_first)
            is_first = False
    if held is not None:
        yield _LogLine(held.where, held.text, is_last=True, is_first=held.is_first)


def _is_event(line: bytes) -> bool:
    """Whether a line tells what happened in a proxy beside the requests; nothing else begins so and is nothing known."""
    row = _object(line) if line.startswith(b'{"event":') else None
    return row is not None and "ts" in row and kind_of(row) is None


def _source(
    line: _LogLine,
    name: str,
    lines: Iterator[_LogLine],
    client: Callable[[str], str],
    keep_text: bool,
) -> RequestSource | None:
    """What the file is, judged by this line of it; None: it does not tell."""
    rows = Rows(name, client=client, keep_text=keep_text)
    table = traces.table_of(line.text)
    if table is not None and line.is_first:
        return _table(table, lines, name, rows)
    if line.text.startswith(b"["):
        return _array(lines, name, rows) if line.is_first else None
    row = _object(line.text)
    kind = None if row is None else kind_of(row)
    if row is None or kind is None:
        return None
    source = RequestSource(kind=kind, seen=iter(()), **_known(kind, row))
    source.seen = _read_objects(source, lines, rows)
    return source


def kind_of(row: Mapping[str, Any]) -> Kind | None:
    """What a JSON object is a line of, by the names of its fields."""
    names = row.keys()
    if "hash_ids" in names or {"timestamp", "input_length"} <= names:
        return "mooncake"
    if {"exact_key", "unique_so_far"} <= names or names == {"summary"}:
        return "capture"
    if "request_id" in names and names & _OF_PROXIES:
        return "proxy"
    if "request_body" in names or ("request_time" in names and names & _OF_NGINX):
        return "nginx"
    if names & _OF_REQUESTS:
        return "requests"
    return "bodies" if names & {"body", *PROMPTS} else None


_OF_PROXIES = {"team", "cache", "ttft_ms", "completion_tokens", "finish_reason"}
_OF_NGINX = {"msec", "time_iso8601", "remote_addr"}
_OF_REQUESTS = {
    *("prompt_preview", "preview", "new", "is_new", "unique", "is_unique", "new_or_repeat"),
    *("unique_so_far", "unique_count", "unique_prompts"),
}


def _known(kind: Kind, row: Mapping[str, Any]) -> dict[str, Any]:
    """What can be said of requests in such a file, judged by one line of it."""
    keys = {"prompt_key", "request_key"} & row.keys()
    return {
        "identities": {
            "capture": "bodies",
            "proxy": (None, "prompts", "bodies")[len(keys)],
            "requests": "prompts",
            "nginx": "bodies" if "request_body" in row else None,
            "bodies": "bodies",
            "mooncake": "prompts",
        }[kind],
        "beginnings": {
            "capture": "body" in row,
            "nginx": "request_body" in row,
            "bodies": True,
            "mooncake": True,
        }.get(kind, False),
        "arrivals": kind != "bodies" or has_time(row),
    }


def _table(
    table: traces.TraceTable, lines: Iterator[_LogLine], name: str, rows: Rows
) -> RequestSource:
    source = RequestSource(kind=table.kind, seen=iter(()), identities=None, arrivals=True)
    source.seen = _read_table(source, table, lines, name, rows)
    return source


def _read_table(
    source: RequestSource,
    table: traces.TraceTable,
    lines: Iterator[_LogLine],
    name: str,
    rows: Rows,
) -> Iterator[Seen]:
    for line in lines:
        if line.is_first:
            continue
        try:
            one = traces.table_row(line.text, table, name, line.where)
        except ToolkitError:
            if not line.is_last:
                raise
            rows.meet("torn")
            continue
        if one.output_tokens is None:
            rows.meet("no answer")
        yield one
    source.notes += _notes(rows)


def _array(lines: Iterator[_LogLine], name: str, rows: Rows) -> RequestSource:
    """A list of objects, which are then read like lines."""
    size, parts = 0, []
    for line in lines:
        parts.append(line.text)
        size += len(line.text)
        if size > ARRAY_BYTES:
            raise ToolkitError(
                f"`{name}` is a list of more than {ARRAY_BYTES >> 20} MiB",
                "Write one request a line, e.g., with `jq -c '.[]'`",
            )
    entries = _loaded(b"\n".join(parts))
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ToolkitError(f"`{name}` is no JSON list of objects", KNOWN)
    kind = kind_of(entries[0]) if entries else None
    if kind is None:
        raise ToolkitError(f"`{name}` is a list of nothing that is known", KNOWN)
    source = RequestSource(kind=kind, seen=iter(()), **_known(kind, entries[0]))
    numbered = ((f"`{name}` entry {number}", row) for number, row in enumerate(entries, start=1))
    source.seen = _read_rows(source, ((where, row, None) for where, row in numbered), rows)
    return source


def _read_objects(source: RequestSource, lines: Iterator[_LogLine], rows: Rows) -> Iterator[Seen]:
    return _read_rows(source, _objects(source.kind, lines, rows), rows)


def _objects(
    kind: Kind, lines: Iterator[_LogLine], rows: Rows
) -> Iterator[tuple[str, Mapping[str, Any], bytes | None]]:
    """Each line's place, object and text; those that were cut off are counted."""
    for line in lines:
        row = _object(line.text)
        if row is not None:
            yield line.where, row, line.text
        elif _is_torn(kind, line):
            rows.meet("torn")
        else:
            raise ToolkitError(f"{line.where} is not a JSON object", KNOWN)


def _is_torn(kind: Kind, line: _LogLine) -> bool:
    """Whether a line is half of one: the writer was killed, or somebody cut the file, e.g., `tail -c`."""
    if line.is_last:
        return True
    if kind not in ("capture", "proxy"):
        return False
    # a new writer begins on a new line after one that the old one left unfinished
    return line.is_first or (line.text.startswith(b"{") and not line.text.endswith(b"}"))


def _read_rows(
    source: RequestSource, found: Iterable[tuple[str, Mapping[str, Any], bytes | None]], rows: Rows
) -> Iterator[Seen]:
    rows.has_times = source.arrivals
    place = 0
    for where, row, line in found:
        if row.keys() == {"summary"}:
            source.summary = row["summary"] if isinstance(row["summary"], dict) else None
            continue
        if source.kind == "mooncake":
            yield traces.mooncake_row(row, where, rows.remembered)
        else:
            kind: LogKind = source.kind  # type: ignore[assignment]  # tables are read elsewhere
            yield rows.seen(kind, row, line, where, place)
        place += 1
    source.notes += _notes(rows)


def _notes(rows: Rows) -> list[str]:
    counted = {
        what: f"{times:,} {'line' if what == 'torn' else 'request'}{'' if times == 1 else 's'}"
        for what, times in rows.met.items()
    }
    return [
        sentence.format(count=counted[what]) for what, sentence in _NOTES.items() if what in counted
    ]


def _object(line: bytes) -> Mapping[str, Any] | None:
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
