"""What one scrape of a host says, or two some seconds apart: its pages -> HostEvidence -> Sighting.

No network, no clock, no store.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.hosts import path_hint
from toolkit.metrics.dialects import CacheNumbers, EngineNumbers, read_cache, read_numbers
from toolkit.metrics.names import GATEWAYS
from toolkit.metrics.parser import MetricsPage, read_page
from toolkit.records import START_SLACK_S, Reading, Sighting, Status
from toolkit.scout import pages
from toolkit.scout.pages import PageAnswer, Scrape
from toolkit.scout.problems import CLOSED
from toolkit.scout.tls_probe import WANTS_TLS, refuses_plain_http

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""`owned_by` of a model card -> engine."""
CHOSEN = {pages.VERSION, pages.MODELS, pages.METRICS, pages.TRTLLM_METRICS, *pages.ABOUT.values()}
"""Pages that say what somebody chose."""
COUNTERS = (
    "requests_total prompt_tokens_total generation_tokens_total preemptions_total"
    " prefix_queries_total prefix_hits_total"
).split()
"""They never fall in one process; a Sighting keeps the first four."""
SAME = (
    "gpu_memory_utilization block_size num_gpu_blocks swap_space_gib kv_cache_tokens kv_cache_max_concurrency engines"
    " prefix_caching running waiting kv_cache_usage preemptions_total prompt_tokens_total generation_tokens_total"
    " requests_total started_at"
).split()
"""Fields that bear the same name in a Sighting and in the engine's numbers."""
NO_ENGINE = EngineNumbers(engine="", dialect="")
LONGEST_TEXT = 4096
"""Characters: as long as a path may be."""
_HALVES = re.compile("[\ud800-\udfff]")


