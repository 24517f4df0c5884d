"""The facts that packages hand to each other: frozen records with units in their names.

A missing number is None, never 0 or -1. Standard library only; no I/O, no clock.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "degraded", "down", "not_an_engine"]

START_SLACK_S = 1.0
"""A process's start time moves by clock corrections; a restart takes longer than this."""
USUAL_MAX_TOKENS = 256
"""Of an answer, where neither a file nor the user sets a limit: the contest's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One server that the user named: a line of hosts.txt or a URL on the command line."""

    name: str
    url: str
    """Base URL without a trailing slash, e.g., `http://10.0.0.4:8000`."""
    team: str | None = None
    model: str | None = None
    """The model the user expects there."""
    root: str | None = None
    """Where its weights are expected to come from, e.g., `Qwen/Qwen3.5-35B-A3B-FP8`."""
    max_model_len: int | None = None
    """The limit it is expected to have, in tokens: a shorter one leaves more memory for others."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never kept."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something a person should know about a host: a stable code and one sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One raw gauge or counter of a `/metrics` page, as the host wrote it."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """Sorted (name, value) pairs."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look at one host saw. Field names are the keys of `toolkit scout --json`."""

    name: str
    url: str
    at: float
    """Wall clock of the looking machine, seconds since 1970."""
    status: Status
    error: str | None = None
    """Why the status is not `ok`, in one sentence."""
    latency_ms: float | None = None
    """Send to response headers of a small page, asked while the looking machine was idle."""
    engine: str | None = None
    """`vllm`, `sglang`, `tgi`, `llama.cpp`, `trtllm`; or a gateway: `litellm`, `vllm-router`, `production-stack-router`."""
    dialect: str | None = None
    """How it spells its metrics: `v0`, `v1` or `rust` for vLLM, else the engine's name."""
    version: str | None = None
    model: str | None = None
    """The first served model's name."""
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    cache_dtype: str | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    swap_space_gib: float | None = None
    kv_cache_tokens: int | None = None
    """Tokens the whole host can keep, all data-parallel engines together."""
    kv_cache_max_concurrency: float | None = None
    """Requests of full model length that fit, all data-parallel engines together."""
    engines: int | None = None
    """Data-parallel engines behind this one address."""
    prefix_caching: bool | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1, mean over engines."""
    prefix_hit_ratio: float | None = None
    """Tokens found in the prefix cache / tokens looked up: since start, or between two looks."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_total: float | None = None
    """Requests that ended, whatever the reason."""
    ttft_p50_ms: float | None = None
    ttft_p50_below_ms: float | None = None
    """Set instead of the quantile when it sits in the first bucket: it is at most this."""
    ttft_p50_above_ms: float | None = None
    """Set instead of the quantile when it sits in the last bucket: it is more than this."""
    ttft_p95_ms: float | None = None
    ttft_p95_below_ms: float | None = None
    ttft_p95_above_ms: float | None = None
    queue_mean_ms: float | None = None
    requests_per_s: float | None = None
    """Requests ended between two looks / seconds between them; only with `--interval`."""
    output_tokens_per_s: float | None = None
    interval_s: float | None = None
    """Seconds between the two looks that the rates and quantiles describe; None: since start."""
    config_hash: str | None = None
    """Equal hashes mean equal settings; measured sizes and counters are left out."""
    started_at: float | None = None
    """When the serving process started, seconds since 1970 by the host's clock."""
    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = field(default=(), repr=False)
    """Raw gauges and counters, for the store; never printed by scout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measuring run over one or many hosts, all under the same plan."""

    id: str
    """Twelve hexadecimal digits."""
    verb: str
    """The command that made it, e.g., `bench`."""
    started_at: float
    """Wall clock of the measuring machine, seconds since 1970."""
    ended_at: float | None = None
    settings: str = "{}"
    """JSON object: the plan, as the command line gave it. No key and no prompt text."""
    client_ok: bool | None = None
    """False: the measuring machine was the limit, and the figures describe it."""

    @property
    def plan(self) -> dict[str, Any]:
        """`settings` as a dictionary; nothing where its row was damaged."""
        try:
            found = json.loads(self.settings)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


