"""HostEvidence -> Sighting: what one look at one host saw, or two looks some seconds apart.

No network, no clock, no store.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from toolkit.metrics.dialects import EngineNumbers
from toolkit.metrics.parser import Histogram, Quantile
from toolkit.records import Sighting, Status
from toolkit.scout import answers as pages
from toolkit.scout.answers import PageAnswer, Scrape
from toolkit.scout.evidence import HostEvidence, count, text
from toolkit.scout.findings import has_restarted

NO_ENGINE = EngineNumbers(engine="", dialect="")


def sight(evidence: HostEvidence, earlier: HostEvidence | None = None) -> Sighting:
    """Describe a host from one look; with an earlier one, rates and quantiles between the two."""
    look, numbers = evidence.look, evidence.numbers or NO_ENGINE
    status, error = judge(evidence)
    models = tuple(card.id for card in evidence.cards) or _names(numbers)
    return Sighting(
        name=look.host.name,
        url=look.host.url,
        at=look.at,
        status=status,
        error=error,
        latency_ms=_latency_ms(look),
        engine=evidence.engine,
        dialect=numbers.dialect or None,
        version=_version(evidence.about),
        model=models[0] if models else _model(evidence.about),
        models=models,
        max_model_len=_max_model_len(evidence),
        config_hash=config_hash(evidence),
        readings=evidence.readings,
        **_numbers(numbers),
        **_over_time(evidence, earlier),
    )


def _numbers(numbers: EngineNumbers) -> dict[str, Any]:
    """The fields that bear the same name in a Sighting and in the engine's numbers."""
    same = (
        "gpu_memory_utilization cache_dtype block_size num_gpu_blocks swap_space_gib"
        " kv_cache_tokens kv_cache_max_concurrency engines prefix_caching running waiting"
        " kv_cache_usage preemptions_total prompt_tokens_total generation_tokens_total"
        " requests_total started_at"
    )
    named = {name: getattr(numbers, name) for name in same.split()}
    return named | {"cache_dtype": text(numbers.cache_dtype)}


def _names(numbers: EngineNumbers) -> tuple[str, ...]:
    """The models' names, as the labels of the metrics spell them."""
    return tuple(name for name in map(text, numbers.models) if name)


def _latency_ms(look: Scrape) -> float | None:
    """The quiet request's time, or that of an answer which had to wait less for this machine."""
    answers = [*look.answers.values(), *([look.quiet] if look.quiet else [])]
    return min((a.elapsed_ms for a in answers if a.elapsed_ms is not None), default=None)


def _model(about: Mapping[str, Any]) -> str | None:
    """As TGI, llama.cpp and SGLang tell it on their own pages."""
    names = (text(about.get(key)) for key in ("model_id", "model_alias", "served_model_name"))
    return next((name for name in names if name), None)


def _version(about: Mapping[str, Any]) -> str | None:
    return text(about.get("version")) or text(about.get("build_info"))


def _max_model_len(evidence: HostEvidence) -> int | None:
    """From the first card that has one (LoRA cards have none), else where the engine hides it."""
    for card in evidence.cards:
        if card.max_model_len:
            return card.max_model_len
    about = evidence.about
    settings = about.get("default_generation_settings")
    hidden = settings.get("n_ctx") if isinstance(settings, dict) else None
    from_numbers = evidence.numbers.max_model_len if evidence.numbers else None
    candidates = (about.get("max_model_len"), about.get("max_total_tokens"), hidden, from_numbers)
    return next((length for length in map(count, candidates) if length), None)


def config_hash(evidence: HostEvidence) -> str | None:
    """Hash what somebody chose: engine, version, models, lengths and cache settings.

    Not what was measured at start (blocks, KV tokens), which differs a little from start to start.
    None after a look that was cut short: half a configuration would look like another one.
    """
    if any(_failed(evidence.look.answers[path]) for path in TELLING & evidence.look.answers.keys()):
        return None
    settings = evidence.numbers.settings if evidence.numbers else ()
    if not settings and not evidence.cards:
        return None
    chosen = [
        evidence.engine,
        _version(evidence.about),
        sorted([card.id, card.root, card.parent, card.max_model_len] for card in evidence.cards),
        sorted(settings),
    ]
    return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12]


