"""When would vLLM have said each token? A model of V1's continuous batching, in time the caller gives.

Token budget, chunked prefill, KV blocks, prefix cache, queue and preemption by vLLM's rules; only the
seconds are invented. It reads no clock, opens nothing, and never sleeps: the caller plans a step, waits
its `duration_s`, finishes it, and repeats until `plan` returns None.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

Reason = Literal["stop", "length", "abort", "error"]


class EngineConfig(BaseModel):
    """What an engine was started with, and how long its model takes. Raises ValueError on nonsense."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_model_len: int = Field(8192, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    """vLLM's default on an A100."""
    max_num_batched_tokens: int = Field(2048, ge=1)
    """Tokens one step may compute, prefill and decode together; vLLM's default on an A100."""
    block_size: int = Field(16, ge=1)
    num_gpu_blocks: int = Field(1024, ge=2)
    """One of them is vLLM's null block: `num_gpu_blocks - 1` can hold tokens."""
    prefix_caching: bool = True
    step_overhead_s: float = Field(0.012, ge=0)
    """Every step reads the weights once, however few tokens it computes."""
    prefill_s_per_token: float = Field(0.0001, ge=0)
    decode_s_per_sequence: float = Field(0.0001, ge=0)
    cold_s: float = Field(0.0, ge=0)
    """Added to the first step at each new power-of-two batch size: a CUDA graph is compiled."""
    jitter: float = Field(0.0, ge=0, lt=1)
    """Each step takes between `1 - jitter` and `1 + jitter` times its nominal time, evenly spread."""
    time_scale: float = Field(1.0, ge=0)
    """Multiplies every step's time: 0.1 runs ten times as fast."""
    seed: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class EngineRequest:
    """One sequence to generate, and how it went. The caller decides beforehand what the model will say."""

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    output_ids: tuple[int, ...]
    """What the model says before it stops of itself; its last token is the one that ends the text."""
    arrived_at: float
    on_progress: "Callable[[StepResult | None], None] | None" = None
    """For the caller's use: the engine does not call it."""

    ids: list[int] = field(init=False)
    """Prompt and answer so far."""
    token_limit: int = 0
    computed: int = 0
    """Leading tokens whose KV is there."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    """Of the full blocks of `ids`, as far as they were needed."""
    remembered: int = 0
    """Leading blocks already offered to the prefix cache."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first scheduled."""
    output_tokens: int = 0
    preemptions: int = 0
    scheduled_at: float | None = None
    """First time it entered a step: 0.32.0 does not move it when a request is preempted. None: never."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    reason: Reason | None = None
    """Why it ended; None while it lives."""
    error: str | None = None
    """Why, in one sentence, where the reason is `error`."""

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)


class StepResult(NamedTuple):
    """What a finished step means for one request: a new token, its end, or both."""

    request: EngineRequest
    output_tokens: int
    """Tokens said so far, the new one included: it is `output_ids[output_tokens - 1]`."""
    waited_s: float | None
    """Since its last token, or since it arrived; None when there is no new token (an error)."""
    reason: Reason | None
    """Set when the request ended with this step."""


@dataclass(slots=True)
class Step:
    """One engine iteration: how long it takes and what it computes.

    With nothing in `work` it takes no time and only reports requests that can never fit.
    """

    budget: int
    """Tokens that still fit into it."""
    duration_s: float = 0.0
    prefill_tokens: int = 0
    """Tokens of prompts, and of preempted requests that are computed again."""
    decode_tokens: int = 0
    """Requests that get just their next token."""
    work: list[tuple[EngineRequest, int]] = field(default_factory=list)
    """The batch: each request with its tokens."""
    failed: list[EngineRequest] = field(default_factory=list)

    def add(self, request: EngineRequest, count: int) -> None:
        """Compute so many tokens of a request."""
        self.work.append((request, count))
        self.budget -= count
        if count == 1 and request.output_tokens:
            self.decode_tokens += 1
        else:
            self.prefill_tokens += count


def block_hashes(
    ids: Sequence[int], block_size: int, *, known: Sequence[int] = (), blocks: int
) -> list[int]:
    """Hash the first `blocks` full blocks of `ids`, each with all that stands before it.

    `known` are the hashes of its first blocks, if some are worked out already. Python hashes tuples of
    integers alike in every process, whatever PYTHONHASHSEED says; 64 bits are enough for a toy.
    """
    hashes = list(known)
    for start in range(len(hashes) * block_size, blocks * block_size, block_size):
        parent = hashes[-1] if hashes else 0
        hashes.append(hash((parent, *ids[start : start + block_size])))
    return hashes


class BlockPool:
    """The KV blocks of one engine: vLLM's block pool with its prefix cache.

    block 0        the null block: never handed out
    held           by one request, or by several that share a prefix (`_holders` counts them)
    free           in the order of eviction: least recently used first; some still hold a known prefix
    """

    def __init__(self, num_gpu_blocks: int) -> None:
        self.usable = num_gpu_blocks - 1
        # takes from the front, puts to the back and removes from the middle in constant time
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._holders: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds; those that merely remember a prefix count as free."""
        return len(self._free)

    def match(self, hashes: Iterable[int]) -> list[int]:
        """Find the blocks that remember a prefix, up to the first unknown one."""
        found = []
        for each in hashes:
            block = self._block_of.get(each)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, matched: Sequence[int], new: int) -> bool:
        """Tell whether `new` blocks are free beside the matched ones, of which some may be free too."""
        return new + sum(block not in self._holders for block in matched) <= len(self._free)

    def share(self, matched: Iterable[int]) -> None:
        """Hold blocks that `match` found."""
        for block in matched:
            self._free.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def take(self, count: int) -> list[int] | None:
        """Hold `count` free blocks, the longest unused ones, and forget what they knew; None if too few."""
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            if (known := self._hash_of.pop(block, None)) is not None:
                del self._block_of[known]
            self._holders[block] = 1
        return taken

    def remember(self, block: int, its_hash: int) -> None:
        """Let others find a full block. The first block with a content stays the one that is found."""
        if its_hash not in self._block_of:
            self._block_of[its_hash] = block
            self._hash_of[block] = its_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one holder's blocks, the last first: a prefix outlives what followed it."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._free[block] = None


