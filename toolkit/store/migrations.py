"""How the store's tables came to be: every step ever made, oldest first. It opens no file.

A step that has left this checkout never changes what it makes: files out there have it behind them. So columns are
spelled out here and not derived from the records: a new field needs a new step, and tests/store/test_schema.py fails
until it has one.

    hosts --< sightings --< readings >-- series
    runs  --< shots, ledgers, verdicts                >-- hosts
          --< tallies, loader_seconds, run_hosts, events >-- hosts, workers
          --< seen >-- bodies >-- prompts;  seen >-- clients, targets
          --  captures

A yes or no is 0 or 1; `models`, `findings`, `error_kinds` and `options` are JSON lists, `labels`, `settings` and `summary`
JSON objects; `itl`, `e2e` and `ttft` are histograms as toolkit/stats.py writes them. NULL is unknown.
"""

# WITHOUT ROWID halves the 15-byte rows of readings, since key and row are one tree: 2,246 bytes against 4,286 for 130
# of them. It is right for tiny rows only: rows with histograms past the overflow threshold grew 3.2 times by it, so
# tallies are a rowid table. A reading's NULL is the host's NaN: SQLite has none.
_SNAPSHOTS = """
CREATE TABLE hosts (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, url TEXT NOT NULL,
    team TEXT, model TEXT, note TEXT, first_seen_at REAL NOT NULL
) STRICT;
CREATE UNIQUE INDEX idx_hosts_name_url ON hosts (name, url);

CREATE TABLE sightings (
    id INTEGER PRIMARY KEY, host_id INTEGER NOT NULL REFERENCES hosts(id), at REAL NOT NULL,
    status TEXT NOT NULL, error TEXT, latency_ms REAL,
    engine TEXT, dialect TEXT, version TEXT, model TEXT, models TEXT NOT NULL,
    max_model_len INTEGER, gpu_memory_utilization REAL, cache_dtype TEXT, block_size INTEGER,
    num_gpu_blocks INTEGER, swap_space_gib REAL,
    kv_cache_tokens INTEGER, kv_cache_max_concurrency REAL, engines INTEGER, prefix_caching INTEGER,
    running REAL, waiting REAL, kv_cache_usage REAL, prefix_hit_ratio REAL,
    preemptions_total REAL, prompt_tokens_total REAL, generation_tokens_total REAL, requests_total REAL,
    ttft_p50_ms REAL, ttft_p50_below_ms REAL, ttft_p50_above_ms REAL,
    ttft_p95_ms REAL, ttft_p95_below_ms REAL, ttft_p95_above_ms REAL,
    queue_mean_ms REAL, requests_per_s REAL, output_tokens_per_s REAL, interval_s REAL,
    config_hash TEXT, started_at REAL, findings TEXT NOT NULL
) STRICT;
-- serves a host's history in the order of time, and its last sighting
CREATE INDEX idx_sightings_host_id_at ON sightings (host_id, at);

CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX idx_series_name_labels ON series (name, labels);

CREATE TABLE readings (
    sighting_id INTEGER NOT NULL REFERENCES sightings(id),
    series_id INTEGER NOT NULL REFERENCES series(id),
    value REAL,
    PRIMARY KEY (sighting_id, series_id)
) STRICT, WITHOUT ROWID
"""

# `number` is what rows of a run bear: at most 8 bytes, 1 for the first 127 runs, where the text of `id` takes 12, in the
# row and once more in its index.
_BENCH = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, verb TEXT NOT NULL,
    started_at REAL NOT NULL, ended_at REAL, settings TEXT NOT NULL, client_ok INTEGER
) STRICT;
CREATE UNIQUE INDEX idx_runs_id ON runs (id);

