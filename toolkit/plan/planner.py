"""One model on one machine: what fits, how many requests that is, and which flags follow. `plan` is the whole answer.

It puts the room's rules together. Weights, blocks and the KV cache's bytes are exact where the config is; what an engine needs
beside them is an estimate (budget.py), and so capacity is one.
"""

import math
from dataclasses import dataclass, replace

from toolkit.errors import ToolkitError
from toolkit.plan import advice
from toolkit.plan.asked import NO_GOAL, PLAIN, EngineSettings, Goal, Gpu
from toolkit.plan.budget import MemorySetting, graph_bytes
from toolkit.plan.capacity import requests_per_s, under_way
from toolkit.plan.cost import cost
from toolkit.plan.kv import bytes_per_token, layer_bytes, state_bytes
from toolkit.plan.layout import reported_tokens
from toolkit.plan.load import RequestLengths
from toolkit.plan.parameters import parameters
from toolkit.plan.remarks import remarks
from toolkit.plan.result import Advice, Plan
from toolkit.plan.room import Room, Values, longest_length, room
from toolkit.plan.shape import KvHeads, Shape
from toolkit.plan.weights import as_stored, weights_bytes, weights_of_gpu
from toolkit.units import GIB

UNKNOWN_LENGTH = 4096
"""Tokens, where neither the workload nor the model tells a limit."""
ROUNDS = 8
"""Sequences ask for memory (graphs, logits), which takes room from sequences. Two rounds are nearly always enough."""
NO_LOAD = RequestLengths()


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
    _refuse_slices(gpu, settings)
    case = _PlanCase(
        shape=shape,
        gpu=gpu,
        quantization=as_stored(shape, quantization).name,
        all_weights=weights_bytes(shape, quantization, on_disk=on_disk),
        weights=weights_of_gpu(
            shape, quantization, tp=settings.tp, pp=settings.pp, on_disk=on_disk
        ),
        settings=settings,
        load=load,
        goal=goal,
    )
    flags, left = case.choose()
    # nobody should start what does not fit
    advised = _advised(case, flags) if left.fits else ()
    found = replace(
        _measures(case, flags, left, load.request_tokens or float(flags.max_model_len)),
        advice=advised,
        flags={one.flag: one.value for one in advised},
    )
    return replace(found, notes=remarks(found, shape, gpu, settings, load, left))


