"""The figures that a sweep compares configurations by: what each is called, how it is defined, and which way is better. It measures none."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure that configurations are compared by."""

    title: str
    definition: str
    more_is_better: bool = False
    is_share: bool = False
    """0 to 1: compared by difference, as a ratio of small shares says little."""


METRICS: dict[str, Metric] = {
    "output_tokens_per_s": Metric(
        title="output tokens/s",
        definition="output tokens of ok answers, by the part of each one's time in the seconds that count / these seconds",
        more_is_better=True,
    ),
    "rps": Metric(
        title="requests/s",
        definition="ok requests, by the part of each one's time in the seconds that count / these seconds",
        more_is_better=True,
    ),
    "ttft_p50_ms": Metric(
        title="TTFT p50", definition="first chunk with a token minus send, median of ok streams"
    ),
    "ttft_p95_ms": Metric(
        title="TTFT p95", definition="first chunk with a token minus send, 95th percentile"
    ),
    "e2e_p50_ms": Metric(title="E2E p50", definition="last token minus send, median of ok answers"),
    "e2e_p95_ms": Metric(title="E2E p95", definition="last token minus send, 95th percentile"),
    "tpot_p50_ms": Metric(
        title="TPOT p50",
        definition="(E2E - TTFT) / tokens after the first chunk, median of the unique canaries",
    ),
    "error_rate": Metric(
        title="errors", definition="errors / (ok + errors), timeouts included", is_share=True
    ),
    "prefix_hit_ratio": Metric(
        title="prefix hits",
        definition="prompt tokens found in the engine's prefix cache / looked up, by its counters during the load",
        more_is_better=True,
        is_share=True,
    ),
    "spec_acceptance_ratio": Metric(
        title="draft tokens accepted",
        definition="accepted / drafted tokens, by vllm:spec_decode_* during the load",
        more_is_better=True,
        is_share=True,
    ),
    "spec_mean_length": Metric(
        title="tokens a draft",
        definition="1 + accepted tokens / drafts, by vllm:spec_decode_* during the load",
        more_is_better=True,
    ),
    "preemptions": Metric(
        title="preemptions", definition="by the engine's counter during the load"
    ),
    "queue_mean_ms": Metric(
        title="queue", definition="mean wait inside the engine, by its histogram during the load"
    ),
    "invalid_json_ratio": Metric(
        title="invalid JSON",
        definition="ok answers that are no JSON of the schema / ok answers, of the requests that ask for JSON",
        is_share=True,
    ),
    "json_e2e_p50_ms": Metric(
        title="E2E p50 of JSON",
        definition="whole answer minus send, median of the ok answers to requests that ask for JSON, sent after the load",
    ),
}
OF_PROMPTS = ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms", "tpot_p50_ms")
"""May stand as `ttft_p95_ms:short`: of the unique canaries whose prompts' names begin so."""


def metric(name: str) -> Metric | None:
    """What a metric's name means; None: there is no such metric."""
    plain, _, prompts = name.partition(":")
    found = METRICS.get(plain)
    if found is None or (prompts and plain not in OF_PROMPTS):
        return None
    if not prompts:
        return found
    return Metric(
        title=f"{found.title} of `{prompts}`",
        definition=f"{found.definition}; of the canaries of prompts `{prompts}...`",
    )


def meant(name: str) -> Metric:
    """The same for whoever tells a figure: one that is none is told by its bare name."""
    return metric(name) or Metric(title=name, definition="")
