"""One model in several quantizations on the same machine, and for what does not fit, what would make it fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan.asked import NO_GOAL, PLAIN, EngineSettings, Goal, Gpu
from toolkit.plan.load import RequestLengths
from toolkit.plan.planner import NO_LOAD, plan
from toolkit.plan.result import Plan
from toolkit.plan.shape import Shape
from toolkit.plan.weights import as_stored

COMMON = ("bf16", "fp8", "awq", "gptq-int4")
"""What most models are published in, the largest first."""
MORE_GPUS = (2, 4, 8)
FP8 = "fp8"
WORTH = 1.1
"""Times as many requests from which on a hint is worth a line: hybrids' states are not made smaller."""


def names_for(shape: Shape) -> tuple[str, ...]:
    """Those to compare: the weights' own first, then the common ones."""
    own = as_stored(shape, None).name
    alike = {"bf16", "fp16"} if own in ("bf16", "fp16") else {own}
    return (own, *(name for name in COMMON if name not in alike))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """One model on one machine, whatever the quantization."""

    shape: Shape
    gpu: Gpu
    on_disk: int | None = None
    """Bytes of the files, in the quantization that the config tells of."""
    settings: EngineSettings = PLAIN
    load: RequestLengths = NO_LOAD
    goal: Goal = NO_GOAL

    def answer(self, name: str) -> Plan:
        """The plan for one quantization."""
        return plan(
            self.shape,
            self.gpu,
            quantization=name,
            on_disk=self.on_disk,
            settings=self.settings,
            load=self.load,
            goal=self.goal,
        )

    def otherwise(self, name: str, **changes: Any) -> Plan | None:
        """The same with other settings; None: they are impossible, e.g., heads that so many GPUs cannot share."""
        try:
            return replace(self, settings=replace(self.settings, **changes)).answer(name)
        except ToolkitError:
            return None


def side_by_side(asked: PlanQuestion, names: Sequence[str] = ()) -> tuple[Plan, ...]:
    """One plan for each name; without names, for those that are usual."""
    plans = [asked.answer(name) for name in dict.fromkeys(names or names_for(asked.shape))]
    return tuple(replace(one, notes=(*one.notes, *_hints(one, asked))) for one in plans)


def best(plans: Sequence[Plan]) -> Plan:
    """The one to advise for: the first that fits, as weights lose least there; else the first."""
    return next((one for one in plans if one.fits), plans[0])


def gains(plans: Sequence[Plan]) -> str | None:
    """`gptq-int4 holds 4.1 times the requests of bf16`: the most against the first that fits."""
    fitting = [one for one in plans if one.fits and one.max_concurrency]
    if len(fitting) < 2:
        return None
    most = max(fitting, key=lambda one: one.max_concurrency)
    first = fitting[0]
    if most.max_concurrency <= first.max_concurrency:
        return None
    times = most.max_concurrency / first.max_concurrency
    return f"{most.quantization} holds {times:.1f} times the requests of {first.quantization}"


def _hints(one: Plan, asked: PlanQuestion) -> Iterator[str]:
    """What a change of one thing would do: make it fit, or hold more."""
    if not one.fits:
        yield _words_of(ways_out(one, asked))
    elif asked.settings.kv_cache_dtype == "auto":
        smaller = asked.otherwise(one.quantization, kv_cache_dtype=FP8)
        if smaller and smaller.max_concurrency > WORTH * one.max_concurrency:
            yield (
                f"with --kv-cache-dtype {FP8} memory holds {smaller.max_concurrency:,} requests instead of"
                f" {one.max_concurrency:,}"
            )


def ways_out(one: Plan, asked: PlanQuestion) -> tuple[str, ...]:
    """Each a change of one thing that makes it fit; none: it takes two."""
    return (
        *(f"quantization {name}" for name in _other_names(one, asked)),
        *_smaller_cache(one, asked),
        *_more_gpus(one, asked),
        *_shorter(one, asked),
    )


def _other_names(one: Plan, asked: PlanQuestion) -> Iterator[str]:
    for name in names_for(asked.shape):
        other = asked.otherwise(name) if name != one.quantization else None
        if other and other.fits:
            yield name


def _smaller_cache(one: Plan, asked: PlanQuestion) -> Iterator[str]:
    if asked.settings.kv_cache_dtype != "auto":
        return
    other = asked.otherwise(one.quantization, kv_cache_dtype=FP8)
    if other and other.fits:
        yield f"--kv-cache-dtype {FP8}"


def _more_gpus(one: Plan, asked: PlanQuestion) -> Iterator[str]:
    """The fewest that do."""
    for count in MORE_GPUS:
        if count > asked.settings.tp:
            other = asked.otherwise(one.quantization, tp=count)
            if other and other.fits:
                yield f"{other.gpus} GPUs (--tensor-parallel-size {count})"
                return


def _shorter(one: Plan, asked: PlanQuestion) -> Iterator[str]:
    """A limit that memory allows, where the weights leave any."""
    nobody_told = replace(asked, load=NO_LOAD).otherwise(one.quantization, max_model_len=None)
    if nobody_told and nobody_told.fits and nobody_told.max_model_len:
        yield f"requests of at most {nobody_told.max_model_len:,} tokens"


def _words_of(ways: Sequence[str]) -> str:
    if not ways:
        return "no single change of quantization, KV cache, GPUs or length makes it fit: it needs a larger GPU"
    return f"it would fit with {', or '.join(ways)}"