def _refuse_slices(gpu: Gpu, settings: EngineSettings) -> None:
    if gpu.is_slice and settings.gpus > 1:
        raise ToolkitError(
            f"{settings.gpus} slices of the kind `{gpu.name}` cannot serve one model: a process sees one of them",
            "Take a larger slice, or the whole GPU",
        )


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

    @property
    def values(self) -> Values:
        return Values(
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            batched_tokens=int(self.batched.value),
            utilization=float(self.share.value),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanCase:
    """One question."""

    shape: Shape
    gpu: Gpu
    quantization: str
    """As the weights are stored."""
    all_weights: int
    """Bytes over all GPUs."""
    weights: int
    """Bytes on the fullest one."""
    settings: EngineSettings
    load: RequestLengths
    goal: Goal

    def choose(self) -> tuple[_Flags, Room]:
        """Find flags that agree with each other: from vLLM's own defaults down to what memory holds."""
        flags = self._begin()
        left = self._room(flags)
        for _ in range(ROUNDS):
            better = self._with_room(flags, left)
            if better == flags:
                break
            flags, left = better, self._room(better)
        if self._is_open and not left.fits:
            flags = replace(flags, length=self._length(left))
            left = self._room(flags)
        if left.at_once(self._tokens(flags)) < flags.max_num_seqs and self.load.request_tokens:
            seqs = self._seqs(left, flags)
            batched = self._batched(int(seqs.value), flags.max_model_len)
            flags = replace(flags, seqs=seqs, batched=batched)
            left = self._room(flags)
        return flags, left

    def _begin(self) -> _Flags:
        seqs, batched = self.defaults
        share = self._share(seqs)
        told = self.settings.max_num_seqs or seqs
        return _Flags(
            length=self._length(None),
            share=share,
            seqs=Advice(flag="max-num-seqs", value=str(told), why=""),
            batched=Advice(
                flag="max-num-batched-tokens",
                value=str(self.settings.max_num_batched_tokens or batched),
                why="",
            ),
        )

    @property
    def defaults(self) -> tuple[int, int]:
        """What `vllm serve` takes by itself."""
        return advice.defaults(
            self.gpu.memory_bytes, is_a100=self.gpu.is_a100, version=self.settings.version
        )

    def _room(self, flags: _Flags) -> Room:
        return room(self.shape, self.gpu, self.weights, self.settings, flags.values)

    def _with_room(self, flags: _Flags, left: Room) -> _Flags:
        length = self._length(left) if self._is_open else flags.length
        flags = replace(flags, length=length)
        seqs = self._seqs(left, flags)
        batched = self._batched(int(seqs.value), int(length.value))
        return replace(flags, seqs=seqs, batched=batched, share=self._share(int(seqs.value)))

    def _tokens(self, flags: _Flags) -> float:
        return self.load.request_tokens or float(flags.max_model_len)

    @property
    def _is_open(self) -> bool:
        """Whether nobody told how long requests get."""
        return self.settings.max_model_len is None and self._longest is None

    @property
    def _longest(self) -> int | None:
        told = self.load.longest
        if told is None and self.load.request_tokens is not None:
            return math.ceil(self.load.request_tokens)
        return told

    def _length(self, left: Room | None) -> Advice:
        told, most = self.settings.max_model_len, self.shape.max_positions
        if self._longest is not None:
            found = advice.max_model_len(self._longest, told=self.load.max_model_len, most=most)
            return advice.as_told(found, told)
        if told is not None:
            return Advice(flag="max-model-len", value=str(told), why="as told")
        return self._open_length(left)

    def _open_length(self, left: Room | None) -> Advice:
        """As long as the model and the memory let it be: nobody told what is needed."""
        most = self.shape.max_positions or UNKNOWN_LENGTH
        why = "as long as the model was made for: tell how long requests are, and a shorter one follows"
        if left is not None and left.budget.kv > 0:
            held = longest_length(self.shape, self.settings, left, self.defaults[1])
            if 0 < held < most:
                why = f"the longest that fits: the model was made for {most:,}"
                most = held
        return Advice(flag="max-model-len", value=str(most), why=why)

    def _share(self, seqs: int) -> Advice:
        memory = MemorySetting(
            max_num_seqs=seqs,
            batched_tokens=self.defaults[1],
            tp=self.settings.tp,
            version=self.settings.version,
        )
        graphs = 0 if self.settings.eager else graph_bytes(self.shape, memory)
        found = advice.gpu_memory_utilization(
            self.gpu.memory_bytes, graph_bytes=graphs, version=self.settings.version
        )
        return advice.as_told(found, self.settings.gpu_memory_utilization)

    def _seqs(self, left: Room, flags: _Flags) -> Advice:
        tokens, goal = self._tokens(flags), self.goal
        if self.load.request_tokens is None:
            return advice.as_told(
                advice.unknown_num_seqs(self.defaults[0], self._states(left)),
                self.settings.max_num_seqs,
            )
        peak = None
        if goal.target_rps is not None and goal.seconds_per_request is not None:
            peak = under_way(goal.target_rps, goal.seconds_per_request)
        found = advice.max_num_seqs(
            left.at_once(tokens),
            request_tokens=tokens,
            default=self.defaults[0],
            peak_under_way=peak,
        )
        return advice.as_told(found, self.settings.max_num_seqs)

    def _states(self, left: Room) -> int | None:
        """Requests whose states memory holds; None: the model keeps none."""
        return left.at_once(1) if left.cache.state_mode else None

    def _batched(self, seqs: int, max_model_len: int) -> Advice:
        found = advice.max_num_batched_tokens(
            seqs,
            prompt_tokens=self.load.prompt_tokens,
            default=self.defaults[1],
            longest_prompt=self.load.longest_prompt,
            most=advice.most_batched(self.gpu.memory_bytes),
            max_model_len=max_model_len,
        )
        return advice.as_told(found, self.settings.max_num_batched_tokens)


def _measures(case: _PlanCase, flags: _Flags, left: Room, tokens: float) -> Plan:
    """The figures of the whole engine."""
    gpus, spent = case.settings.gpus, left.budget
    at_once, seconds = left.at_once(tokens), case.goal.seconds_per_request
    rate = requests_per_s(min(at_once, flags.max_num_seqs), seconds) if seconds else None
    return Plan(
        model=case.shape.name,
        gpu=case.gpu.name,
        gpus=gpus,
        quantization=case.quantization,
        kv_cache_dtype=case.settings.kv_cache_dtype,
        fits=left.fits,
        parameters=parameters(case.shape).total,
        weights_gib=case.all_weights / GIB,
        kv_bytes_per_token=float(per_token(case.shape, case.settings)),
        state_bytes_per_request=float(per_request(case.shape, case.settings)),
        block_size=left.cache.block_size,
        bytes_per_block=left.cache.bytes_per_block * gpus,
        num_gpu_blocks=left.blocks,
        kv_budget_gib=max(0, spent.kv) * gpus / GIB,
        kv_cache_tokens=reported_tokens(left.cache, left.blocks, case.settings.version)
        if left.fits
        else 0,
        request_tokens=tokens,
        blocks_per_request=left.each(tokens),
        blocks_to_begin=left.to_begin(tokens),
        max_concurrency=at_once,
        requests_per_s=rate if left.fits else None,
        seconds_per_request=seconds,
        cost_per_million_tokens=_per_million(case, rate, tokens),
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=int(flags.batched.value),
        gpu_memory_utilization=float(flags.share.value),
        memory_gib=case.gpu.memory_bytes * gpus / GIB,
        context_gib=spent.context * gpus / GIB,
        activation_gib=spent.activations * gpus / GIB,
        graph_gib=spent.graphs * gpus / GIB,
    )


def _per_million(case: _PlanCase, rate: float | None, tokens: float) -> float | None:
    found = cost(
        case.goal.prices,
        gpus=case.settings.gpus,
        requests_per_s=rate,
        prompt_tokens=case.load.prompt_tokens,
        output_tokens=case.load.output_tokens,
        request_tokens=tokens,
    )
    return found.per_million_tokens if found else None


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


def _advised(case: _PlanCase, flags: _Flags) -> tuple[Advice, ...]:
    found = [flags.length, flags.seqs, flags.batched, flags.share]
    found += advice.parallel(case.settings.tp, case.settings.pp)
    if case.settings.kv_cache_dtype != "auto":
        found.append(advice.kv_cache_dtype(case.settings.kv_cache_dtype))
    if case.settings.block_size is not None:
        found.append(Advice(flag="block-size", value=str(case.settings.block_size), why="as told"))
    own = as_stored(case.shape, None).name
    online = advice.online_quantization(case.quantization, own)
    return (*found, *([online] if online else []))