class EngineCore:
    """One engine core. Submit and abort at any time; one step at a time is planned and finished.

    A step of 64 decoding requests costs 0.09 ms of CPU to plan and finish (CPython 3.11, one x86-64 core).
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.preemptions_total = 0
        """Counted when they happen. A real server shows them when the request speaks again."""
        self.prefix_queries_total = 0
        """Tokens looked up, once a request, at its first scheduling."""
        self.prefix_hits_total = 0
        self.prompt_tokens_total = 0
        """Tokens of prompts whose first token is out, cached ones included."""
        self.prompt_tokens_cached_total = 0
        """The part of them that came from the prefix cache."""
        self.generation_tokens_total = 0
        self.iteration_tokens = 0
        """Of the last finished step: prompts completed, without what the prefix cache had, plus tokens said.

        What `vllm:iteration_tokens_total` observes: in each of five recordings its sum is exactly prompt -
        cached + generated. A token computed again after a preemption counts nowhere.
        """
        self.alive: dict[str, EngineRequest] = {}
        self._pool = BlockPool(config.num_gpu_blocks)
        self._waiting: deque[EngineRequest] = deque()
        self._running: list[EngineRequest] = []
        """In the order they were started: the last one is preempted first."""
        self._step: Step | None = None
        self._dice = random.Random(config.seed)
        self._warm_sizes: set[int] = set()

    @property
    def running(self) -> int:
        """Requests in the execution batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of usable KV blocks that running requests hold, 0 to 1; merely cached blocks are free."""
        return 1 - self._pool.free / self._pool.usable

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError on an id that is alive, or nothing to read or to say."""
        if request.id in self.alive:
            raise ValueError(f"request `{request.id}` is alive already")
        if not request.prompt_ids or not request.output_ids or request.max_tokens < 1:
            raise ValueError(f"request `{request.id}` has nothing to read or nothing to say")
        room = self.config.max_model_len - len(request.ids)
        request.token_limit = min(request.max_tokens, len(request.output_ids), room)
        self.alive[request.id] = request
        self._waiting.append(request)

    def abort(self, request_id: str, now: float) -> EngineRequest | None:
        """Drop a request wherever it is; None if it is not here (any more)."""
        request = self.alive.get(request_id)
        if request is None:
            return None
        (self._running if request in self._running else self._waiting).remove(request)
        self._end(request, "abort", now)
        return request

    def plan(self, now: float) -> Step | None:
        """Schedule one iteration; None when there is nothing to do until the next submit.

        Raises RuntimeError while a planned step is unfinished.
        """
        if self._step is not None:
            raise RuntimeError("the planned step is unfinished")
        step = Step(self.config.max_num_batched_tokens)
        self._continue_running(step, now)
        self._start_waiting(step, now)
        if not step.work and not step.failed:
            return None
        if step.work:
            step.duration_s = self._duration_s(step)
        self._step = step
        return step

    def finish(self, step: Step, now: float) -> list[StepResult]:
        """End the planned step: every request in it that is fully computed says one token.

        Raises RuntimeError on a step that is not the planned one.
        """
        if step is not self._step:
            raise RuntimeError("this step is not the planned one")
        self._step = None
        before = self._accounted()
        results = [StepResult(each, each.output_tokens, None, "error") for each in step.failed]
        for request, count in step.work:
            if request.reason:  # aborted while the step ran
                continue
            request.computed += count
            if request.computed == len(request.ids):
                results.append(self._say(request, now))
        if any(each.reason for each in results):
            self._running = [each for each in self._running if not each.reason]
        self.iteration_tokens = self._accounted() - before
        return results

    def _accounted(self) -> int:
        computed = self.prompt_tokens_total - self.prompt_tokens_cached_total
        return computed + self.generation_tokens_total

    def _continue_running(self, step: Step, now: float) -> None:
        """Give the running requests their tokens, the last started ones giving way to the earlier."""
        index = 0
        while index < len(self._running) and step.budget:
            request = self._running[index]
            count = min(len(request.ids) - request.computed, step.budget)
            while not self._make_room(request, count):
                if self._give_way(step, now) is request:
                    return
            step.add(request, count)
            index += 1

    def _make_room(self, request: EngineRequest, count: int) -> bool:
        """Hold blocks for `count` more tokens and offer the full ones to the prefix cache."""
        size = self.config.block_size
        tokens = request.computed + count
        if tokens > len(request.blocks) * size:
            more = self._pool.take(-(-tokens // size) - len(request.blocks))
            if more is None:
                return False
            request.blocks += more
        full = tokens // size
        if self.config.prefix_caching and full > request.remembered:
            # already when they are scheduled: vLLM's same-step twins share them, too
            self._hash(request, full)
            for index in range(request.remembered, full):
                self._pool.remember(request.blocks[index], request.hashes[index])
            request.remembered = full
        return True

    def _hash(self, request: EngineRequest, blocks: int) -> None:
        if len(request.hashes) < blocks:
            request.hashes = block_hashes(
                request.ids, self.config.block_size, known=request.hashes, blocks=blocks
            )

    def _give_way(self, step: Step, now: float) -> EngineRequest:
        """Put the last started request back to the front of the queue; alone, it can never fit: it ends."""
        victim = self._running.pop()
        if not self._running:
            self._fail(victim, step, now)
            return victim
        self._release(victim)
        victim.preemptions += 1
        self.preemptions_total += 1
        self._waiting.appendleft(victim)
        return victim

    def _start_waiting(self, step: Step, now: float) -> None:
        """Start queued requests in order until one does not fit; nobody overtakes.

        A request starts when all its known tokens fit, not just the first chunk (vLLM's
        `scheduler_reserve_full_isl`, on by default): else a long prompt runs out of blocks half-way and starts
        again. vLLM starts nobody in a step that preempted. Nobody could: the preempted request is at the head,
        and needs more blocks than those who made it give way have left over.
        """
        size = self.config.block_size
        while self._waiting and step.budget and len(self._running) < self.config.max_num_seqs:
            request = self._waiting[0]
            needed = -(-len(request.ids) // size)
            if request.token_limit < 1 or needed > self._pool.usable:
                self._fail(self._waiting.popleft(), step, now)
                continue
            cached: list[int] = []
            if self.config.prefix_caching:
                full = (len(request.ids) - 1) // size  # the last token's logits are needed
                self._hash(request, full)
                cached = self._pool.match(request.hashes[:full])
            if not self._pool.fits(cached, needed - len(cached)):
                return
            self._pool.share(cached)
            request.blocks = cached
            request.computed = len(cached) * size
            request.remembered = len(cached)
            self._running.append(self._waiting.popleft())
            if (
                request.scheduled_at is None
            ):  # a real server's counters leave out what a preemption repeats
                request.scheduled_at = now
                request.cached_tokens = request.computed
                if self.config.prefix_caching:
                    self.prefix_queries_total += len(request.ids)
                    self.prefix_hits_total += request.computed
            count = min(len(request.ids) - request.computed, step.budget)
            self._make_room(request, count)
            step.add(request, count)

    def _fail(self, request: EngineRequest, step: Step, now: float) -> None:
        """End a request that can never fit."""
        request.error = (
            f"{len(request.ids)} tokens do not fit: the model takes {self.config.max_model_len}, "
            f"the KV cache {self._pool.usable * self.config.block_size}"
        )
        self._end(request, "error", now)
        step.failed.append(request)

    def _duration_s(self, step: Step) -> float:
        config = self.config
        seconds = (
            config.step_overhead_s
            + config.prefill_s_per_token * step.prefill_tokens
            + config.decode_s_per_sequence * step.decode_tokens
        )
        size = (len(step.work) - 1).bit_length()
        if size not in self._warm_sizes:
            self._warm_sizes.add(size)
            seconds += config.cold_s
        return (
            seconds * self._dice.uniform(1 - config.jitter, 1 + config.jitter) * config.time_scale
        )

    def _say(self, request: EngineRequest, now: float) -> StepResult:
        if request.last_token_at is None:
            waited_s = now - request.arrived_at
            request.first_token_at = now
            self.prompt_tokens_total += len(request.prompt_ids)
            self.prompt_tokens_cached_total += request.cached_tokens
        else:
            waited_s = now - request.last_token_at
        request.ids.append(request.output_ids[request.output_tokens])
        request.output_tokens += 1
        request.last_token_at = now
        self.generation_tokens_total += 1
        if request.output_tokens == request.token_limit:
            # the model's own end comes before the limit, as in vLLM
            ended = request.output_tokens == len(request.output_ids)
            self._end(request, "stop" if ended else "length", now)
        return StepResult(request, request.output_tokens, waited_s, request.reason)

    def _end(self, request: EngineRequest, reason: Reason, now: float) -> None:
        """Give the blocks back; the caller takes it out of its queue."""
        self._release(request)
        request.reason, request.ended_at = reason, now
        del self.alive[request.id]

    def _release(self, request: EngineRequest) -> None:
        self._pool.release(request.blocks)
        request.blocks = []
        request.remembered = request.computed = 0
