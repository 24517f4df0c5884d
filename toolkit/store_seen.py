"""What captures saw, kept: requests as they arrived, and what their bodies ask, once however often they came.

    runs --< seen >-- bodies >-- prompts
                  >-- clients, targets
         --  captures (what each said of itself, and counts of its rows)

It never decides what a request means. A prompt's text is here only where a request brought one, which is where the
user asked for it; no header ever is.
"""

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from toolkit.database import Columns, to_text, unreadable
from toolkit.errors import ToolkitError
from toolkit.records import Asked, Seen
from toolkit.store_runs import Runs

KNOWN_IDS = 100_000
"""Ids of so many bodies, clients and targets each are held in memory, then forgotten at once."""

BATCH = 4096
"""Rows read or written at once: no reader keeps the file's log from being folded back for longer."""

LOOKED_UP = 500
"""Keys in one question."""

_KEYS = ("exact_key", "request_key", "prompt_key")
_ASKED = Columns(Asked, elsewhere=_KEYS)
_OF_PROMPTS = ("prompt_chars", "prompt_tokens", "prompt_blocks", "block_tokens")
_OF_BODIES = tuple(name for name in _ASKED.names if name not in (*_OF_PROMPTS, "prompt_text"))
_PROMPTS = Columns(Asked, elsewhere=(*_KEYS, *_OF_BODIES, "prompt_text"))
_BODIES = Columns(Asked, elsewhere=(*_KEYS, *_OF_PROMPTS, "prompt_text"))
_SEEN = Columns(Seen, elsewhere=("ts", "client", "server", "method", "path", "asked"))
_NO_PROMPT = [None, None, None, b"", None]

# The S608s: every inserted name is a field of our own record.
_FIND_PROMPT = (
    f"SELECT id FROM prompts WHERE prompt_key IS ? AND ({', '.join(_PROMPTS.names)}) "  # noqa: S608
    f"IS ({', '.join('?' * len(_PROMPTS.names))})"
)
_INSERT_PROMPT = _PROMPTS.insertion("prompts", "prompt_key")
_ADD_TEXT = "UPDATE prompts SET prompt_text = ? WHERE prompt_key = ? AND prompt_text IS NULL"
_INSERT_BODY = _BODIES.insertion("bodies", "id", "exact_key", "request_key", "prompt_id")
_FIND_CLIENT = "SELECT id FROM clients WHERE name = ?"
_INSERT_CLIENT = "INSERT INTO clients (name) VALUES (?)"
_FIND_TARGET = "SELECT id FROM targets WHERE (server, method, path) IS (?, ?, ?)"
_INSERT_TARGET = "INSERT INTO targets (server, method, path) VALUES (?, ?, ?)"
_INSERT_SEEN = (
    "INSERT INTO seen (run_number, ts, number, body_id, client_id, target_id, "  # noqa: S608
    f"{', '.join(_SEEN.names)}) VALUES (?1, ?2, "
    # of one moment's requests the first is 0, which takes no byte
    "(SELECT coalesce(max(number) + 1, 0) FROM seen WHERE run_number = ?1 AND ts = ?2), "
    f"{', '.join(f'?{3 + place}' for place in range(3 + len(_SEEN.names)))})"
)
_COUNT = """
    INSERT INTO captures (run_number, requests, errors, written_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (run_number) DO UPDATE SET
        requests = requests + excluded.requests,
        errors = errors + excluded.errors,
        written_at = excluded.written_at
"""
_SET_SUMMARY = """
    INSERT INTO captures (run_number, requests, errors, summary, written_at) VALUES (?, 0, 0, ?, ?)
    ON CONFLICT (run_number) DO UPDATE SET summary = excluded.summary, written_at = excluded.written_at
"""
_NUMBER = "(SELECT number FROM runs WHERE id = :run)"
_SUMMARY = f"SELECT summary FROM captures WHERE run_number = {_NUMBER}"  # noqa: S608
_REQUESTS = f"SELECT requests FROM captures WHERE run_number = {_NUMBER}"  # noqa: S608
_SEEN_OF_RUN = (
    "SELECT ts, number, body_id, clients.name, server, method, path, "  # noqa: S608
    f"{', '.join(f'seen.{name}' for name in _SEEN.names)} "
    "FROM seen LEFT JOIN clients ON clients.id = client_id LEFT JOIN targets ON targets.id = target_id "
    f"WHERE run_number = {_NUMBER} AND (ts, number) > (:ts, :number) AND ts <= :to_ts "
    f"ORDER BY ts, number LIMIT {BATCH}"
)
_BODIES_BY_ID = (
    f"SELECT bodies.id, {', '.join(_KEYS)}, {', '.join(_ASKED.names)} "  # noqa: S608
    "FROM bodies LEFT JOIN prompts ON prompts.id = prompt_id "
    "WHERE bodies.id IN (SELECT value FROM json_each(:ids))"
)
_BODIES_BY_ID_WITHOUT_TEXT = _BODIES_BY_ID.replace("prompt_text", "NULL")