CREATE TABLE shots (
    id INTEGER PRIMARY KEY,
    run_number INTEGER NOT NULL REFERENCES runs(number),
    host_id INTEGER NOT NULL REFERENCES hosts(id),
    slot INTEGER NOT NULL, kind TEXT NOT NULL, pair INTEGER, prompt TEXT NOT NULL, concurrency INTEGER,
    stream INTEGER NOT NULL, max_tokens INTEGER NOT NULL, ignore_eos INTEGER,
    planned_at REAL NOT NULL, sent_at REAL, send_lag_ms REAL, took_ms REAL,
    ok INTEGER NOT NULL, error_kind TEXT, error TEXT, status_code INTEGER,
    ttft_ms REAL, ttft_visible_ms REAL, e2e_ms REAL, tpot_ms REAL, itl BLOB,
    prompt_tokens INTEGER, output_tokens INTEGER, output_tokens_estimated INTEGER NOT NULL,
    cached_tokens INTEGER, token_chunks INTEGER,
    text_chars INTEGER, text_hash TEXT, finish_reason TEXT, model TEXT, answer_id TEXT, cache_status TEXT
) STRICT;
-- not unique: warm-up has slots of its own from 0, and so has each level of a sweep
CREATE INDEX idx_shots_run_number_host_id_slot ON shots (run_number, host_id, slot);

CREATE TABLE ledgers (
    id INTEGER PRIMARY KEY,
    run_number INTEGER NOT NULL REFERENCES runs(number),
    host_id INTEGER NOT NULL REFERENCES hosts(id),
    error TEXT, rtt_ms REAL, restarted INTEGER,
    requests REAL, prompt_tokens REAL, generation_tokens REAL, finished_length REAL, finished_stop REAL,
    asked_tokens REAL, asked_requests REAL, prefix_queries REAL, prefix_hits REAL, preemptions REAL,
    queue_mean_ms REAL, running_before REAL, waiting_before REAL, waiting_max REAL,
    models_before TEXT NOT NULL, models_after TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX idx_ledgers_run_number_host_id ON ledgers (run_number, host_id);

CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY,
    run_number INTEGER NOT NULL REFERENCES runs(number),
    host_id INTEGER NOT NULL REFERENCES hosts(id),
    code TEXT NOT NULL, confidence TEXT NOT NULL, evidence TEXT NOT NULL
) STRICT;
CREATE INDEX idx_verdicts_run_number_host_id ON verdicts (run_number, host_id)
"""

# Tallies by the second before the rest: rows arrive in time order, so a window is one range, and the index grows at its
# end. Not unique: what a worker counted late of a second is one more row.
_BLAST = """
-- the order of `id` is that of the hosts file
CREATE TABLE run_hosts (
    id INTEGER PRIMARY KEY,
    run_number INTEGER NOT NULL REFERENCES runs(number),
    host_id INTEGER NOT NULL REFERENCES hosts(id)
) STRICT;
CREATE UNIQUE INDEX idx_run_hosts_run_number_host_id ON run_hosts (run_number, host_id);

