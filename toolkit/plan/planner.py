"""One model on one machine: what fits, how many requests that is, and which flags follow. `plan` is the whole answer.

It puts the package's rules together. Weights, blocks and the KV cache's bytes are exact where the config is; what an engine needs
beside them is an estimate (memory.py), and so capacity is one. `side_by_side` compares quantizations, and for what does not fit
says what would make it fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan import advice
from toolkit.plan.capacity import (
    NO_GOAL,
    NO_LOAD,
    Goal,
    RequestLengths,
    cost,
    requests_per_s,
    under_way,
)
from toolkit.plan.engine import PLAIN, EngineSettings, Gpu
from toolkit.plan.kv_cache import bytes_per_token, layer_bytes, reported_tokens, state_bytes
from toolkit.plan.memory import MemorySetting, Room, Values, graph_bytes, longest_length, room
from toolkit.plan.model_config import KvHeads, Shape
from toolkit.plan.remarks import remarks
from toolkit.plan.result import Advice, Plan
from toolkit.plan.weights import as_stored, parameters, weights_bytes, weights_of_gpu
from toolkit.units import GIB

UNKNOWN_LENGTH = 4096
"""Tokens, where neither the workload nor the model tells a limit."""
ROUNDS = 8
"""Sequences ask for memory (graphs, logits), which takes room from sequences. Two rounds are nearly always enough."""
COMMON = ("bf16", "fp8", "awq", "gptq-int4")
"""What most models are published in, the largest first."""
MORE_GPUS = (2, 4, 8)
FP8 = "fp8"
WORTH = 1.1
"""Times as many requests from which on a hint is worth a line: hybrids' states are not made smaller."""


def plan(
    shape: Shape,
    gpu: Gpu,
    *,
    quantization: str | None = None,
    on_disk: int | None = None,
    settings: EngineSettings = PLAIN,
    load: RequestLengths = NO_LOAD,
    goal: Goal = NO_GOAL,
) -> Plan:
    """Say what fits. Raises ToolkitError when `tp` or `pp` cannot divide the model, or a name is not known."""
    gpus = settings.gpus
    if gpu.is_slice and gpus > 1:
        raise ToolkitError(
            f"{gpus} slices of the kind `{gpu.name}` cannot serve one model: a process sees one of them",
            "Take a larger slice, or the whole GPU",
        )
    stored = as_stored(shape, quantization).name
    weights = weights_of_gpu(shape, quantization, tp=settings.tp, pp=settings.pp, on_disk=on_disk)
    chooser = _FlagChooser(shape, gpu, weights, settings, load, goal)
    flags, left = chooser.choose()
    tokens = chooser.tokens(flags)
    at_once, seconds = left.at_once(tokens), goal.seconds_per_request
    rate = requests_per_s(min(at_once, flags.max_num_seqs), seconds) if seconds else None
    price = cost(
        goal.prices,
        gpus=gpus,
        requests_per_s=rate,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        request_tokens=tokens,
    )

    advised: list[Advice] = []
    if left.fits:  # nobody should start what does not fit
        told = []
        if settings.tp > 1:
            why = f"each layer is shared by {settings.tp} GPUs"
            told.append(("tensor-parallel-size", str(settings.tp), why))
        if settings.pp > 1:
            why = f"the layers are dealt to {settings.pp} stages, one after the other"
            told.append(("pipeline-parallel-size", str(settings.pp), why))
        if settings.kv_cache_dtype != "auto":
            why = "as told: smaller tokens in the KV cache; compare answers before and after"
            told.append(("kv-cache-dtype", settings.kv_cache_dtype, why))
        if settings.block_size is not None:
            told.append(("block-size", str(settings.block_size), "as told"))
        # vLLM makes it itself while it loads 16-bit weights; all others are other checkpoints
        if stored == "fp8" and as_stored(shape, None).name in ("bf16", "fp16"):
            told.append(
                ("quantization", "fp8", "made while loading: no other checkpoint is needed")
            )
        advised = [flags.length, flags.seqs, flags.batched, flags.share]
        advised += [Advice(flag=flag, value=value, why=why) for flag, value, why in told]
    spent, cache = left.budget, left.cache
    found = Plan(
        model=shape.name,
        gpu=gpu.name,
        gpus=gpus,
        quantization=stored,
        kv_cache_dtype=settings.kv_cache_dtype,
        fits=left.fits,
        parameters=parameters(shape).total,
        weights_gib=weights_bytes(shape, quantization, on_disk=on_disk) / GIB,
        kv_bytes_per_token=float(per_token(shape, settings)),
        state_bytes_per_request=float(per_request(shape, settings)),
        block_size=cache.block_size,
        bytes_per_block=cache.bytes_per_block * gpus,
        num_gpu_blocks=left.blocks,
        kv_budget_gib=max(0, spent.kv) * gpus / GIB,
        kv_cache_tokens=reported_tokens(cache, left.blocks, settings.version) if left.fits else 0,
        request_tokens=tokens,
        blocks_per_request=left.each(tokens),
        blocks_to_begin=left.to_begin(tokens),
        max_concurrency=at_once,
        requests_per_s=rate if left.fits else None,
        seconds_per_request=seconds,
        cost_per_million_tokens=price.per_million_tokens if price else None,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=int(flags.batched.value),
        gpu_memory_utilization=float(flags.share.value),
        memory_gib=gpu.memory_bytes * gpus / GIB,
        context_gib=spent.context * gpus / GIB,
        activation_gib=spent.activations * gpus / GIB,
        graph_gib=spent.graphs * gpus / GIB,
        advice=tuple(advised),
        flags={one.flag: one.value for one in advised},
    )
    return replace(found, notes=remarks(found, shape, gpu, settings, load, left))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    """The four flags that follow from memory and load, each with its reason."""

    length: Advice
    share: Advice
    seqs: Advice
    batched: Advice

    @property
    def max_model_len(self) -> int:
        return int(self.length.value)

    @property
    def max_num_seqs(self) -> int:
        return int(self.seqs.value)


