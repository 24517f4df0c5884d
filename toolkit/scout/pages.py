"""What a host answered to one scrape, as plain values, and which further pages that makes worth asking. No network: `scrape` asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.records import Host

HEALTH = "/health"
VERSION = "/version"
MODELS = "/v1/models"
METRICS = "/metrics"
FIRST_ROUND = (HEALTH, VERSION, MODELS, METRICS)

TRTLLM_METRICS = "/prometheus/metrics"
"""trtllm-serve puts JSON under /metrics and Prometheus text here."""
LITELLM_ALIVE = "/health/liveliness"
"""LiteLLM guards /health, which calls every model, and answers 500 there while it has no database; this one asks only the process."""
INVOCATIONS = "/invocations"
"""vLLM's SageMaker route runs inference and is not guarded by `--api-key`."""
TOKENIZE = "/tokenize"
"""Unguarded too; its answer carries max_model_len."""
POSTED: Mapping[str, Mapping[str, str]] = {TOKENIZE: {"prompt": "a"}}
"""JSON for a page that takes a POST; all others are asked with GET. None of them runs inference or changes the host."""
ABOUT = {"tgi": "/info", "sglang": "/server_info", "llama.cpp": "/props"}
"""Where engines without /version tell about themselves."""
ENGINE_MARKS = {
    "tgi": (b"tgi_", b'"tgi"'),
    "sglang": (b"sglang:", b'"sglang"'),
    "llama.cpp": (b"llamacpp:", b'"llamacpp"'),
}
"""How such an engine shows itself: in its metrics, or as `owned_by` of its models."""

KEY_GOES_TO = frozenset({VERSION, MODELS, METRICS, *ABOUT.values()})
"""Pages that are asked again with the key when they refuse without it. Never /health: LiteLLM
would then call every model behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """One page as it came, or why it did not."""

    status: int | None = None
    """None: no complete answer; `problem` says why."""
    content_type: str = ""
    allow: str = ""
    """The `Allow` header of a 405: the route exists for these methods."""
    body: bytes = b""
    elapsed_ms: float | None = None
    """Send to response headers."""
    answered_at: float | None = None
    """Monotonic clock at the response headers, seconds: rates are taken between two of these."""
    problem: str | None = None
    with_key: bool = False

    @property
    def ok(self) -> bool:
        """Whether the page came whole with a 200."""
        return self.status == 200 and self.problem is None

    @property
    def refused(self) -> bool:
        """Whether the page wants a key, or another one."""
        return self.status in (401, 403)

    @property
    def may_want_key(self) -> bool:
        """Whether a key may help: LiteLLM without a database answers 400 or 500 to who has none."""
        return self.refused or self.status in (400, 500)


NOT_ASKED = PageAnswer(problem="not asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """All answers of one host at one time."""

    host: Host
    at: float
    """Wall clock when it began, seconds since 1970."""
    answers: Mapping[str, PageAnswer] = field(default_factory=dict)
    quiet: PageAnswer | None = None
    """A small page asked once more while this machine had nothing else to do, for its latency."""

    def answer(self, path: str) -> PageAnswer:
        """One page's answer; an empty one when it was not asked."""
        return self.answers.get(path, NOT_ASKED)


def gateway(answers: Mapping[str, PageAnswer]) -> str | None:
    """Which gateway answers, one of GATEWAYS, by words that are its own: so it is known while no engine behind it answers.

    As recorded of LiteLLM 1.106.2 and of vllm-router 0.1.17, whose words its ancestor, SGLang's router, has too.
    """
    alive, health, metrics = (
        answers.get(path, NOT_ASKED).body for path in (LITELLM_ALIVE, HEALTH, METRICS)
    )
    is_litellm = b"I'm alive!" in alive or health.startswith(b'{"healthy_endpoints"')
    if is_litellm or b"\nlitellm_" in metrics:
        return "litellm"
    if health.startswith((b"All servers healthy", b"Unhealthy servers:")):
        return "vllm-router"
    # its families stand there before it has seen an engine
    return "production-stack-router" if b" vllm:healthy_pods_total " in metrics else None


def follow_ups(answers: Mapping[str, PageAnswer], *, has_key: bool) -> list[str]:
    """Which further pages the first answers make worth asking, most often none."""
    health, version, models, metrics = (answers[path] for path in FIRST_ROUND)
    paths = []
    is_json = metrics.ok and metrics.body.lstrip()[:1] in (b"{", b"[")
    if is_json or metrics.status == 404:
        paths.append(TRTLLM_METRICS)
    # /health refuses or fails, or /metrics refuses: LiteLLM does so while it is well
    if LITELLM_ALIVE not in answers and (health.may_want_key or metrics.refused):
        paths.append(LITELLM_ALIVE)
    # where a key is wanted: is another route open? GET is refused by a POST route that exists
    if models.refused or has_key:
        paths.append(INVOCATIONS)
    if models.refused and version.ok:
        paths.append(TOKENIZE)
    if not version.ok:
        shown = metrics.body + models.body
        for engine, marks in ENGINE_MARKS.items():
            if any(mark in shown for mark in marks):
                paths.append(ABOUT[engine])
    return paths