TELLING = {pages.VERSION, pages.MODELS, pages.METRICS, pages.TRTLLM_METRICS, *pages.ABOUT.values()}
"""Pages that tell what was chosen."""


def _failed(answer: PageAnswer) -> bool:
    """Whether a page did not come this time; one that is closed or missing says so every time."""
    return answer.problem is not None or answer.status is None or answer.status >= 500


def judge(evidence: HostEvidence) -> tuple[Status, str | None]:
    """Decide the status and the sentence that says why."""
    health, answers = evidence.look.answer(pages.HEALTH), evidence.look.answers
    if all(answer.status is None for answer in answers.values()):
        return "down", _first_problem(evidence.look)
    if evidence.gateway:
        flaw = _gateway_flaw(evidence)
        return ("degraded", flaw) if flaw else ("ok", None)
    if health.status is not None and health.status >= 500:
        # vLLM: the engine died; llama.cpp: loading
        return "down", f"`/health` answers {health.status}: the engine is dead or still loading"
    if evidence.engine is None:
        return _unknown(evidence)
    flaw = _flaw(evidence)
    return ("degraded", flaw) if flaw else ("ok", None)


def _gateway_flaw(evidence: HostEvidence) -> str | None:
    """What keeps a gateway's clients, or us, from what it stands for; itself it lives, as it answers."""
    look = evidence.look
    models, health = look.answer(pages.MODELS), look.answer(pages.HEALTH)
    if not evidence.cards and any(answer.refused for answer in look.answers.values()):
        return "a gateway that refuses without a key; name its variable with `api_key_env=`"
    if models.problem or (models.status or 0) >= 500:
        why = models.problem or f"`{pages.MODELS}` answers {models.status}"
        return f"a gateway that answers, but no engine behind it does: {why}"
    if evidence.gateway == "vllm-router":
        is_well = health.ok
        return None if is_well else "a gateway that answers, but not every engine behind it does"
    return _no_metrics(evidence) if evidence.numbers is None else _cut_off(evidence)


def _unknown(evidence: HostEvidence) -> tuple[Status, str]:
    if evidence.cards:
        return "degraded", f"serves models, but {_no_metrics(evidence)}"
    if any(answer.refused for answer in evidence.look.answers.values()):
        return "degraded", "refuses without a key; name its variable with `api_key_env=`"
    if evidence.cache is not None:
        return "degraded", "a response cache answers, but no engine behind it does"
    answers = evidence.look.answers.values()
    if any(answer.status == 400 and b"HTTPS" in answer.body for answer in answers):
        return "not_an_engine", "wants TLS; write `https://` before the address"
    problems = [answer.problem for answer in answers if answer.problem]
    if problems:  # what did not come might have been an engine's
        return "degraded", f"answers HTTP, but {problems[0]}"
    return "not_an_engine", "answers HTTP, but no page of an LLM engine"


def _flaw(evidence: HostEvidence) -> str | None:
    """What keeps a known engine from being looked at whole."""
    health = evidence.look.answer(pages.HEALTH)
    if health.problem:
        return health.problem
    if evidence.numbers is None:
        return _no_metrics(evidence)
    problems = [evidence.look.answer(path).problem for path in pages.FIRST_ROUND]
    return next((problem for problem in problems if problem), None) or _cut_off(evidence)


def _cut_off(evidence: HostEvidence) -> str | None:
    """A page that came as long as it said, and is none that was written to its end."""
    page = evidence.page
    if page is not None and page.ended_early:
        return "`/metrics` ends in the middle of a line; that number is unknown"
    is_openmetrics = "openmetrics" in evidence.metrics.content_type.lower()
    if page is not None and is_openmetrics and not page.openmetrics:
        return "`/metrics` ends without OpenMetrics' `# EOF`; numbers may be missing"
    return None