class _FlagChooser:
    """Finds flags that agree with each other: from vLLM's own defaults down to what memory holds."""

    def __init__(
        self,
        shape: Shape,
        gpu: Gpu,
        weights: int,
        settings: EngineSettings,
        load: RequestLengths,
        goal: Goal,
    ) -> None:
        """`weights`: bytes on the fullest GPU."""
        self._shape, self._gpu, self._weights = shape, gpu, weights
        self._settings, self._load, self._goal = settings, load, goal
        self._default_seqs, self._default_batched = advice.defaults(
            gpu.memory_bytes, is_a100=gpu.is_a100, version=settings.version
        )
        longest = load.longest
        if longest is None and load.request_tokens is not None:
            longest = math.ceil(load.request_tokens)
        self._longest = longest
        self._is_open = settings.max_model_len is None and longest is None
        """Nobody told how long requests get."""

    def choose(self) -> tuple[_Flags, Room]:
        """The flags, and what they leave for requests."""
        settings = self._settings
        seqs = settings.max_num_seqs or self._default_seqs
        batched = settings.max_num_batched_tokens or self._default_batched
        flags = _Flags(
            length=self._length(None),
            share=self._share(self._default_seqs),
            seqs=Advice(flag="max-num-seqs", value=str(seqs), why=""),
            batched=Advice(flag="max-num-batched-tokens", value=str(batched), why=""),
        )
        left = self._room(flags)
        for _ in range(ROUNDS):
            better = self._with_room(flags, left)
            if better == flags:
                break
            flags, left = better, self._room(better)
        if self._is_open and not left.fits:
            flags = replace(flags, length=self._length(left))
            left = self._room(flags)
        if self._load.request_tokens and left.at_once(self.tokens(flags)) < flags.max_num_seqs:
            flags = replace(self._with_room(flags, left), length=flags.length, share=flags.share)
            left = self._room(flags)
        return flags, left

    def tokens(self, flags: _Flags) -> float:
        """Of one request, for want of better as long as it may get."""
        return self._load.request_tokens or float(flags.max_model_len)

    def _room(self, flags: _Flags) -> Room:
        values = Values(
            max_model_len=flags.max_model_len,
            max_num_seqs=flags.max_num_seqs,
            batched_tokens=int(flags.batched.value),
            utilization=float(flags.share.value),
        )
        return room(self._shape, self._gpu, self._weights, self._settings, values)

    def _with_room(self, flags: _Flags, left: Room) -> _Flags:
        """Better flags, as far as memory that the first ones leave tells."""
        settings, load, goal = self._settings, self._load, self._goal
        if self._is_open:
            flags = replace(flags, length=self._length(left))
        if load.request_tokens is None:
            # requests whose states memory holds, of a model that keeps states
            states = left.at_once(1) if left.cache.state_mode else None
            seqs = advice.unknown_num_seqs(self._default_seqs, states)
        else:
            peak = None
            if goal.target_rps is not None and goal.seconds_per_request is not None:
                peak = under_way(goal.target_rps, goal.seconds_per_request)
            seqs = advice.max_num_seqs(
                left.at_once(load.request_tokens),
                request_tokens=load.request_tokens,
                default=self._default_seqs,
                peak_under_way=peak,
            )
        seqs = advice.as_told(seqs, settings.max_num_seqs)
        batched = advice.max_num_batched_tokens(
            int(seqs.value),
            prompt_tokens=load.prompt_tokens,
            default=self._default_batched,
            longest_prompt=load.longest_prompt,
            most=advice.most_batched(self._gpu.memory_bytes),
            max_model_len=flags.max_model_len,
        )
        return replace(
            flags,
            seqs=seqs,
            batched=advice.as_told(batched, settings.max_num_batched_tokens),
            share=self._share(int(seqs.value)),
        )

    def _length(self, left: Room | None) -> Advice:
        told, most = self._settings.max_model_len, self._shape.max_positions
        if self._longest is not None:
            asked = self._load.max_model_len
            return advice.as_told(advice.max_model_len(self._longest, told=asked, most=most), told)
        if told is not None:
            return Advice(flag="max-model-len", value=str(told), why="as told")
        # as long as the model and the memory let it be: nobody told what is needed
        most = most or UNKNOWN_LENGTH
        why = "as long as the model was made for: tell how long requests are, and a shorter one follows"
        if left is not None and left.budget.kv > 0:
            held = longest_length(self._shape, self._settings, left, self._default_batched)
            if 0 < held < most:
                why = f"the longest that fits: the model was made for {most:,}"
                most = held
        return Advice(flag="max-model-len", value=str(most), why=why)

    def _share(self, seqs: int) -> Advice:
        settings = self._settings
        memory = MemorySetting(
            max_num_seqs=seqs,
            batched_tokens=self._default_batched,
            tp=settings.tp,
            version=settings.version,
        )
        found = advice.gpu_memory_utilization(
            self._gpu.memory_bytes,
            graph_bytes=0 if settings.eager else graph_bytes(self._shape, memory),
            version=settings.version,
        )
        return advice.as_told(found, settings.gpu_memory_utilization)


