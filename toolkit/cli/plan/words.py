"""What a plan says beside its table and its flags, as sentences: rate, users, cost, and the server it was compared with."""

from collections.abc import Iterator, Sequence

from toolkit.cli.plan.answer import PlanAnswer
from toolkit.plan.capacity import BUSY, SPARE, Chain, Cost, Headroom, busy_with
from toolkit.plan.result import Plan
from toolkit.units import digits, share


def memory_words(one: Plan, *, graphs_counted: bool) -> str:
    """Where one engine's memory goes."""
    may_use = (one.memory_gib or 0.0) * (one.gpu_memory_utilization or 0.0)
    parts = (
        (one.weights_gib, "weights"),
        (one.context_gib or 0.0, "CUDA"),
        # a context of nothing: one figure was told for all three
        (one.activation_gib or 0.0, "activations" if one.context_gib else "beside, as told"),
        (one.graph_gib or 0.0 if graphs_counted else 0.0, "graphs"),
        (one.kv_budget_gib, "KV cache"),
    )
    words = ", ".join(f"{gib:.1f} {name}" for gib, name in parts if gib >= 0.05)
    beside = "" if graphs_counted else f"; {one.graph_gib or 0.0:.1f} for graphs come on top"
    return f"{may_use:.1f} of {one.memory_gib or 0.0:.1f} GiB: {words}{beside}"


def block_words(one: Plan) -> str:
    """Its KV cache in blocks."""
    first, each = one.blocks_to_begin or 0, one.blocks_per_request or 0
    begin = f" ({first:,} to begin, as windows hold more while a prompt is read)"
    return (
        f"{one.num_gpu_blocks or 0:,} blocks of {one.block_size or 0:,} tokens, {each:,} for each request"
        f" of {one.request_tokens:,.0f} tokens{begin if first > each else ''}, one reserved"
    )


def rate_words(found: Headroom) -> Iterator[str]:
    """What a target rate asks for."""
    low, high = found.tested_rps
    yield (
        f"Target {digits(found.target_rps)} requests/s: try it with {digits(low)} to {digits(high)}, two to three times the peak"
    )
    if found.under_way is not None:
        yield f"At the target {digits(found.under_way)} requests are under way at once"
    if found.factor is None:
        yield "How long a request takes is not known (--seconds-per-request or --run), so nor is whether it is enough"
    elif found.engines is None:
        yield "It does not fit, so it answers none"
    else:
        yield from _engines(found.factor, found.engines)


def _engines(factor: float, engines: tuple[int, int]) -> Iterator[str]:
    low, high = engines
    many = f"{low}" if low == high else f"{low} to {high}"
    if factor > SPARE[1]:
        yield f"One such server does {digits(factor)} times the target: enough, and more than peaks ask for"
    elif factor >= SPARE[0]:
        yield f"One such server does {digits(factor)} times the target: enough"
    else:
        yield f"One such server does {digits(factor)} times the target: {many} of them leave peaks their room"


def enough_words(answers: Sequence[PlanAnswer], chosen: PlanAnswer) -> Iterator[str]:
    """The first quantization that leaves peaks their room, where the one whose flags are shown does not."""
    if chosen.headroom is None or (chosen.headroom.factor or 0.0) >= SPARE[0]:
        return
    for one in answers:
        factor = one.headroom.factor if one.headroom else None
        if one.plan.fits and factor is not None and factor >= SPARE[0]:
            name = one.plan.quantization
            yield f"{name} on the same machine does {digits(factor)} times the target: --quantization {name} shows its flags"
            return


def chain_words(found: Chain) -> Iterator[str]:
    """What calls that follow each other mean."""
    yield (
        f"{found.calls} calls of {digits(found.busy_s)} s in {digits(found.total_s)} s a request: one user keeps the GPU busy for"
        f" {share(found.busy_share)} of the time"
    )
    busy = share(busy_with(found.users_busy, found.busy_share))
    yield (f"{found.users_busy} users at once keep it busy for {busy} (at least {BUSY:.0%})")
    yield (
        f"{found.users_full:,} users fill its memory with calls, and have {digits(found.requests_per_s)} requests a second answered"
        " if calls still take as long"
    )


def cost_words(found: Cost) -> Iterator[str]:
    """What an hour buys."""
    if found.per_million_tokens is None:
        yield f"{money(found.hour)} an hour; what a token costs needs measured seconds (--seconds-per-request or --run)"
    else:
        yield (
            f"{money(found.hour)} an hour at full load: {money(found.per_million_tokens)} for a million tokens, prompts and answers"
            f" together; {money(found.per_thousand_requests or 0.0)} for 1,000 requests"
        )
    if found.api_per_million_tokens is not None:
        yield (
            f"The API: {money(found.api_per_million_tokens)} for a million tokens of the same mix;"
            f" {money(found.api_per_thousand_requests or 0.0)} for 1,000 requests"
        )
    if found.even_rps is not None:
        yield _even(found.even_rps, found.even_share)


def _even(rps: float, part: float | None) -> str:
    words = f"The GPU is cheaper from {digits(rps)} requests a second on, around the clock"
    if part is None:
        return words
    if part > 1:
        return f"{words}: more than it can answer, so it never is"
    return f"{words}: {share(part)} of what it can answer"


def money(value: float) -> str:
    """In the currency of the prices told: `0.097`, `2.00`."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"


def host_words(answers: Sequence[PlanAnswer], name: str) -> Iterator[str]:
    """What a server's own figures mean, and which of the plans comes nearest to them."""
    first = next((one.checkup for one in answers if one.checkup), None)
    if first is None:
        return
    yield f"{name}: {first.text}"
    yield from first.notes
    told = [one for one in answers if one.deviation]
    for one in told:
        if one.deviation:
            yield f"{one.plan.quantization}: {one.deviation.text}"
    if len(told) > 1:
        yield f"Nearest: {_nearest(told)}"


def _nearest(told: Sequence[PlanAnswer]) -> str:
    """Those whose estimate is no further off than the best one's; quantizations of one size are alike."""
    off = [abs(one.deviation.share) for one in told if one.deviation]
    return " and ".join(
        one.plan.quantization
        for one, share_off in zip(told, off, strict=True)
        if share_off == min(off)
    )
