"""One `toolkit plan`: read the model, the GPU and the load, reckon, hand it to what shows it."""

from dataclasses import replace

from toolkit.cli.plan.engine_settings import settings_of
from toolkit.cli.plan.host import seen_host
from toolkit.cli.plan.load import load_of
from toolkit.cli.plan.measured import MeasuredRuns, measured
from toolkit.cli.plan.options import PlanOptions
from toolkit.cli.plan.show import PlanAnswer, show
from toolkit.errors import ToolkitError
from toolkit.plan.capacity import Goal, Prices, RequestLengths, chain, cost, headroom
from toolkit.plan.catalog import KnownModel, gpu_of, model_of, served_model
from toolkit.plan.checkup import (
    States,
    as_served,
    checkup,
    deviation,
    sane,
)
from toolkit.plan.model_config import Shape
from toolkit.plan.planner import PlanQuestion, per_request, side_by_side
from toolkit.plan.result import Plan
from toolkit.plan.weights import as_stored
from toolkit.records import Sighting


def run(options: PlanOptions) -> None:
    """Do what the command line asks. Raises ToolkitError for what cannot be read."""
    if options.kv_only:
        from toolkit.cli.plan.kv import run_kv_only

        run_kv_only(options)
        return
    seen = seen_host(options)
    runs = measured(options)
    load = load_of(options, runs)
    if options.model is not None:
        known: KnownModel | None = model_of(options.model)
    else:
        known = served_model(seen.model or "") if seen else None
    if known is None or options.gpu is None:
        from toolkit.cli.plan.seats import show_seats

        show_seats(options, seen, known, load)
        return
    asked = question(options, known, load, runs)
    plans = [
        replace(one, notes=(*one.notes, *known.notes))
        for one in side_by_side(asked, options.quantization)
    ]
    answers = [_answer(one, asked, options, seen) for one in plans]

    show(answers, options, asked, runs, seen)


def question(
    options: PlanOptions, known: KnownModel, load: RequestLengths, runs: MeasuredRuns
) -> PlanQuestion:
    """What is asked of the planner."""
    return PlanQuestion(
        shape=_shape(options, known.shape),
        gpu=gpu_of(options.gpu or ""),
        on_disk=options.weights if options.weights is not None else known.on_disk,
        settings=settings_of(options),
        load=load,
        goal=Goal(
            seconds_per_request=options.seconds_per_request or runs.seconds,
            target_rps=options.target_rps,
            prices=prices_of(options),
        ),
    )


def _shape(options: PlanOptions, shape: Shape) -> Shape:
    """With `--weights` and one `--quantization` the files are in that one, whatever the catalog's config tells."""
    if options.weights is None or len(options.quantization) != 1:
        return shape
    return replace(shape, quantization=as_stored(shape, options.quantization[0]))


def prices_of(options: PlanOptions) -> Prices:
    """What the user pays, or would."""
    into, out = options.api_price or (None, None)
    return Prices(gpu_hour=options.gpu_hour, api_input=into, api_output=out)


def _answer(
    one: Plan, asked: PlanQuestion, options: PlanOptions, seen: Sighting | None
) -> PlanAnswer:
    load, goal = asked.load, asked.goal
    rate = one.requests_per_s if one.fits else 0.0
    found = PlanAnswer(
        plan=one,
        cost=cost(
            goal.prices,
            gpus=one.gpus,
            requests_per_s=one.requests_per_s,
            prompt_tokens=load.prompt_tokens,
            output_tokens=load.output_tokens,
            request_tokens=one.request_tokens,
        ),
        chain=chain(options.calls, options.idle or 0.0, _running(one))
        if options.calls and one.fits
        else None,
        headroom=headroom(goal.target_rps, goal.seconds_per_request, rate)
        if goal.target_rps is not None
        else None,
    )
    return found if seen is None else _compared(found, asked, seen)


def _running(one: Plan) -> int:
    """Requests at once: as many as memory holds, and as the engine admits."""
    return min(one.max_concurrency, one.max_num_seqs or one.max_concurrency)


def _compared(found: PlanAnswer, asked: PlanQuestion, seen: Sighting) -> PlanAnswer:
    """Beside what the server tells: the plan of what runs there, not of what should."""
    served = replace(asked, settings=as_served(asked.settings, seen, asked.gpu))
    try:
        there = served.answer(found.plan.quantization)
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return replace(found, checkup=checkup(seen, found.plan.request_tokens))
    tokens = asked.load.request_tokens or there.request_tokens
    count = (sane(seen.num_gpu_blocks) or 0) // (sane(seen.engines) or 1) or None
    each = there.bytes_per_block // there.gpus if there.bytes_per_block else None
    return replace(
        found,
        checkup=checkup(seen, tokens, _states(there, asked, each)),
        deviation=deviation(there.num_gpu_blocks or 0, count, block_bytes=each),
    )


def _states(there: Plan, asked: PlanQuestion, block_bytes: int | None) -> States | None:
    """None: all its layers keep every token."""
    if not per_request(asked.shape, asked.settings):
        return None
    return States(
        block_size=there.block_size or 0,
        blocks_per_request=there.blocks_per_request or 0,
        blocks_to_begin=there.blocks_to_begin,
        block_bytes=block_bytes,
    )
