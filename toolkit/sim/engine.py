"""When would vLLM have said each token? A model of V1's continuous batching, in time the caller gives.

Token budget, chunked prefill, KV blocks, prefix cache, queue and preemption by vLLM's rules; only the
seconds are invented. It reads no clock, opens nothing, and never sleeps: the caller plans a step, waits
its `duration_s`, finishes it, and repeats until `plan` returns None.
"""

import random
from collections import deque

from toolkit.sim.blocks import BlockPool, block_hashes
from toolkit.sim.facts import EngineConfig, EngineRequest, Finished, Progress, Reason, Step

__all__ = ["Engine", "EngineConfig", "EngineRequest", "Finished", "Progress", "Reason", "Step"]


class _Sequence:
    """A live request: what is read, what is said, what is computed, which blocks it holds."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "ended",
        "first_token_at",
        "hashes",
        "ids",
        "last_token_at",
        "output_tokens",
        "preemptions",
        "remembered",
        "request",
        "room",
        "scheduled_at",
        "token_limit",
    )

    def __init__(self, request: EngineRequest, max_model_len: int) -> None:
        self.request = request
        self.ids = list(request.prompt_ids)
        """Prompt and answer so far."""
        self.token_limit = min(
            request.max_tokens, len(request.output_ids), max_model_len - len(self.ids)
        )
        self.computed = 0
        """Leading tokens whose KV is there."""
        self.blocks: list[int] = []
        self.room = 0
        """Tokens that fit into the blocks."""
        self.hashes: list[int] = []
        """Of the full blocks of `ids`, as far as anybody asked."""
        self.remembered = 0
        """Leading blocks already offered to the prefix cache."""
        self.cached_tokens = 0
        self.output_tokens = 0
        self.preemptions = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.ended = False

    def reason_to_end(self) -> Reason | None:
        """Ask after a new token; the model's own end comes before the limit, as in vLLM."""
        if self.output_tokens < self.token_limit:
            return None
        return "stop" if self.output_tokens == len(self.request.output_ids) else "length"


class _Draft:
    """The step that is being planned."""

    __slots__ = ("budget", "decode_tokens", "failed", "prefill_tokens", "work")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.work: list[tuple[_Sequence, int]] = []
        self.failed: list[Finished] = []
        self.prefill_tokens = 0
        self.decode_tokens = 0

    def add(self, sequence: _Sequence, count: int) -> None:
        self.work.append((sequence, count))
        self.budget -= count
        if count == 1 and sequence.output_tokens:
            self.decode_tokens += 1
        else:
            self.prefill_tokens += count


