"""How the store's tables came to be: every step ever made, oldest first. It opens no file.

A step that has left this checkout is never edited: files out there have it behind them. So columns
are spelled out here and not derived from the records: a new field needs a new step, and
tests/test_store_schema.py fails until it has one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def _look_tables(db: "Database") -> None:
    """Make what `scout` writes: hosts, their sightings, and the raw numbers of each sighting."""
    db.table("hosts").create(
        {
            "id": int,
            "name": str,
            "url": str,
            "team": str,
            "model": str,
            "note": str,
            "first_seen_at": float,
        },
        pk="id",
        not_null={"name", "url", "first_seen_at"},
        strict=True,
    )
    db.table("hosts").create_index(["name", "url"], unique=True)
    db.table("sightings").create(
        {
            "id": int,
            "host_id": int,
            "at": float,
            "status": str,
            "error": str,
            "latency_ms": float,
            "engine": str,
            "dialect": str,
            "version": str,
            "model": str,
            "models": str,  # JSON list of names
            "max_model_len": int,
            "gpu_memory_utilization": float,
            "cache_dtype": str,
            "block_size": int,
            "num_gpu_blocks": int,
            "swap_space_gib": float,
            "kv_cache_tokens": int,
            "kv_cache_max_concurrency": float,
            "engines": int,
            "prefix_caching": int,  # 0 or 1
            "running": float,
            "waiting": float,
            "kv_cache_usage": float,
            "prefix_hit_ratio": float,
            "preemptions_total": float,
            "prompt_tokens_total": float,
            "generation_tokens_total": float,
            "requests_total": float,
            "ttft_p50_ms": float,
            "ttft_p50_below_ms": float,
            "ttft_p50_above_ms": float,
            "ttft_p95_ms": float,
            "ttft_p95_below_ms": float,
            "ttft_p95_above_ms": float,
            "queue_mean_ms": float,
            "requests_per_s": float,
            "output_tokens_per_s": float,
            "interval_s": float,
            "config_hash": str,
            "started_at": float,
            "findings": str,  # JSON list of {code, text}
        },
        pk="id",
        not_null={"host_id", "at", "status", "models", "findings"},
        foreign_keys=[("host_id", "hosts", "id")],
        strict=True,
    )
    # One index serves both questions: a host's history in time order, and its last sighting.
    db.table("sightings").create_index(["host_id", "at"])
    db.table("series").create(
        {"id": int, "name": str, "labels": str},  # labels: JSON object, keys sorted
        pk="id",
        not_null={"name", "labels"},
        strict=True,
    )
    db.table("series").create_index(["name", "labels"], unique=True)
    # WITHOUT ROWID halves these 15-byte rows, since key and row are one tree: 2,246 bytes against
    # 4,286 for 130 readings. It is right for tiny rows only: rows with sketch blobs past the
    # overflow threshold grew 3.2 times by it, so tallies will be rowid tables. sqlite-utils cannot
    # say it, hence the SQL. A NULL value is the host's NaN: SQLite has no NaN.
    db.execute(
        """
        CREATE TABLE readings (
            sighting_id INTEGER NOT NULL REFERENCES sightings(id),
            series_id INTEGER NOT NULL REFERENCES series(id),
            value REAL,
            PRIMARY KEY (sighting_id, series_id)
        ) STRICT, WITHOUT ROWID
        """
    )


def _bench_tables(db: "Database") -> None:
    """Make what `bench` writes: runs, and each host's shots, ledger and verdicts in them."""
    # `number` is what rows of a run bear: at most 8 bytes, 1 for the first 127 runs, where the text
    # of `id` takes 12, in the row and once more in its index.
    db.table("runs").create(
        {
            "number": int,
            "id": str,
            "verb": str,
            "started_at": float,
            "ended_at": float,
            "settings": str,  # JSON object
            "client_ok": int,  # 0 or 1
        },
        pk="number",
        not_null={"id", "verb", "started_at", "settings"},
        strict=True,
    )
    db.table("runs").create_index(["id"], unique=True)
    db.table("shots").create(
        {
            "id": int,
            "run_number": int,
            "host_id": int,
            "slot": int,
            "kind": str,
            "pair": int,
            "prompt": str,
            "concurrency": int,
            "stream": int,  # 0 or 1
            "max_tokens": int,
            "ignore_eos": int,  # 0 or 1
            "planned_at": float,
            "sent_at": float,
            "send_lag_ms": float,
            "took_ms": float,
            "ok": int,  # 0 or 1
            "error_kind": str,
            "error": str,
            "status_code": int,
            "ttft_ms": float,
            "ttft_visible_ms": float,
            "e2e_ms": float,
            "tpot_ms": float,
            "itl": bytes,  # sketch
            "prompt_tokens": int,
            "output_tokens": int,
            "output_tokens_estimated": int,  # 0 or 1
            "cached_tokens": int,
            "token_chunks": int,
            "text_chars": int,
            "text_hash": str,
            "finish_reason": str,
            "model": str,
            "answer_id": str,
            "cache_status": str,
        },
        pk="id",
        not_null={
            "run_number",
            "host_id",
            "slot",
            "kind",
            "prompt",
            "stream",
            "max_tokens",
            "planned_at",
            "ok",
            "output_tokens_estimated",
        },
        foreign_keys=[("run_number", "runs", "number"), ("host_id", "hosts", "id")],
        strict=True,
    )
    # Not unique: warm-up has slots of its own from 0, and so has each level of a sweep.
    db.table("shots").create_index(["run_number", "host_id", "slot"])
    db.table("ledgers").create(
        {
            "id": int,
            "run_number": int,
            "host_id": int,
            "error": str,
            "rtt_ms": float,
            "restarted": int,  # 0 or 1
            "requests": float,
            "prompt_tokens": float,
            "generation_tokens": float,
            "finished_length": float,
            "finished_stop": float,
            "asked_tokens": float,
            "asked_requests": float,
            "prefix_queries": float,
            "prefix_hits": float,
            "preemptions": float,
            "queue_mean_ms": float,
            "running_before": float,
            "waiting_before": float,
            "waiting_max": float,
            "models_before": str,  # JSON list of {id, root, max_model_len}
            "models_after": str,
        },
        pk="id",
        not_null={"run_number", "host_id", "models_before", "models_after"},
        foreign_keys=[("run_number", "runs", "number"), ("host_id", "hosts", "id")],
        strict=True,
    )
    db.table("ledgers").create_index(["run_number", "host_id"], unique=True)
    db.table("verdicts").create(
        {
            "id": int,
            "run_number": int,
            "host_id": int,
            "code": str,
            "confidence": str,
            "evidence": str,
        },
        pk="id",
        not_null={"run_number", "host_id", "code", "confidence", "evidence"},
        foreign_keys=[("run_number", "runs", "number"), ("host_id", "hosts", "id")],
        strict=True,
    )
    db.table("verdicts").create_index(["run_number", "host_id"])