# --- What the pages say ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One entry of /v1/models."""

    id: str
    root: str | None = None
    parent: str | None = None
    owner: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvidence:
    """What the pages of one scrape say, each on its own; None and empty where a page says nothing."""

    scrape: Scrape
    page: MetricsPage | None = None
    """The metrics page, when it holds at least one readable sample."""
    numbers: EngineNumbers | None = None
    readings: tuple[Reading, ...] = ()
    cards: tuple[Card, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    """/version, /info, /server_info, /props and /tokenize, merged."""
    cache: CacheNumbers | None = None
    """Of a proxy in front of the engine, where its metrics are on the same page."""
    gateway: str | None = None
    """Which one answers in the engines' place, one of GATEWAYS."""

    @property
    def engine(self) -> str | None:
        """The engine's name, from its metrics, its model cards or its version page."""
        if self.gateway:
            return self.gateway
        if self.numbers:
            return self.numbers.engine
        for card in self.cards:
            if card.owner in OWNERS:
                return OWNERS[card.owner]
        # vLLM alone answers /version with this one key (Rust front end: with one more)
        return "vllm" if set(self.about) - {"rust_frontend_version"} == {"version"} else None

    @property
    def version(self) -> str | None:
        """As an engine's own page tells it."""
        return text(self.about.get("version")) or text(self.about.get("build_info"))

    @property
    def metrics(self) -> PageAnswer:
        """The answer that holds the metrics, or the reason for their absence."""
        other = self.scrape.answer(pages.TRTLLM_METRICS)
        return other if other.ok else self.scrape.answer(pages.METRICS)


def examine(scrape: Scrape) -> HostEvidence:
    """Read all pages of a scrape; never raises, whatever a host wrote."""
    data = _json(scrape.answer(pages.MODELS)).get("data")
    cards = tuple(
        Card(
            id=text(item["id"]) or "",
            root=text(item.get("root")),
            parent=text(item.get("parent")),
            owner=text(item.get("owned_by")),
            max_model_len=count(item.get("max_model_len")),
        )
        for item in (data if isinstance(data, list) else [])
        if isinstance(item, dict) and text(item.get("id"))
    )
    page, numbers = None, None
    for path in (pages.TRTLLM_METRICS, pages.METRICS):
        answer = scrape.answer(path)
        if page is None and answer.ok:
            # -sig: a byte order mark would spoil the first line
            read = read_page(answer.body.decode("utf-8-sig", "replace"))
            if read.has_samples:
                page, numbers = read, read_numbers(read, answer.content_type)
    gateway = pages.gateway(scrape.answers)
    if numbers is not None and numbers.engine in GATEWAYS:
        gateway = numbers.engine
    if gateway == "vllm-router":
        # it passes the rest on to an engine, to another one each time: two scrapes would tell of restarts that were none
        return HostEvidence(scrape=scrape, cards=cards, gateway=gateway)
    about: dict[str, Any] = {}
    for path in (pages.TOKENIZE, *pages.ABOUT.values(), pages.VERSION):
        about |= _json(scrape.answer(path))
    return HostEvidence(
        scrape=scrape,
        page=page,
        numbers=numbers,
        # reads every line: only now are the bad ones known
        readings=page.readings() if page else (),
        cards=cards,
        about=about,
        cache=read_cache(page) if page else None,
        gateway=gateway,
    )


def numbers_only(evidence: HostEvidence) -> HostEvidence:
    """What the next scrape is compared with, without the pages: a hostile host's take 60 MB."""
    answers = {path: replace(answer, body=b"") for path, answer in evidence.scrape.answers.items()}
    scrape = replace(evidence.scrape, answers=answers)
    return replace(evidence, scrape=scrape, page=None, readings=(), cards=(), about={})


def _json(answer: PageAnswer) -> dict[str, Any]:
    """Read a JSON object; an empty one for anything else (a host may answer HTML, or nonsense)."""
    if not answer.ok:
        return {}
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def text(value: object) -> str | None:
    """A string from a host as it is, escape sequences and all: whoever shows it cleans it."""
    if not isinstance(value, str) or not value:
        return None
    # half a character of JSON's fits neither the store nor a screen
    return _HALVES.sub("\ufffd", value[:LONGEST_TEXT])


def count(value: object) -> int | None:
    """A positive whole number from a host, small enough for SQLite's 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
        return value
    return None


# --- What that makes of the host ------------------------------------------------------------------------


def describe(evidence: HostEvidence, earlier: HostEvidence | None = None) -> Sighting:
    """Describe a host from one scrape; with an earlier one, rates and quantiles between the two."""
    scrape, numbers, about = evidence.scrape, evidence.numbers or NO_ENGINE, evidence.about
    status, error = judge(evidence)
    # names as the cards spell them, the labels of the metrics, or TGI's, llama.cpp's and SGLang's own pages
    models = tuple(card.id for card in evidence.cards)
    models = models or tuple(name for name in map(text, numbers.models) if name)
    named = (text(about.get(key)) for key in ("model_id", "model_alias", "served_model_name"))
    # the first card that has a length (LoRA cards have none), else where the engine hides it
    settings = about.get("default_generation_settings")
    lengths = (
        *(card.max_model_len for card in evidence.cards),
        about.get("max_model_len"),
        about.get("max_total_tokens"),
        settings.get("n_ctx") if isinstance(settings, dict) else None,
        numbers.max_model_len,
    )
    # the quiet request's time, or that of an answer which had to wait less for this machine
    answers = (*scrape.answers.values(), scrape.quiet or pages.NOT_ASKED)
    return Sighting(
        name=scrape.host.name,
        url=scrape.host.url,
        at=scrape.at,
        status=status,
        error=error,
        latency_ms=min(
            (answer.elapsed_ms for answer in answers if answer.elapsed_ms is not None),
            default=None,
        ),
        engine=evidence.engine,
        dialect=numbers.dialect or None,
        version=evidence.version,
        model=models[0] if models else next(filter(None, named), None),
        models=models,
        max_model_len=next(filter(None, map(count, lengths)), None),
        cache_dtype=text(numbers.cache_dtype),
        config_hash=config_hash(evidence),
        readings=evidence.readings,
        **{name: getattr(numbers, name) for name in SAME},
        **_over_time(evidence, earlier),
    )


def config_hash(evidence: HostEvidence) -> str | None:
    """Hash what somebody chose: engine, version, models, lengths and cache settings.

    Not what was measured at start (blocks, KV tokens), which differs a little from start to start.
    None after a scrape that was cut short: half a configuration would look like another one.
    """
    for path in CHOSEN & evidence.scrape.answers.keys():
        # whether it did not come this time; one that is closed or missing says so every time
        answer = evidence.scrape.answers[path]
        if answer.problem is not None or answer.status is None or answer.status >= 500:
            return None
    settings = evidence.numbers.settings if evidence.numbers else ()
    if not settings and not evidence.cards:
        return None
    chosen = [
        evidence.engine,
        evidence.version,
        sorted([card.id, card.root, card.parent, card.max_model_len] for card in evidence.cards),
        sorted(settings),
    ]
    return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12]


def judge(evidence: HostEvidence) -> tuple[Status, str | None]:
    """Decide the status and the sentence that says why."""
    scrape = evidence.scrape
    answers = scrape.answers.values()
    health, models = scrape.answer(pages.HEALTH), scrape.answer(pages.MODELS)
    problems = [answer.problem for answer in answers if answer.problem]
    is_refused = any(answer.refused for answer in answers)

    if all(answer.status is None for answer in answers):
        # one sentence for a host that gave no page at all: the most common problem
        if problems and all("did not finish within" in problem for problem in problems):
            return "down", "no answer" + problems[0][problems[0].index(" within") :]
        if problems and all(CLOSED in problem for problem in problems):
            is_plain = scrape.host.url.startswith("http:")
            doubt = "; does the port want `https://`?" if is_plain else ""
            return "down", f"every connection was {CLOSED}{doubt}"
        return "down", max(problems, key=problems.count, default="no answer")

    flaw: str | None
    if evidence.gateway:
        # what keeps its clients, or us, from what it stands for; itself it lives, as it answers
        if not evidence.cards and is_refused:
            flaw = "a gateway that refuses without a key; name its variable with `api_key_env=`"
        elif models.problem or (models.status or 0) >= 500:
            why = models.problem or f"`{pages.MODELS}` answers {models.status}"
            flaw = f"a gateway that answers, but no engine behind it does: {why}"
        elif evidence.gateway == "vllm-router":
            behind = "a gateway that answers, but not every engine behind it does"
            flaw = None if health.ok else behind
        else:
            flaw = _metrics_flaw(evidence)
        return ("degraded", flaw) if flaw else ("ok", None)

    if health.status is not None and health.status >= 500:
        # vLLM: the engine died; llama.cpp: loading
        return "down", f"`/health` answers {health.status}: the engine is dead or still loading"

    if evidence.engine is not None:
        # what keeps a known engine from being looked at whole
        flaw = health.problem
        if evidence.numbers is not None:
            first = (scrape.answer(path).problem for path in pages.FIRST_ROUND)
            flaw = flaw or next(filter(None, first), None)
        flaw = flaw or _metrics_flaw(evidence)
        return ("degraded", flaw) if flaw else ("ok", None)

    if evidence.cards:
        return "degraded", f"serves models, but {_metrics_flaw(evidence)}"
    if is_refused:
        return "degraded", "refuses without a key; name its variable with `api_key_env=`"
    if evidence.cache is not None:
        return "degraded", "a response cache answers, but no engine behind it does"
    if any(refuses_plain_http(answer.status, answer.body) for answer in answers):
        return "not_an_engine", WANTS_TLS
    if problems:  # what did not come might have been an engine's
        return "degraded", f"answers HTTP, but {problems[0]}"
    hint = path_hint(scrape.host.url)
    return "not_an_engine", f"answers HTTP, but no page of an LLM engine{hint}"


def _metrics_flaw(evidence: HostEvidence) -> str | None:
    """Why the metrics page holds no engine's numbers; or that it came as long as it said, and is none that was written to its end."""
    metrics, page = evidence.metrics, evidence.page
    if evidence.numbers is None:
        if metrics.problem:
            return metrics.problem
        if metrics.status != 200:
            return f"`/metrics` answers {metrics.status}"
        if page is None:
            return "`/metrics` is not Prometheus text"
        if evidence.cache is not None:
            return "`/metrics` has the response cache's numbers and no engine's"
        return "`/metrics` has no engine's numbers (vLLM: `--disable-log-stats`)"
    if page is not None and page.ended_early:
        return "`/metrics` ends in the middle of a line; that number is unknown"
    is_openmetrics = "openmetrics" in metrics.content_type.lower()
    if page is not None and is_openmetrics and not page.openmetrics:
        return "`/metrics` ends without OpenMetrics' `# EOF`; numbers may be missing"
    return None


def has_restarted(before: Sighting | EngineNumbers, now: Sighting | EngineNumbers) -> bool:
    """Whether another process answers than last time, by its start time or a counter that fell."""
    if before.started_at is not None and now.started_at is not None:
        return abs(now.started_at - before.started_at) > START_SLACK_S
    return any((_growth(before, now, name) or 0) < 0 for name in COUNTERS)


def _growth(
    before: Sighting | EngineNumbers, now: Sighting | EngineNumbers, counter: str
) -> float | None:
    """By how much a counter rose; None where one of the two is unknown."""
    old, new = getattr(before, counter, None), getattr(now, counter, None)
    return None if old is None or new is None else new - old


def _over_time(evidence: HostEvidence, earlier: HostEvidence | None) -> dict[str, Any]:
    """Quantiles, means and ratios: since the process started, or between two scrapes; and then rates."""
    now = evidence.numbers or NO_ENGINE
    ttft, queue = now.ttft, now.queue
    hits, queries = now.prefix_hits_total, now.prefix_queries_total
    found: dict[str, Any] = {}
    if earlier is not None and earlier.numbers is not None and evidence.numbers is not None:
        before = earlier.numbers
        seconds = (evidence.metrics.answered_at or 0) - (earlier.metrics.answered_at or 0)
        found["interval_s"] = seconds
        if has_restarted(before, now):
            return found
        for rate, counter in (
            ("requests_per_s", "requests_total"),
            ("output_tokens_per_s", "generation_tokens_total"),
        ):
            growth = _growth(before, now, counter)
            if growth is not None and growth >= 0 and seconds > 0:
                found[rate] = growth / seconds
        ttft = ttft.since(before.ttft) if ttft and before.ttft else None
        queue = queue.since(before.queue) if queue and before.queue else None
        hits = _growth(before, now, "prefix_hits_total")
        queries = None if hits is None else _growth(before, now, "prefix_queries_total")

    if queries is None:
        found["prefix_hit_ratio"] = now.prefix_hit_ratio
    elif hits is not None and queries > 0:
        found["prefix_hit_ratio"] = hits / queries
    if ttft is not None:
        for name, share in (("ttft_p50", 0.5), ("ttft_p95", 0.95)):
            quantile = ttft.quantile(share)
            found[f"{name}_ms"] = _ms(quantile.value)
            found[f"{name}_below_ms"] = _ms(quantile.below)
            found[f"{name}_above_ms"] = _ms(quantile.above)
    if queue is not None:
        found["queue_mean_ms"] = _ms(queue.mean())
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
