"""What captures saw, kept: requests as they arrived, and what their bodies ask, once however often they came.

    runs --< seen >-- bodies >-- prompts
                  >-- clients, targets
         --  captures (what each said of itself, and counts of its rows)

It never decides what a request means. A prompt's text is here only where a request brought one, which is where the
user asked for it; no header ever is.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.records import Asked, Seen
from toolkit.store.database import Columns, to_text, unreadable
from toolkit.store.runs import RUN_NUMBER, Runs

BATCH = 4096
"""Rows read at once: no reader keeps the file's log from being folded back for longer."""

LOOKED_UP = 500
"""Keys in one question."""

_KEYS = ("exact_key", "request_key", "prompt_key")
_OF_PROMPTS = ("prompt_chars", "prompt_tokens", "prompt_blocks", "block_tokens")
_ASKED = Columns(Asked, elsewhere=_KEYS)
_OF_BODIES = tuple(name for name in _ASKED.names if name not in (*_OF_PROMPTS, "prompt_text"))
_PROMPTS = Columns(Asked, elsewhere=(*_KEYS, *_OF_BODIES, "prompt_text"))
_BODIES = Columns(Asked, elsewhere=(*_KEYS, *_OF_PROMPTS, "prompt_text"))
_SEEN = Columns(Seen, elsewhere=("ts", "client", "server", "method", "path", "asked"))

_INSERT_BODY = _BODIES.insertion("bodies", "id", "exact_key", "request_key", "prompt_id")
_ADD_TEXT = "UPDATE prompts SET prompt_text = ? WHERE prompt_key = ? AND prompt_text IS NULL"
_INSERT_SEEN = f"""
    INSERT INTO seen (run_number, ts, number, body_id, client_id, target_id, {", ".join(_SEEN.names)})
    VALUES (
        ?, ?,
        -- of one moment's requests the first is 0, which takes no byte; both come twice, as Python 3.12 complains of `?1`
        (SELECT coalesce(max(number) + 1, 0) FROM seen WHERE run_number = ? AND ts = ?),
        {", ".join("?" * (3 + len(_SEEN.names)))}
    )
"""
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
_SEEN_OF_RUN = f"""
    SELECT ts, number, body_id, clients.name, server, method, path, {_SEEN.of("seen")}
    FROM seen LEFT JOIN clients ON clients.id = client_id LEFT JOIN targets ON targets.id = target_id
    WHERE run_number = {RUN_NUMBER} AND (ts, number) > (:ts, :number) AND ts <= :to_ts
    ORDER BY ts, number LIMIT {BATCH}
"""
_BODIES_BY_ID = f"""
    SELECT bodies.id, {", ".join(_KEYS)}, {", ".join(_ASKED.names)}
    FROM bodies LEFT JOIN prompts ON prompts.id = prompt_id
    WHERE bodies.id IN (SELECT value FROM json_each(:ids))
""".replace("prompt_blocks", "coalesce(prompt_blocks, x'')")
_BODIES_BY_ID_WITHOUT_TEXT = _BODIES_BY_ID.replace("prompt_text", "NULL")


