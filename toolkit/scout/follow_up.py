"""Which further pages the first answers make worth asking. A rule: no network, no clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.scout import answers as pages
from toolkit.scout.answers import PageAnswer

ENGINE_MARKS = {
    "tgi": (b"tgi_", b'"tgi"'),
    "sglang": (b"sglang:", b'"sglang"'),
    "llama.cpp": (b"llamacpp:", b'"llamacpp"'),
}
"""How an engine without /version shows itself: in its metrics, or as `owned_by` of its models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """A request to make: none of them runs inference or changes the host."""

    method: str
    path: str
    json: Mapping[str, str] | None = None


def follow_ups(answers: Mapping[str, PageAnswer], *, has_key: bool) -> list[FollowUp]:
    """Name the requests of the second round, most often none."""
    return [
        *_other_metrics(answers[pages.METRICS]),
        *_signs_of_life(answers),
        *_open_doors(answers, has_key=has_key),
        *_about(answers),
    ]


def _other_metrics(metrics: PageAnswer) -> Iterator[FollowUp]:
    is_json = metrics.ok and metrics.body.lstrip()[:1] in (b"{", b"[")
    if is_json or metrics.status == 404:
        yield FollowUp(method="GET", path=pages.TRTLLM_METRICS)


def _signs_of_life(answers: Mapping[str, PageAnswer]) -> Iterator[FollowUp]:
    """Where /health refuses or fails, or /metrics refuses: LiteLLM does so while it is well."""
    if pages.LITELLM_ALIVE not in answers and (
        answers[pages.HEALTH].may_want_key or answers[pages.METRICS].refused
    ):
        yield FollowUp(method="GET", path=pages.LITELLM_ALIVE)


def _open_doors(answers: Mapping[str, PageAnswer], *, has_key: bool) -> Iterator[FollowUp]:
    """Where a key is wanted: is another door open? GET is refused by a POST route that exists."""
    closed = answers[pages.MODELS].refused
    if closed or has_key:
        yield FollowUp(method="GET", path=pages.INVOCATIONS)
    if closed and answers[pages.VERSION].ok:
        yield FollowUp(method="POST", path=pages.TOKENIZE, json={"prompt": "a"})


def _about(answers: Mapping[str, PageAnswer]) -> Iterator[FollowUp]:
    if answers[pages.VERSION].ok:
        return
    said = answers[pages.METRICS].body + answers[pages.MODELS].body
    for engine, marks in ENGINE_MARKS.items():
        if any(mark in said for mark in marks):
            yield FollowUp(method="GET", path=pages.ABOUT[engine])