-- Locust names a worker with some 40 characters, which would stand in each row and its index
CREATE TABLE workers (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX idx_workers_name ON workers (name);

CREATE TABLE tallies (
    id INTEGER PRIMARY KEY,
    run_number INTEGER NOT NULL REFERENCES runs(number),
    at_s INTEGER NOT NULL,
    host_id INTEGER NOT NULL REFERENCES hosts(id),
    worker_id INTEGER NOT NULL REFERENCES workers(id),
    kind TEXT NOT NULL, ok INTEGER NOT NULL, errors INTEGER NOT NULL, error_kinds TEXT NOT NULL,
    streamed INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, output_tokens_estimated INTEGER NOT NULL,
    cache_told INTEGER NOT NULL, cache_hits INTEGER NOT NULL,
    cache_judged INTEGER NOT NULL, cache_inferred INTEGER NOT NULL,
    e2e BLOB NOT NULL, ttft BLOB NOT NULL
) STRICT;
CREATE INDEX idx_tallies_run_number_at_s_kind ON tallies (run_number, at_s, kind);
-- readers follow a run's ranked rows by rowid, which every index ends with; 9 bytes a row
CREATE INDEX idx_tallies_ranked ON tallies (run_number) WHERE kind = 'ranked';

CREATE TABLE loader_seconds (
    id INTEGER PRIMARY KEY,
    run_number INTEGER NOT NULL REFERENCES runs(number),
    at_s INTEGER NOT NULL,
    worker_id INTEGER NOT NULL REFERENCES workers(id),
    users INTEGER, cpu_share REAL, lag_ms REAL, limited INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX idx_loader_seconds_run_number_at_s_worker_id ON loader_seconds (run_number, at_s, worker_id);
CREATE INDEX idx_loader_seconds_run_number ON loader_seconds (run_number);

-- no index: a day of contests has tens of events
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    run_number INTEGER REFERENCES runs(number),
    host_id INTEGER REFERENCES hosts(id),
    at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
-- with the host it answers alone which are each host's newest in a stretch of time
CREATE INDEX idx_shots_run_number_sent_at_host_id ON shots (run_number, sent_at, host_id)
"""

# What rows of seen and bodies refer to is not declared: SQLite would look for a row's users in the whole of seen for
# each body that goes. Runs.remove_run removes what no run needs any more.
_CAPTURE = """
-- not unique by key: it says what the model reads, while blocks (8 bytes each) are also of a model
CREATE TABLE prompts (
    id INTEGER PRIMARY KEY, prompt_key BLOB, prompt_chars INTEGER, prompt_tokens INTEGER,
    prompt_text TEXT, prompt_blocks BLOB NOT NULL, block_tokens REAL
) STRICT;
CREATE INDEX idx_prompts_prompt_key ON prompts (prompt_key);

CREATE TABLE bodies (
    id INTEGER PRIMARY KEY, exact_key BLOB NOT NULL, request_key BLOB, prompt_id INTEGER,
    problem TEXT, body_bytes INTEGER NOT NULL, model TEXT, stream INTEGER, max_tokens INTEGER,
    temperature REAL, top_p REAL, n INTEGER, seed INTEGER, options TEXT NOT NULL,
    messages INTEGER, images INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX idx_bodies_exact_key ON bodies (exact_key);

CREATE TABLE clients (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX idx_clients_name ON clients (name);

-- where requests go: few, and alike in every row
CREATE TABLE targets (id INTEGER PRIMARY KEY, server TEXT, method TEXT, path TEXT) STRICT;
CREATE INDEX idx_targets_path_server_method ON targets (path, server, method);

-- one tree in the order of reading, hence no index beside it; `number` tells rows of one moment apart
CREATE TABLE seen (
    run_number INTEGER NOT NULL REFERENCES runs(number), ts REAL NOT NULL, number INTEGER NOT NULL,
    body_id INTEGER, client_id INTEGER, target_id INTEGER,
    took_ms REAL, damaged INTEGER NOT NULL, problem TEXT,
    status INTEGER, ttft_ms REAL, latency_ms REAL,
    prompt_tokens INTEGER, cached_tokens INTEGER, output_tokens INTEGER, finish_reason TEXT,
    in_flight INTEGER, cache TEXT,
    PRIMARY KEY (run_number, ts, number)
) STRICT, WITHOUT ROWID;

-- what `toolkit runs` lists of a capture, counted while it is written (its rows are too many to count):
-- `errors` are answers of 400 and more, `summary` is what the capture said of itself
CREATE TABLE captures (
    id INTEGER PRIMARY KEY, run_number INTEGER NOT NULL REFERENCES runs(number),
    requests INTEGER NOT NULL, errors INTEGER NOT NULL, written_at REAL, summary TEXT
) STRICT;
CREATE UNIQUE INDEX idx_captures_run_number ON captures (run_number)
"""

STEPS = {
    "0001_look": _SNAPSHOTS,
    "0002_bench": _BENCH,
    "0003_blast": _BLAST,
    "0004_seen": _CAPTURE,
}
"""SQL statements by the name that files remember a step under. Append only."""

TABLES = frozenset(
    (
        "_sqlite_migrations hosts sightings series readings runs shots ledgers verdicts run_hosts workers tallies"
        " loader_seconds events prompts bodies clients targets seen captures"
    ).split()
)
"""All that these steps make, and sqlite-utils' own list of steps."""
