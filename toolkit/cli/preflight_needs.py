"""What the command line of `toolkit preflight` asks of the machine, the size of the model's weights included."""

from pathlib import Path

from toolkit.cli.preflight import Options
from toolkit.serving.needs import Needs


def needs_of(options: Options) -> Needs:
    """The needs of one model on this machine."""
    weights = options.weights
    there = options.model is not None and Path(options.model).is_dir()
    on_gpu = not (options.cpu or options.sim)
    return Needs(
        ports=options.port,
        host=options.host,
        users=options.users,
        model=options.model,
        disk_bytes=0 if there else weights,
        disk_path=None if options.disk is None else str(options.disk),
        memory_bytes=None if on_gpu else weights,
        gpu_bytes=weights if on_gpu else None,
        gpu=on_gpu,
        vllm=None if options.sim else options.vllm,
    )