class Captures(Runs):
    """The captures of one open database file: runs with requests as they arrived."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__(connection, path)
        self._body_ids: dict[str, int] = {}
        self._prompt_ids: dict[tuple[object, ...], int] = {}
        self._told_prompts: set[str] = set()
        """Those whose text is in the file."""
        self._client_ids: dict[str, int] = {}
        self._target_ids: dict[tuple[str | None, str | None, str | None], int] = {}
        self._file_version = -1

    def add_seen(self, run_id: str, seen: Sequence[Seen]) -> None:
        """Store all or none of the requests, of a stored run, after those of the same moment that are there.

        Of one exact body the first word stays, but for a prompt's text: that is added whenever it comes.
        """
        if not seen:
            return
        with self._transaction(undo=self._forget_ids):
            number, _ = self._run_row(run_id)
            self._forget_ids_if_others_wrote()
            for start in range(0, len(seen), BATCH):
                self._insert_seen(number, seen[start : start + BATCH])
            errors = sum(one.status is not None and one.status >= 400 for one in seen)
            self._connection.execute(_COUNT, (number, len(seen), errors, time.time()))

    def set_capture(self, run_id: str, summary: Mapping[str, object]) -> None:
        """Keep what a stored run says of itself so far, e.g., what was lost, in place of what it said before."""
        with self._transaction():
            number, _ = self._run_row(run_id)
            self._connection.execute(_SET_SUMMARY, (number, json.dumps(dict(summary)), time.time()))

    def capture(self, run_id: str) -> dict[str, Any] | None:
        """What a run last said of itself; None where it never did."""
        found = self._rows(_SUMMARY, {"run": to_text(run_id)})
        if not found or not found[0][0]:
            return None
        try:
            told = json.loads(found[0][0])
        except ValueError as error:
            raise unreadable(f"what run `{run_id}` says of itself") from error
        if not isinstance(told, dict):
            raise unreadable(f"what run `{run_id}` says of itself")
        return told

    def seen_count(self, run_id: str) -> int:
        """Count a run's requests."""
        found = self._rows(_REQUESTS, {"run": to_text(run_id)})
        return int(found[0][0]) if found else 0

    def seen(
        self,
        run_id: str,
        *,
        from_ts: float | None = None,
        to_ts: float | None = None,
        texts: bool = True,
    ) -> Iterator[Seen]:
        """A run's requests between two moments, both included, by time, those of one moment as they came.

        Requests of equal bodies share one Asked, so all that differ are held until the end. Without `texts` a prompt's
        text stays in the file. What is stored meanwhile may or may not come.
        """
        bodies: dict[int, Asked] = {}
        place = (-math.inf if from_ts is None else from_ts, -1)  # before the moment's first
        last = math.inf if to_ts is None else to_ts
        while True:
            rows = self._batch(run_id, place, last, bodies, texts=texts)
            for ts, _, body, client, server, method, path, *row in rows:
                yield _SEEN.record(
                    row,
                    ts=ts,
                    client=client,
                    server=server,
                    method=method,
                    path=path,
                    asked=bodies.get(body),
                )
            if len(rows) < BATCH:
                return
            place = rows[-1][:2]

    def _batch(
        self,
        run_id: str,
        place: tuple[float, int],
        last: float,
        bodies: dict[int, Asked],
        *,
        texts: bool,
    ) -> list[tuple[Any, ...]]:
        """The rows after a place; what their bodies ask is added to `bodies`."""
        ts, number = place
        values = {"run": to_text(run_id), "ts": ts, "number": number, "to_ts": last}
        with self._snapshot():
            rows = self._connection.execute(_SEEN_OF_RUN, values).fetchall()
            new = {row[2] for row in rows} - bodies.keys() - {None}
            if new:
                question = _BODIES_BY_ID if texts else _BODIES_BY_ID_WITHOUT_TEXT
                found = self._connection.execute(question, {"ids": json.dumps(sorted(new))})
                bodies.update((id_, _asked(row)) for id_, *row in found)
        return rows

    def _forget_ids(self) -> None:
        """Ids of what may be gone must not be used again."""
        for known in self._known():
            known.clear()

    def _known(self) -> tuple[dict[Any, int] | set[str], ...]:
        return (
            self._body_ids,
            self._prompt_ids,
            self._told_prompts,
            self._client_ids,
            self._target_ids,
        )

    # Below: inside a transaction.

    def _forget_ids_if_others_wrote(self) -> None:
        """Somebody may have removed a run, and with it bodies; it takes 1 us to know."""
        [version] = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._file_version:
            self._forget_ids()
            self._file_version = version

    def _insert_seen(self, run_number: int, seen: Sequence[Seen]) -> None:
        asked = [one.asked for one in seen if one.asked is not None]
        self._learn_bodies(asked)
        self._add_texts(asked)
        rows = [self._seen_row(run_number, one) for one in seen]
        self._connection.executemany(_INSERT_SEEN, rows)
        for known in self._known():
            if len(known) > KNOWN_IDS:
                known.clear()  # refills in a second; an order of use would cost every request

    def _seen_row(self, run_number: int, one: Seen) -> tuple[object, ...]:
        client = None if one.client is None else self._client_id(one.client)
        body = None if one.asked is None else self._body_ids[one.asked.exact_key]
        target = self._target_id((one.server, one.method, one.path))
        return (run_number, float(one.ts), body, client, target, *_SEEN.row(one))

    def _client_id(self, name: str) -> int:
        known = self._client_ids.get(name)
        if known is None:
            row = (to_text(name),)
            known = self._id_of(_FIND_CLIENT, row, _INSERT_CLIENT, row)
            self._client_ids[name] = known
        return known

    def _target_id(self, target: tuple[str | None, str | None, str | None]) -> int | None:
        known = self._target_ids.get(target)
        if known is None and target != (None, None, None):
            row = tuple(word and to_text(word) for word in target)
            known = self._id_of(_FIND_TARGET, row, _INSERT_TARGET, row)
            self._target_ids[target] = known
        return known

    def _learn_bodies(self, asked: Sequence[Asked]) -> None:
        """Know the row of each body; store those that are new, of equal ones the first."""
        new: dict[str, Asked] = {}
        for one in asked:
            if one.exact_key not in self._body_ids:
                new.setdefault(one.exact_key, one)
        if not new:
            return
        keys = {exact: _key(exact) for exact in new}
        stored = self._stored_bodies(list(keys.values()))
        [last] = self._connection.execute("SELECT coalesce(max(id), 0) FROM bodies").fetchone()
        rows: list[tuple[object, ...]] = []
        for exact, one in new.items():
            found = stored.get(keys[exact])
            if found is None:
                # one lookup for all of them, and ids of our own: 12 us a body instead of 20
                found = last + len(rows) + 1
                rows.append(
                    (
                        found,
                        keys[exact],
                        _key(one.request_key),
                        self._prompt_id(one),
                        *_BODIES.row(one),
                    )
                )
            self._body_ids[exact] = found
        self._connection.executemany(_INSERT_BODY, rows)

    def _stored_bodies(self, keys: Sequence[bytes | None]) -> dict[bytes | None, int]:
        found: dict[bytes | None, int] = {}
        for start in range(0, len(keys), LOOKED_UP):
            part = keys[start : start + LOOKED_UP]
            marks = ", ".join("?" * len(part))
            rows = self._connection.execute(
                f"SELECT exact_key, id FROM bodies WHERE exact_key IN ({marks})",  # noqa: S608
                part,
            )
            found.update(rows.fetchall())
        return found

    def _prompt_id(self, asked: Asked) -> int | None:
        # blocks may be many; their hash is not
        blocks = asked.prompt_blocks and blake2b(asked.prompt_blocks, digest_size=16).digest()
        sign = (
            asked.prompt_key,
            asked.prompt_chars,
            asked.prompt_tokens,
            blocks,
            asked.block_tokens,
        )
        known = self._prompt_ids.get(sign)
        if known is not None:
            return known
        row = [_key(asked.prompt_key), *_PROMPTS.row(asked)]
        if row == _NO_PROMPT:
            return None
        known = self._id_of(_FIND_PROMPT, row, _INSERT_PROMPT, row)
        self._prompt_ids[sign] = known
        if asked.prompt_key is not None:
            # a new row of a known key has no text yet
            self._told_prompts.discard(asked.prompt_key)
        return known

    def _add_texts(self, asked: Sequence[Asked]) -> None:
        """Store the texts that came with prompts of which the file has none."""
        new = {
            one.prompt_key: one.prompt_text
            for one in reversed(asked)  # of several texts the first stays
            if one.prompt_text is not None
            and one.prompt_key is not None
            and one.prompt_key not in self._told_prompts
        }
        rows = [(to_text(text), _key(key)) for key, text in new.items()]
        self._connection.executemany(_ADD_TEXT, rows)
        self._told_prompts.update(new)


def _key(digits: str | None) -> bytes | None:
    """A key as the file holds it, in half the bytes. Raises ToolkitError on what is no key."""
    if digits is None:
        return None
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    if key.hex() != digits:
        raise ToolkitError(f"a request's key `{digits}` is not hexadecimal")
    return key


def _asked(row: Sequence[Any]) -> Asked:
    exact, request, prompt, *told = row
    told = [
        b"" if name == "prompt_blocks" and value is None else value
        for name, value in zip(_ASKED.names, told, strict=True)
    ]
    keys = {
        name: key and key.hex() for name, key in zip(_KEYS, (exact, request, prompt), strict=True)
    }
    return _ASKED.record(told, **keys)
