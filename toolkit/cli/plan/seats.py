"""`toolkit plan --host` without a GPU or a known model: only what the server's own blocks mean for requests."""

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

import click

from toolkit.cli.output import print_json
from toolkit.cli.plan.options import PlanOptions
from toolkit.errors import ToolkitError
from toolkit.plan.capacity import RequestLengths
from toolkit.plan.checkup import Checkup, States, as_served, checkup, sane
from toolkit.plan.memory import blocks_of_request
from toolkit.plan.planner import per_request
from toolkit.plan.result import Plan

if TYPE_CHECKING:
    from toolkit.plan.catalog import KnownModel
    from toolkit.records import Sighting


def show_seats(
    options: PlanOptions, seen: "Sighting | None", known: "KnownModel | None", load: RequestLengths
) -> None:
    """Count requests in the blocks of a server. Raises ToolkitError where not even that can be told."""
    if seen is None:
        raise ToolkitError("no GPU is named", "Say which: `--gpu a100-80gb`, or `--gpu 80GiB`")
    tokens = load.request_tokens or sane(seen.max_model_len)
    if tokens is None:
        raise ToolkitError(
            f"how long requests are is not known, and `{seen.name}` does not tell its max_model_len",
            "Tell it: `--tokens 550`, or `--workload workload.json`",
        )
    found = _counted(options, seen, known, float(tokens))
    notes = list(found.notes)
    if load.request_tokens is None:
        notes.append(
            "how long requests are was not told, so all are counted as long as its max_model_len: real ones are shorter"
        )
    if known is None:
        notes.append(
            f"the catalog does not know its model, `{seen.model or 'not told'}`: all layers are taken to keep every token. Name MODEL"
            " to count its states"
        )
    if options.gpu is None:
        notes.append("name its GPU, e.g., `--gpu a100-80gb`, to see how far the plan is from it")
    if not options.as_json:
        click.echo(f"{seen.name}: {found.text}")
        for note in notes:
            click.echo(f"- {note}")
        return
    # the keys of a plan; what only a GPU and a model tell is null
    unknown: dict[str, object] = {field.name: None for field in fields(Plan)}
    print_json(
        unknown
        | {
            "model": seen.model,
            "request_tokens": float(tokens),
            "num_gpu_blocks": found.num_gpu_blocks,
            "block_size": found.block_size,
            "blocks_per_request": found.blocks_per_request,
            "max_concurrency": found.at_once,
            "flags": {},
            "advice": [],
            "notes": notes,
            "checkup": asdict(replace(found, notes=tuple(notes))),
            "host": seen.name,
        }
    )


def _counted(
    options: PlanOptions, seen: "Sighting", known: "KnownModel | None", tokens: float
) -> Checkup:
    if known is None:
        return checkup(seen, tokens)
    from toolkit.cli.plan.engine_settings import settings_of

    settings = as_served(settings_of(options), seen)
    length = settings.max_model_len or known.shape.max_positions or int(tokens)
    try:
        size, each, begin = blocks_of_request(known.shape, settings, length, tokens)
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, tokens)
    hybrid = per_request(known.shape, settings) > 0
    states = States(block_size=size, blocks_per_request=each, blocks_to_begin=begin)
    return checkup(seen, tokens, states if hybrid else None)
