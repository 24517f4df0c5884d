"""What the command line of `toolkit preflight` asks of the machine, the size of the model's weights included."""

import os
from dataclasses import replace

import click

from toolkit.cli.preflight.options import Options
from toolkit.errors import ToolkitError
from toolkit.serving.fit.disks import expanded, hub, measured
from toolkit.serving.fit.needs import Needs


def needs_of(options: Options) -> Needs:
    """The needs of one model on this machine."""
    on_gpu = not (options.cpu or options.sim)
    needs = Needs(
        ports=options.port,
        host=options.host,
        users=options.users,
        model=options.model,
        disk_path=None if options.disk is None else str(options.disk),
        gpu=on_gpu,
        vllm=None if options.sim else options.vllm,
    )
    if options.sim:
        # it downloads nothing, unless somebody rehearses a model's download
        rehearsed = options.weights or options.model or options.disk
        return replace(needs, disk_bytes=options.weights if rehearsed else 0)
    return with_weights(
        needs, weights=options.weights, quantization=options.quantization, tp=options.tp
    )


def with_weights(
    needs: Needs, *, weights: int | None = None, quantization: str | None = None, tp: int = 1
) -> Needs:
    """Add what the model's weights want of disk, GPU and memory; a model that nobody knows wants only the floor."""
    total, of_gpu = (weights, None) if weights else _known(needs.model, quantization, tp)
    if total is None:
        return needs
    of_gpu = -(-total // tp) if of_gpu is None else of_gpu
    return replace(
        needs,
        disk_bytes=max(0, total - _there(needs)),
        gpu_bytes=of_gpu if needs.gpu else None,
        memory_bytes=needs.memory_bytes if needs.gpu else total,
    )


def _known(model: str | None, quantization: str | None, tp: int) -> tuple[int | None, int | None]:
    """Bytes of all weights and of one GPU's, by the planner; None: it does not know the model."""
    if model is None:
        return None, None
    from toolkit.cli.plan.model import model_of
    from toolkit.plan.weights import weights_bytes, weights_of_gpu

    try:
        known = model_of(model)
    except ToolkitError as error:
        click.echo(
            f"The size of `{model}` is not known ({error.message}): give it by --weights", err=True
        )
        return None, None
    shape, on_disk = known.shape, known.on_disk
    return (
        weights_bytes(shape, quantization, on_disk=on_disk),
        weights_of_gpu(shape, quantization, tp=tp, on_disk=on_disk),
    )


def _there(needs: Needs) -> int:
    """What of the model is on the disk already: a folder of its own, or its part of the Hugging Face cache."""
    model = needs.model or ""
    if model and os.path.isdir(model):  # noqa: PTH112 (Path's own raises behind another user's folder)
        return 1 << 62  # nothing is to be downloaded, however it is counted
    cache = expanded(needs.disk_path) if needs.disk_path else hub(os.environ)
    return measured(cache / ("models--" + model.replace("/", "--"))).used_bytes if model else 0