def _blast_tables(db: "Database") -> None:
    """Make what `blast` and `mark` write: who takes part, tallies, seconds of the loader, events."""
    db.table("run_hosts").create(
        {"id": int, "run_number": int, "host_id": int},  # `id` is the order of the hosts file
        pk="id",
        not_null={"run_number", "host_id"},
        foreign_keys=[("run_number", "runs", "number"), ("host_id", "hosts", "id")],
        strict=True,
    )
    db.table("run_hosts").create_index(["run_number", "host_id"], unique=True)
    # Locust names a worker with some 40 characters, which would stand in each row and its index.
    db.table("workers").create({"id": int, "name": str}, pk="id", not_null={"name"}, strict=True)
    db.table("workers").create_index(["name"], unique=True)
    # A rowid table: WITHOUT ROWID was 3.2 times as large at 1,000 requests a second and host.
    db.table("tallies").create(
        {
            "id": int,
            "run_number": int,
            "at_s": int,
            "host_id": int,
            "worker_id": int,
            "kind": str,
            "ok": int,
            "errors": int,
            "error_kinds": str,  # JSON list of {kind, count}
            "streamed": int,
            "prompt_tokens": int,
            "output_tokens": int,
            "output_tokens_estimated": int,
            "cache_told": int,
            "cache_hits": int,
            "cache_judged": int,
            "cache_inferred": int,
            "e2e": bytes,  # sketch
            "ttft": bytes,  # sketch
        },
        pk="id",
        not_null={
            "run_number",
            "at_s",
            "host_id",
            "worker_id",
            "kind",
            "ok",
            "errors",
            "error_kinds",
            "streamed",
            "prompt_tokens",
            "output_tokens",
            "output_tokens_estimated",
            "cache_told",
            "cache_hits",
            "cache_judged",
            "cache_inferred",
            "e2e",
            "ttft",
        },
        foreign_keys=[
            ("run_number", "runs", "number"),
            ("host_id", "hosts", "id"),
            ("worker_id", "workers", "id"),
        ],
        strict=True,
    )
    # The second before the rest: rows arrive in time order, so a window is one range, and the index grows at
    # its end. Not unique: what a worker counted late of a second is one more row.
    db.table("tallies").create_index(["run_number", "at_s", "kind"])
    # Readers follow a run's ranked rows by rowid, which every index ends with; 9 bytes a row.
    db.execute("CREATE INDEX idx_tallies_ranked ON tallies (run_number) WHERE kind = 'ranked'")
    db.table("loader_seconds").create(
        {
            "id": int,
            "run_number": int,
            "at_s": int,
            "worker_id": int,
            "users": int,
            "cpu_share": float,
            "lag_ms": float,
            "limited": int,  # 0 or 1
        },
        pk="id",
        not_null={"run_number", "at_s", "worker_id", "limited"},
        foreign_keys=[("run_number", "runs", "number"), ("worker_id", "workers", "id")],
        strict=True,
    )
    db.table("loader_seconds").create_index(["run_number", "at_s", "worker_id"], unique=True)
    db.table("loader_seconds").create_index(["run_number"])  # to follow, as for the tallies
    # No index: a day of contests has tens of events.
    db.table("events").create(
        {
            "id": int,
            "run_number": int,
            "host_id": int,
            "at": float,
            "kind": str,
            "text": str,
        },
        pk="id",
        not_null={"at", "kind", "text"},
        foreign_keys=[("run_number", "runs", "number"), ("host_id", "hosts", "id")],
        strict=True,
    )
    # With the host it answers alone which are each host's newest in a stretch of time.
    db.table("shots").create_index(["run_number", "sent_at", "host_id"])