class Captures(Runs):
    """The captures of one open database file: runs with requests as they arrived."""

    def add_seen(self, run_id: str, seen: Sequence[Seen]) -> None:
        """Store all or none of the requests, of a stored run, after those of the same moment that are there.

        Of one exact body the first word stays, but for a prompt's text: that is added whenever it comes.
        """
        if not seen:
            return
        with self._transaction():
            run_number, _ = self._run_row(run_id)
            asked = [one.asked for one in seen if one.asked is not None]
            self._learn_bodies(asked)
            # texts of prompts of which the file has none; of several the first stays
            texts = {
                one.prompt_key: one.prompt_text
                for one in reversed(asked)
                if one.prompt_text is not None
                and one.prompt_key is not None
                and one.prompt_key not in self._known["texts"]
            }
            self._connection.executemany(
                _ADD_TEXT, [(to_text(text), _key(key)) for key, text in texts.items()]
            )
            self._known["texts"].update(texts.fromkeys(texts))

            bodies, clients, targets = (
                self._known["bodies"],
                self._known["clients"],
                self._known["targets"],
            )
            rows = []
            for one in seen:
                client, target = one.client, (one.server, one.method, one.path)
                if client is not None and client not in clients:
                    clients[client] = self._found_or_added("clients", {"name": to_text(client)})
                if target not in targets and target != (None, None, None):
                    words = [word and to_text(word) for word in target]
                    key = dict(zip(("server", "method", "path"), words, strict=True))
                    targets[target] = self._found_or_added("targets", key)
                body_id = None if one.asked is None else bodies[one.asked.exact_key]
                client_id = None if client is None else clients[client]
                moment = (run_number, float(one.ts))
                where = (body_id, client_id, targets.get(target))
                rows.append((*moment, *moment, *where, *_SEEN.row(one)))
            self._connection.executemany(_INSERT_SEEN, rows)
            errors = sum(one.status is not None and one.status >= 400 for one in seen)
            self._connection.execute(_COUNT, (run_number, len(seen), errors, time.time()))

    def set_capture(self, run_id: str, summary: Mapping[str, object]) -> None:
        """Keep what a stored run says of itself so far, e.g., what was lost, in place of what it said before."""
        with self._transaction():
            run_number, _ = self._run_row(run_id)
            row = (run_number, json.dumps(dict(summary)), time.time())
            self._connection.execute(_SET_SUMMARY, row)

    def capture(self, run_id: str) -> dict[str, Any] | None:
        """What a run last said of itself; None where it never did."""
        sql = f"SELECT summary FROM captures WHERE run_number = {RUN_NUMBER}"
        found = self._rows(sql, {"run": to_text(run_id)})
        if not found or not found[0][0]:
            return None
        try:
            summary = json.loads(found[0][0])
        except ValueError as error:
            raise unreadable(f"what run `{run_id}` says of itself") from error
        if not isinstance(summary, dict):
            raise unreadable(f"what run `{run_id}` says of itself")
        return summary

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
        wanted: dict[str, object] = {
            "run": to_text(run_id),
            "ts": -math.inf if from_ts is None else from_ts,
            "number": -1,  # before the moment's first
            "to_ts": math.inf if to_ts is None else to_ts,
        }
        while True:
            with self._snapshot():
                rows = self._connection.execute(_SEEN_OF_RUN, wanted).fetchall()
                new = {row[2] for row in rows} - bodies.keys() - {None}
                if new:
                    question = _BODIES_BY_ID if texts else _BODIES_BY_ID_WITHOUT_TEXT
                    found = self._connection.execute(question, {"ids": json.dumps(sorted(new))})
                    for number, exact, request, prompt, *columns in found:
                        bodies[number] = _ASKED.record(
                            columns,
                            exact_key=exact.hex(),
                            request_key=request and request.hex(),
                            prompt_key=prompt and prompt.hex(),
                        )
            for ts, _, body, client, server, method, path, *columns in rows:
                where = {"client": client, "server": server, "method": method, "path": path}
                yield _SEEN.record(columns, ts=ts, asked=bodies.get(body), **where)
            if len(rows) < BATCH:
                return
            wanted["ts"], wanted["number"] = rows[-1][:2]

    # Below: inside a transaction.

    def _learn_bodies(self, asked: Sequence[Asked]) -> None:
        """Know the row of each body; store those that are new, of equal ones the first."""
        known = self._known["bodies"]
        new: dict[str, Asked] = {}
        for one in asked:
            if one.exact_key not in known:
                new.setdefault(one.exact_key, one)
        if not new:
            return
        keys = [_key(exact) for exact in new]
        stored: dict[bytes | None, int] = {}
        for start in range(0, len(keys), LOOKED_UP):
            part = keys[start : start + LOOKED_UP]
            marks = ", ".join("?" * len(part))
            stored.update(
                self._connection.execute(
                    f"SELECT exact_key, id FROM bodies WHERE exact_key IN ({marks})", part
                ).fetchall()
            )
        # one question for all of them, and numbers of our own: 12 us a body instead of 20
        [last] = self._connection.execute("SELECT coalesce(max(id), 0) FROM bodies").fetchone()
        rows: list[tuple[object, ...]] = []
        for key, one in zip(keys, new.values(), strict=True):
            number = stored.get(key)
            if number is None:
                number = last + len(rows) + 1
                request_key, prompt_id = _key(one.request_key), self._prompt_id(one)
                rows.append((number, key, request_key, prompt_id, *_BODIES.row(one)))
            known[one.exact_key] = number
        self._connection.executemany(_INSERT_BODY, rows)

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
        known = self._known["prompts"]
        if sign not in known:
            row = (_key(asked.prompt_key), *_PROMPTS.row(asked))
            if row == (None, None, None, b"", None):
                return None
            key = dict(zip(("prompt_key", *_PROMPTS.names), row, strict=True))
            known[sign] = self._found_or_added("prompts", key)
            # a new row of a known key has no text yet
            self._known["texts"].pop(asked.prompt_key, None)
        return int(known[sign])


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
