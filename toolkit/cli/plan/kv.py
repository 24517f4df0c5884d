"""`toolkit plan --kv-only`: the KV cache of so many requests of one length, without a GPU."""

from dataclasses import fields

import click

from toolkit.cli.output import print_json
from toolkit.cli.plan.options import PlanOptions
from toolkit.plan.advice import tokens_words
from toolkit.plan.catalog import KnownModel, model_of
from toolkit.plan.engine import EngineSettings
from toolkit.plan.planner import kv_bytes, per_request, per_token
from toolkit.plan.result import Plan
from toolkit.plan.weights import as_stored, weights_bytes
from toolkit.units import GIB, counted

SMALL_GIB = 0.1


def run_kv_only(options: PlanOptions) -> None:
    """Print it."""
    from toolkit.cli.plan.engine_settings import settings_of

    known = model_of(options.model or "")  # the command line is refused without a MODEL
    settings = settings_of(options)
    tokens, batch = options.tokens or 0.0, options.batch or 0
    kv_gib = kv_bytes(known.shape, settings, tokens) * batch / GIB
    if options.as_json:
        print_json(_as_object(known, settings, tokens, batch, kv_gib))
    else:
        click.echo(_words(known, settings, tokens, batch, kv_gib))


def _words(
    known: KnownModel, settings: EngineSettings, tokens: float, batch: int, kv_gib: float
) -> str:
    each, fixed = per_token(known.shape, settings), per_request(known.shape, settings)
    requests = counted(batch, "request")
    size = f"{kv_gib:,.2f} GiB" if kv_gib >= SMALL_GIB else f"{kv_gib * 1024:,.2f} MiB"
    length = "1 token" if tokens == 1 else tokens_words(tokens)
    lines = [f"{known.shape.name}: {size} for {requests} of {length}"]
    lines.append(f"{each:,} bytes a token" + (" over all GPUs" if settings.gpus > 1 else ""))
    if fixed:
        lines.append(
            f"{fixed:,} bytes a request whatever its length: states, and windows once full"
        )
    lines.append("before blocks round each request up: `--gpu` reckons with blocks")
    return "\n".join(lines)


def _as_object(
    known: KnownModel, settings: EngineSettings, tokens: float, batch: int, kv_gib: float
) -> dict[str, object]:
    """The keys of a plan and of what stands beside one; what only a GPU tells is null."""
    beside = ("costs", "chain", "headroom", "checkup", "deviation", "host")
    unknown: dict[str, object] = dict.fromkeys((*(field.name for field in fields(Plan)), *beside))
    return unknown | {
        "model": known.shape.name,
        "gpus": settings.gpus,
        "quantization": as_stored(known.shape, None).name,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "weights_gib": weights_bytes(known.shape, None, on_disk=known.on_disk) / GIB,
        "kv_bytes_per_token": per_token(known.shape, settings),
        "state_bytes_per_request": per_request(known.shape, settings),
        "tokens": tokens,
        "batch": batch,
        "kv_gib": kv_gib,
        "flags": {},
        "advice": [],
        "notes": [*known.notes, *known.shape.notes],
    }