def _seen_tables(db: "Database") -> None:
    """Make what `capture` writes: requests as they arrived, and what their bodies ask, once for all runs.

    What rows of `seen` and `bodies` refer to is not declared: SQLite would look for a row's users in the
    whole of `seen` for each body that goes. toolkit/store_upkeep.py removes what no run needs any more.
    """
    # Not unique by key: it says what the model reads, while blocks are also of a model.
    db.table("prompts").create(
        {
            "id": int,
            "prompt_key": bytes,
            "prompt_chars": int,
            "prompt_tokens": int,
            "prompt_text": str,
            "prompt_blocks": bytes,  # 8 bytes each
            "block_tokens": float,
        },
        pk="id",
        not_null={"prompt_blocks"},
        strict=True,
    )
    db.table("prompts").create_index(["prompt_key"])
    db.table("bodies").create(
        {
            "id": int,
            "exact_key": bytes,
            "request_key": bytes,
            "prompt_id": int,
            "problem": str,
            "body_bytes": int,
            "model": str,
            "stream": int,  # 0 or 1
            "max_tokens": int,
            "temperature": float,
            "top_p": float,
            "n": int,
            "seed": int,
            "options": str,  # JSON list of names
            "messages": int,
            "images": int,
        },
        pk="id",
        not_null={"exact_key", "body_bytes", "options", "images"},
        strict=True,
    )
    db.table("bodies").create_index(["exact_key"], unique=True)
    db.table("clients").create({"id": int, "name": str}, pk="id", not_null={"name"}, strict=True)
    db.table("clients").create_index(["name"], unique=True)
    # Where requests go: few, and alike in every row.
    db.table("targets").create(
        {"id": int, "server": str, "method": str, "path": str}, pk="id", strict=True
    )
    db.table("targets").create_index(["path", "server", "method"])
    # One tree in the order of reading, hence no index beside it. `number` tells rows of one moment apart.
    db.execute(
        """
        CREATE TABLE seen (
            run_number INTEGER NOT NULL REFERENCES runs(number),
            ts REAL NOT NULL,
            number INTEGER NOT NULL,
            body_id INTEGER,
            client_id INTEGER,
            target_id INTEGER,
            took_ms REAL,
            damaged INTEGER NOT NULL,
            problem TEXT,
            status INTEGER,
            ttft_ms REAL,
            latency_ms REAL,
            prompt_tokens INTEGER,
            cached_tokens INTEGER,
            output_tokens INTEGER,
            finish_reason TEXT,
            in_flight INTEGER,
            cache TEXT,
            PRIMARY KEY (run_number, ts, number)
        ) STRICT, WITHOUT ROWID
        """
    )
    # What `toolkit runs` lists of a capture, counted while it is written: its rows are too many to count.
    db.table("captures").create(
        {
            "id": int,
            "run_number": int,
            "requests": int,
            "errors": int,  # answers of 400 and more
            "written_at": float,
            "summary": str,  # JSON object: what the capture said of itself
        },
        pk="id",
        not_null={"run_number", "requests", "errors"},
        foreign_keys=[("run_number", "runs", "number")],
        strict=True,
    )
    db.table("captures").create_index(["run_number"], unique=True)


STEPS: dict[str, Callable[["Database"], None]] = {
    "0001_look": _look_tables,
    "0002_bench": _bench_tables,
    "0003_blast": _blast_tables,
    "0004_seen": _seen_tables,
}
"""By the name that files remember a step under. Append only."""

TABLES = frozenset(
    (
        "_sqlite_migrations hosts sightings series readings runs shots ledgers verdicts run_hosts workers tallies"
        " loader_seconds events prompts bodies clients targets seen captures"
    ).split()
)
"""All that these steps make, and sqlite-utils' own list of steps."""