# --- Bytes over all GPUs --------------------------------------------------------------------------------------


def per_token(shape: Shape, settings: EngineSettings) -> int:
    """Bytes that a token adds over all GPUs, in layers that keep every token."""
    return bytes_per_token(shape, settings.kv_cache_dtype, settings.tp) * settings.tp


def per_request(shape: Shape, settings: EngineSettings) -> int:
    """Bytes over all GPUs that a request takes whatever its length: one state a layer, and full windows."""
    return _states(shape, settings) + _windows(shape, settings, None)


def kv_bytes(shape: Shape, settings: EngineSettings, tokens: float) -> float:
    """Bytes over all GPUs of one request of so many tokens, before blocks round them up."""
    windows = _windows(shape, settings, tokens)
    return per_token(shape, settings) * tokens + windows + _states(shape, settings)


def _states(shape: Shape, settings: EngineSettings) -> int:
    return state_bytes(shape, settings.tp, spec_tokens=settings.spec_tokens) * settings.tp


def _windows(shape: Shape, settings: EngineSettings, tokens: float | None) -> int:
    """What layers that look back only so far keep of so many tokens; None: of more than they look back."""
    kinds = [layer.attention for layer in shape.layers]
    return settings.tp * sum(
        round(
            layer_bytes(one, shape.element_bytes, settings.kv_cache_dtype, settings.tp)
            * (one.window if tokens is None else min(one.window, tokens))
        )
        for one in kinds
        if isinstance(one, KvHeads) and one.window is not None
    )


# --- Side by side -----------------------------------------------------------------------------------------------


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
    hints = ((one, _hint(one, asked)) for one in plans)
    return tuple(replace(one, notes=(*one.notes, *hint)) for one, hint in hints)


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


def _hint(one: Plan, asked: PlanQuestion) -> list[str]:
    """What a change of one thing would do: make it fit, or hold more."""
    if not one.fits:
        ways = ways_out(one, asked)
        if not ways:
            return [
                "no single change of quantization, KV cache, GPUs or length makes it fit: it needs a larger GPU"
            ]
        return [f"it would fit with {', or '.join(ways)}"]
    if asked.settings.kv_cache_dtype == "auto":
        smaller = asked.otherwise(one.quantization, kv_cache_dtype=FP8)
        if smaller and smaller.max_concurrency > WORTH * one.max_concurrency:
            hint = (
                f"with --kv-cache-dtype {FP8} memory holds {smaller.max_concurrency:,} requests instead of"
                f" {one.max_concurrency:,}"
            )
            return [hint]
    return []


def ways_out(one: Plan, asked: PlanQuestion) -> tuple[str, ...]:
    """Each a change of one thing that makes it fit; none: it takes two."""
    own, ways = one.quantization, []
    for name in names_for(asked.shape):
        other = asked.otherwise(name) if name != own else None
        if other and other.fits:
            ways.append(f"quantization {name}")
    if asked.settings.kv_cache_dtype == "auto":
        other = asked.otherwise(own, kv_cache_dtype=FP8)
        if other and other.fits:
            ways.append(f"--kv-cache-dtype {FP8}")
    for count in MORE_GPUS:
        other = asked.otherwise(own, tp=count) if count > asked.settings.tp else None
        if other and other.fits:
            ways.append(f"{other.gpus} GPUs (--tensor-parallel-size {count})")
            break  # the fewest that do
    # a limit that memory allows, where the weights leave any
    shorter = replace(asked, load=NO_LOAD).otherwise(own, max_model_len=None)
    if shorter and shorter.fits and shorter.max_model_len:
        ways.append(f"requests of at most {shorter.max_model_len:,} tokens")
    return tuple(ways)