RequestKind = Literal["unique", "twin", "repeat", "warmup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One timed request. Times of day are wall clock; durations come from a monotonic clock."""

    run: str
    """`Run.id`."""
    name: str
    """The host's."""
    url: str
    slot: int
    """Number in the plan, from 0; equal slots are the same template at every host."""
    kind: RequestKind
    """`unique`: a prompt nobody sent before. `twin`: exactly the request of an earlier unique one, sent once that
    one was answered. `repeat`: a prompt that may have been sent before. `warmup`: not counted."""
    pair: int | None = None
    """Of a twin: the slot of the unique request that it repeats."""
    prompt: str
    """The prompt's name in the profile, never its text."""
    concurrency: int | None = None
    """Requests under way at once, closed loop; None: open loop."""
    stream: bool
    max_tokens: int
    """As asked for."""
    ignore_eos: bool | None = None
    """Asked to go on up to `max_tokens`, whatever the model says; None: not asked."""
    planned_at: float
    """When it should have left; latencies count from here in an open loop, from `sent_at` in a closed one."""
    sent_at: float | None = None
    """None: it never left."""
    send_lag_ms: float | None = None
    """`sent_at` - `planned_at`, by the monotonic clock."""
    took_ms: float | None = None
    """From the start of its latency to its end, be it an answer or an error."""
    ok: bool
    """HTTP 2xx, a complete answer with a finish reason, no error inside the stream."""
    error_kind: str | None = None
    """`connect` `timeout` `http_500` `cut` `no_finish` `stream_error` `garbage` `too_large` `not_sent` ..."""
    error: str | None = None
    """One sentence; never holds a key."""
    status_code: int | None = None
    ttft_ms: float | None = None
    """To the first chunk with a token: content, reasoning or tool call. None without streaming."""
    ttft_visible_ms: float | None = None
    """To the first chunk with a token that is not reasoning."""
    e2e_ms: float | None = None
    """To the last chunk with a token; without streaming, to the last byte of the body."""
    tpot_ms: float | None = None
    """(E2E - TTFT) / tokens after the first chunk."""
    itl: bytes | None = None
    """Sketch (stats.py) of the gaps between chunks / tokens in the later chunk, in milliseconds."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """The server's `usage`; the number of chunks with a token when it tells none."""
    output_tokens_estimated: bool = False
    cached_tokens: int | None = None
    """Prompt tokens that the server says it had in its prefix cache."""
    token_chunks: int | None = None
    """Chunks with a token; None without streaming."""
    text_chars: int | None = None
    """Characters of content, reasoning and tool calls."""
    text_hash: str | None = None
    """Equal hashes are equal texts."""
    finish_reason: str | None = None
    model: str | None = None
    """Who answered, as the answer says."""
    answer_id: str | None = None
    """The answer's `id`; an honest server gives each answer its own."""
    cache_status: str | None = None
    """`Cache-Status` or `X-Cache` header, as sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of a host's `/v1/models`."""

    id: str
    """What requests call it."""
    root: str | None = None
    """Where its weights came from, as the server tells it."""
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What one host's own counters moved by during a run, warm-up included. None: it does not say."""

    run: str
    name: str
    url: str
    error: str | None = None
    """Why there are no counters to compare, e.g., ``/metrics` answered 404``."""
    rtt_ms: float | None = None
    """TCP handshake with the host, the shortest of a few, before the load."""
    restarted: bool | None = None
    """The process started anew meanwhile, or a counter went backwards: the sums below are None."""
    requests: float | None = None
    """Requests that ended, whatever the reason."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    finished_length: float | None = None
    """Requests that the server ended because they reached their `max_tokens`."""
    finished_stop: float | None = None
    asked_tokens: float | None = None
    """Sum of `max_tokens` over `asked_requests`, as the server's front end was asked."""
    asked_requests: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    queue_mean_ms: float | None = None
    """Waiting time of the run's requests inside the server, mean."""
    running_before: float | None = None
    """Requests under way before we sent any: somebody else's."""
    waiting_before: float | None = None
    waiting_max: float | None = None
    """The most that were seen waiting, looking about once a second."""
    models_before: tuple[ServedModel, ...] = ()
    models_after: tuple[ServedModel, ...] = ()


Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What explains a host's figures: a stable code, how sure we are, and why in one sentence."""

    code: str
    confidence: Confidence
    """`high`: independent kinds of evidence agree, or a count that allows no other reading. `medium`: one kind of
    evidence. `low`: a hint."""
    evidence: str

    @property
    def title(self) -> str:
        """`response cache (high)`, as people read it."""
        words = self.code.replace("_", " ")
        return f"{words} ({self.shown_confidence})" if self.shown_confidence else words

    @property
    def shown_confidence(self) -> Confidence | None:
        """The confidence; None where nobody is accused, as it would say nothing there."""
        return None if self.code in ("not_judged", "same_engine") else self.confidence

    @property
    def because(self) -> str:
        """The evidence as people read it: the codes of what could not be judged are words there.

        They stand only before the colon of each part: `hidden_backend and saturated: reason; ...`.
        """
        if self.code != "not_judged":
            return self.evidence
        return re.sub(
            "(?:^|; )[a-z_, ]+(?=: )",
            lambda codes: codes[0].replace("most codes", "most verdicts").replace("_", " "),
            self.evidence,
        )


MOST_ERRORS = 0.1
"""Of a host's requests: who fails more often is red, named by no headline, and not called clean, whatever its answers are."""

NOT_VALID = "not valid for ranking"
"""So begins the text of a mark that says why a run ranks nobody."""

EventKind = Literal[
    "start",
    "resume",
    "stop",
    "phase",
    "mark",
    "restart",
    "model",
    "config",
    "freeze",
    "reveal",
    "uncover",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at a moment of a run, to one host or to all."""

    run: str | None = None
    """`Run.id`; None: whatever run is on."""
    name: str | None = None
    """The host's, as `url`; None: it concerns all."""
    url: str | None = None
    at: float
    """Wall clock, seconds since 1970."""
    kind: EventKind
    text: str = ""


TallyKind = Literal["ranked", "canary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """How many requests failed in one way."""

    kind: str
    """As `RequestRecord.error_kind`."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One host's requests that ended in one second, as one worker counted them. Sums of tallies are exact."""

    run: str
    name: str
    """The host's."""
    url: str
    at_s: int
    """The second, wall clock of the load generator, since 1970."""
    worker: str
    """Who counted: its parts of a second are rows of their own, and a late one is one row more."""
    kind: TallyKind
    """`canary`: unique requests and their twins that keep the verdicts alive; never ranked."""
    ok: int = 0
    errors: int = 0
    """All requests that were not ok, planned ones that never left included."""
    error_kinds: tuple[ErrorCount, ...] = ()
    """Of `errors`, by kind; they add up to it."""
    streamed: int = 0
    """Of `ok`: answers that came as streams, and so have a TTFT."""
    prompt_tokens: int = 0
    """Of the ok answers, as `output_tokens`: the server's usage."""
    output_tokens: int = 0
    output_tokens_estimated: int = 0
    """Of `output_tokens`: counted from chunks, as those answers told no usage."""
    cache_told: int = 0
    """Ok answers with a `Cache-Status` or `X-Cache` header, and of these the hits."""
    cache_hits: int = 0
    cache_judged: int = 0
    """Ok answers without such a header that could be told from unique canaries of the same prompt, and of these the
    ones in less than a tenth of their median, and in less time than writing them takes."""
    cache_inferred: int = 0
    e2e: bytes = b""
    """Sketch (stats.py) of the ok answers' E2E, milliseconds."""
    ttft: bytes = b""
    """Sketch of the ok streams' TTFT, milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What the tallies of one host, run and kind add up to; the fields are Tally's."""

    ok: int
    errors: int
    streamed: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_estimated: int
    cache_told: int
    cache_hits: int
    cache_judged: int
    cache_inferred: int


class Part(NamedTuple):
    """What a window needs of a ranked tally, as bare as the database hands it out: 18,000 of them in 15 minutes of 20 hosts."""

    row: int
    """Rises with the order of writing, not with the second."""
    host: int
    """The database's number of the host."""
    at_s: int
    ok: int
    errors: int
    streamed: int
    output_tokens: int
    output_tokens_estimated: int
    cache_told: int
    cache_hits: int
    cache_judged: int
    cache_inferred: int
    e2e: bytes
    ttft: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSecond:
    """How one worker of the load generator fared in one second; written in every second, traffic or not."""

    run: str
    at_s: int
    worker: str
    users: int | None = None
    cpu_share: float | None = None
    """CPU time / wall time of the process: 1 is a whole core."""
    lag_ms: float | None = None
    """The latest that something due was run."""
    limited: bool = False
    """The load generator was the limit: the second's figures describe it, and count against no host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one request body asks for. Equal bodies share one: in memory, and as a row of the store."""

    exact_key: str
    """Hash of the body's bytes as sent, 32 hexadecimal digits."""
    request_key: str | None = None
    """Hash of the canonical request (protocol/request_key.py), which a response cache goes by; None: it has none."""
    prompt_key: str | None = None
    """Hash of what the model reads, whatever the sampling; None: no prompt was found."""
    problem: str | None = None
    """Why the body could not be read in full, e.g., `not JSON`."""
    body_bytes: int
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    """`max_completion_tokens` where that is given."""
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    options: tuple[str, ...] = ()
    """Names of all other fields, sorted, e.g., `logprobs`, `response_format`, `tools`."""
    messages: int | None = None
    """Messages of a chat request."""
    images: int = 0
    """Parts of the messages that are not text."""
    prompt_chars: int | None = None
    prompt_tokens: int | None = None
    """Known only where the prompt came as token ids, or a trace or a log tells it; else an answer's usage may."""
    prompt_text: str | None = None
    """Only where the user asked to keep texts."""
    prompt_blocks: bytes = b""
    """Chain hashes, 8 bytes each, of the prompt's whole blocks: equal ones are equal beginnings."""
    block_tokens: float | None = None
    """Tokens that one of `prompt_blocks` stands for; an estimate (64 bytes are taken for 16 tokens) but in traces."""


SeenCache = Literal["hit", "coalesced", "miss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request of a client as it arrived: from packets, a proxy, a log or a trace."""

    ts: float
    """When its first byte arrived, wall clock, seconds since 1970."""
    took_ms: float | None = None
    """From its first byte to its last."""
    client: str | None = None
    """Who sent it: a hash that lasts for one capture, or an address where the user asked for it, or a team."""
    server: str | None = None
    """Address and port that it was sent to."""
    method: str | None = None
    path: str | None = None
    """Without the query string."""
    asked: Asked | None = None
    """None: it has no body, or not all of it was seen."""
    damaged: bool = False
    """Part of it was lost on the way to us; the client may have sent it well."""
    problem: str | None = None
    """What is the matter with a damaged one, e.g., `1,448 bytes lost`."""
    status: int | None = None
    """Of its answer, as all that follows; None where answers were not followed."""
    ttft_ms: float | None = None
    """From the request's last byte to the first chunk with a token; None without streaming."""
    latency_ms: float | None = None
    """From the request's last byte to the answer's last."""
    prompt_tokens: int | None = None
    """By the answer's usage."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    in_flight: int | None = None
    """Requests to the same server that were unanswered when this one arrived."""
    cache: SeenCache | None = None
    """How a response cache in front served it, where that is known."""