class Engine:
    """One engine core. Submit and abort at any time; one step at a time is planned and finished.

    A step of 64 decoding requests costs 0.09 ms of CPU to plan and finish (CPython 3.11, one x86-64 core).
    """

    preemptions_total: int
    """Counted when they happen. A real server shows them when the request speaks again."""
    prefix_queries_total: int
    """Tokens looked up, once a request, at its first scheduling."""
    prefix_hits_total: int
    prompt_tokens_total: int
    """Tokens of prompts whose first token is out, cached ones included."""
    prompt_tokens_cached_total: int
    """The part of them that came from the prefix cache."""
    generation_tokens_total: int
    steps_total: int
    """Iterations of the model; a step that only reports errors is none."""
    iteration_tokens: int
    """Of the last finished step: prompts completed, without what the prefix cache had, plus tokens said.

    What `vllm:iteration_tokens_total` observes: in each of five recordings its sum is exactly prompt -
    cached + generated. A token computed again after a preemption counts nowhere.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.preemptions_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0
        self.prompt_tokens_total = 0
        self.prompt_tokens_cached_total = 0
        self.generation_tokens_total = 0
        self.steps_total = 0
        self.iteration_tokens = 0
        self._pool = BlockPool(config.num_gpu_blocks)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        """In the order they were started: the last one is preempted first."""
        self._alive: dict[str, _Sequence] = {}
        self._step: Step | None = None
        self._draft = _Draft(0)
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
        if request.id in self._alive:
            raise ValueError(f"request `{request.id}` is alive already")
        if not request.prompt_ids or not request.output_ids or request.max_tokens < 1:
            raise ValueError(f"request `{request.id}` has nothing to read or nothing to say")
        sequence = _Sequence(request, self.config.max_model_len)
        self._alive[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str, now: float) -> Finished | None:
        """Drop a request wherever it is; None if it is not here (any more)."""
        sequence = self._alive.get(request_id)
        if sequence is None:
            return None
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        return self._end(sequence, "abort", now)

    def plan(self, now: float) -> Step | None:
        """Schedule one iteration; None when there is nothing to do until the next submit.

        Raises RuntimeError while a planned step is unfinished.
        """
        if self._step is not None:
            raise RuntimeError("the planned step is unfinished")
        draft = _Draft(self.config.max_num_batched_tokens)
        self._continue_running(draft, now)
        self._start_waiting(draft, now)
        if not draft.work and not draft.failed:
            return None
        self._draft = draft
        self._step = Step(
            started_at=now,
            duration_s=self._duration_s(draft),
            sequences=len(draft.work),
            prefill_tokens=draft.prefill_tokens,
            decode_tokens=draft.decode_tokens,
        )
        return self._step

    def finish(self, step: Step, now: float) -> list[Progress]:
        """End the planned step: every request in it that is fully computed says one token.

        Raises RuntimeError on a step that is not the planned one.
        """
        if step is not self._step:
            raise RuntimeError("this step is not the planned one")
        draft, self._step, self._draft = self._draft, None, _Draft(0)
        self.steps_total += bool(draft.work)
        before = self._accounted()
        progress = [_failure(each) for each in draft.failed]
        for sequence, count in draft.work:
            if sequence.ended:  # aborted while the step ran
                continue
            sequence.computed += count
            if sequence.computed == len(sequence.ids):
                progress.append(self._say(sequence, now))
        if any(each.finished for each in progress):
            self._running = [each for each in self._running if not each.ended]
        self.iteration_tokens = self._accounted() - before
        return progress

    def _accounted(self) -> int:
        computed = self.prompt_tokens_total - self.prompt_tokens_cached_total
        return computed + self.generation_tokens_total

    def _continue_running(self, draft: _Draft, now: float) -> None:
        """Give the running requests their tokens, the last started ones giving way to the earlier."""
        index = 0
        while index < len(self._running) and draft.budget:
            sequence = self._running[index]
            count = min(len(sequence.ids) - sequence.computed, draft.budget)
            while not self._make_room(sequence, count):
                if self._give_way(draft, now) is sequence:
                    return
            draft.add(sequence, count)
            index += 1

    def _make_room(self, sequence: _Sequence, count: int) -> bool:
        """Hold blocks for `count` more tokens and offer the full ones to the prefix cache."""
        tokens = sequence.computed + count
        size = self.config.block_size
        if tokens > sequence.room:
            more = self._pool.take(-(-tokens // size) - len(sequence.blocks))
            if more is None:
                return False
            sequence.blocks += more
            sequence.room = len(sequence.blocks) * size
        if self.config.prefix_caching and tokens >= (sequence.remembered + 1) * size:
            self._remember(sequence, tokens // size)
        return True

    def _remember(self, sequence: _Sequence, full_blocks: int) -> None:
        """Offer full blocks already when they are scheduled: vLLM's same-step twins share them, too."""
        self._hash(sequence, full_blocks)
        for index in range(sequence.remembered, full_blocks):
            self._pool.remember(sequence.blocks[index], sequence.hashes[index])
        sequence.remembered = full_blocks

    def _hash(self, sequence: _Sequence, full_blocks: int) -> None:
        if len(sequence.hashes) < full_blocks:
            size = self.config.block_size
            sequence.hashes = block_hashes(
                sequence.ids, size, known=sequence.hashes, upto=full_blocks * size
            )

    def _give_way(self, draft: _Draft, now: float) -> _Sequence:
        """Put the last started request back to the front of the queue; alone, it can never fit: it ends."""
        victim = self._running.pop()
        if not self._running:
            draft.failed.append(self._end(victim, "error", now, error=self._too_big(victim)))
            return victim
        self._release(victim)
        victim.preemptions += 1
        self.preemptions_total += 1
        self._waiting.appendleft(victim)
        return victim

    def _start_waiting(self, draft: _Draft, now: float) -> None:
        """Start queued requests in order until one does not fit; nobody overtakes.

        vLLM starts nobody in a step that preempted. Nobody could: the preempted request is at the head,
        and needs more blocks than those who made it give way have left over.
        """
        while self._waiting and draft.budget and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting[0]
            if self._never_fits(sequence):
                self._waiting.popleft()
                draft.failed.append(
                    self._end(sequence, "error", now, error=self._too_big(sequence))
                )
            elif self._admit(sequence):
                self._waiting.popleft()
                self._running.append(sequence)
                count = min(len(sequence.ids) - sequence.computed, draft.budget)
                self._make_room(sequence, count)
                self._note_start(sequence, now)
                draft.add(sequence, count)
            else:
                return

    def _never_fits(self, sequence: _Sequence) -> bool:
        return sequence.token_limit < 1 or self._blocks_for(sequence) > self._pool.usable

    def _blocks_for(self, sequence: _Sequence) -> int:
        return -(-len(sequence.ids) // self.config.block_size)

    def _too_big(self, sequence: _Sequence) -> str:
        return (
            f"{len(sequence.ids)} tokens do not fit: the model takes {self.config.max_model_len}, "
            f"the KV cache {self._pool.usable * self.config.block_size}"
        )

    def _admit(self, sequence: _Sequence) -> bool:
        """Share the cached prefix if all known tokens fit now, not just the first chunk.

        vLLM's `scheduler_reserve_full_isl`, on by default: else a long prompt is started, runs out of
        blocks half-way and starts again. The last token is always computed: its logits are needed.
        """
        size = self.config.block_size
        matched: list[int] = []
        if self.config.prefix_caching:
            self._hash(sequence, (len(sequence.ids) - 1) // size)
            matched = self._pool.match(sequence.hashes[: (len(sequence.ids) - 1) // size])
        if not self._pool.fits(matched, self._blocks_for(sequence) - len(matched)):
            return False
        self._pool.share(matched)
        sequence.blocks = matched
        sequence.room = sequence.computed = len(matched) * size
        sequence.remembered = len(matched)
        return True

    def _note_start(self, sequence: _Sequence, now: float) -> None:
        """Count a first start only: a real server's counters leave out what a preemption repeats."""
        if sequence.scheduled_at is not None:
            return
        sequence.scheduled_at = now
        sequence.cached_tokens = sequence.computed
        if self.config.prefix_caching:
            self.prefix_queries_total += len(sequence.ids)
            self.prefix_hits_total += sequence.computed

    def _duration_s(self, draft: _Draft) -> float:
        if not draft.work:
            return 0.0
        config = self.config
        seconds = (
            config.step_overhead_s
            + config.prefill_s_per_token * draft.prefill_tokens
            + config.decode_s_per_sequence * draft.decode_tokens
        )
        size = (len(draft.work) - 1).bit_length()
        if size not in self._warm_sizes:
            self._warm_sizes.add(size)
            seconds += config.cold_s
        return (
            seconds * self._dice.uniform(1 - config.jitter, 1 + config.jitter) * config.time_scale
        )

    def _say(self, sequence: _Sequence, now: float) -> Progress:
        token_id = sequence.request.output_ids[sequence.output_tokens]
        sequence.ids.append(token_id)
        sequence.output_tokens += 1
        sequence.last_token_at = now
        self.generation_tokens_total += 1
        first = sequence.first_token_at is None
        if first:
            sequence.first_token_at = now
            self.prompt_tokens_total += len(sequence.request.prompt_ids)
            self.prompt_tokens_cached_total += sequence.cached_tokens
        reason = sequence.reason_to_end()
        return Progress(
            sequence.request.id,
            sequence.output_tokens,
            token_id,
            first,
            self._end(sequence, reason, now) if reason else None,
        )

    def _end(
        self, sequence: _Sequence, reason: Reason, now: float, *, error: str | None = None
    ) -> Finished:
        """Give the blocks back and write the record; the caller takes it out of its queue."""
        self._release(sequence)
        sequence.ended = True
        request = sequence.request
        del self._alive[request.id]
        return Finished(
            id=request.id,
            reason=reason,
            error=error,
            arrived_at=request.arrived_at,
            scheduled_at=sequence.scheduled_at,
            first_token_at=sequence.first_token_at,
            last_token_at=sequence.last_token_at,
            ended_at=now,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=sequence.cached_tokens,
            output_tokens=sequence.output_tokens,
            max_tokens=request.max_tokens,
            preemptions=sequence.preemptions,
        )

    def _release(self, sequence: _Sequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.room = sequence.remembered = sequence.computed = 0


def _failure(finished: Finished) -> Progress:
    return Progress(finished.id, finished.output_tokens, None, first_token=False, finished=finished)