def _no_metrics(evidence: HostEvidence) -> str:
    metrics = evidence.metrics
    if metrics.problem:
        return metrics.problem
    if metrics.status != 200:
        return f"`/metrics` answers {metrics.status}"
    if evidence.page is None:
        return "`/metrics` is not Prometheus text"
    if evidence.cache is not None:
        return "`/metrics` has the response cache's numbers and no engine's"
    return "`/metrics` has no engine's numbers (vLLM: `--disable-log-stats`)"


def _first_problem(look: Scrape) -> str:
    """One sentence for a host that gave no page at all: the most common problem."""
    problems = [answer.problem for answer in look.answers.values() if answer.problem]
    if problems and all("did not finish within" in problem for problem in problems):
        return "no answer" + problems[0][problems[0].index(" within") :]
    if problems and all("closed without an answer" in problem for problem in problems):
        doubt = "; does the port want `https://`?" if look.host.url.startswith("http:") else ""
        return f"every connection was closed without an answer{doubt}"
    return max(problems, key=problems.count, default="no answer")


def _over_time(evidence: HostEvidence, earlier: HostEvidence | None) -> dict[str, Any]:
    """Quantiles, means and ratios: since the process started, or between two looks."""
    numbers = evidence.numbers or NO_ENGINE
    if earlier is None or earlier.numbers is None or evidence.numbers is None:
        return _since_start(numbers)
    before = earlier.numbers
    seconds = (evidence.metrics.answered_at or 0) - (earlier.metrics.answered_at or 0)
    if has_restarted(before, numbers):
        return {"interval_s": seconds}
    return {
        "interval_s": seconds,
        "requests_per_s": _rate(before.requests_total, numbers.requests_total, seconds),
        "output_tokens_per_s": _rate(
            before.generation_tokens_total, numbers.generation_tokens_total, seconds
        ),
        "prefix_hit_ratio": _ratio_between(before, numbers),
        **_quantiles(_between(before.ttft, numbers.ttft)),
        "queue_mean_ms": _mean_ms(_between(before.queue, numbers.queue)),
    }


def _since_start(numbers: EngineNumbers) -> dict[str, Any]:
    return {
        "prefix_hit_ratio": _ratio(numbers.prefix_hits_total, numbers.prefix_queries_total)
        if numbers.prefix_queries_total is not None
        else numbers.prefix_hit_ratio,
        **_quantiles(numbers.ttft),
        "queue_mean_ms": _mean_ms(numbers.queue),
    }


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    if before is None or now is None or now < before or seconds <= 0:
        return None
    return (now - before) / seconds


def _ratio_between(before: EngineNumbers, now: EngineNumbers) -> float | None:
    old_hits, old_queries = before.prefix_hits_total, before.prefix_queries_total
    hits, queries = now.prefix_hits_total, now.prefix_queries_total
    if old_hits is None or old_queries is None or hits is None or queries is None:
        return now.prefix_hit_ratio
    return _ratio(hits - old_hits, queries - old_queries)


def _ratio(hits: float | None, queries: float | None) -> float | None:
    return hits / queries if hits is not None and queries and queries > 0 else None


def _between(before: Histogram | None, now: Histogram | None) -> Histogram | None:
    return now.since(before) if before and now else None


def _mean_ms(histogram: Histogram | None) -> float | None:
    return _ms(histogram.mean()) if histogram else None


def _quantiles(ttft: Histogram | None) -> dict[str, float | None]:
    if ttft is None:
        return {}
    found: dict[str, float | None] = {}
    for name, share in (("ttft_p50", 0.5), ("ttft_p95", 0.95)):
        quantile: Quantile = ttft.quantile(share)
        found[f"{name}_ms"] = _ms(quantile.value)
        found[f"{name}_below_ms"] = _ms(quantile.below)
        found[f"{name}_above_ms"] = _ms(quantile.above)
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
