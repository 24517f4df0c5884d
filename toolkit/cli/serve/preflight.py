"""Preflight of a whole stack: the needs of all its engines and of the proxy, looked at once; what fails is told with its fix."""

import asyncio
import contextlib
import os
from collections.abc import Callable

from toolkit.errors import ToolkitError
from toolkit.plan.catalog import model_of
from toolkit.plan.weights import weights_bytes, weights_of_gpu
from toolkit.serving.preflight.check import Check, Needs
from toolkit.serving.preflight.checks import checks
from toolkit.serving.preflight.disk import with_weights
from toolkit.serving.stack import EngineSetting, Stack

UTILIZATION = Needs().gpu_memory_utilization
ON_CPU = "VLLM_CPU_KVCACHE_SPACE"
"""Whoever sets it has a vLLM for the CPU."""
TINY_BYTES = 2 * 2**30
"""1.6 GB of memory were measured for the tiny model with 1 GiB of KV cache."""


async def refuse_unfit(stack: Stack, say: Callable[[str], None]) -> None:
    """Raise for what would fail; say what is doubtful."""
    found: dict[tuple[str, str], Check] = {}
    for needs in needs_of(stack):
        looked = await asyncio.to_thread(checks, needs)
        found |= {(each.check, each.why): each for each in looked}
    for check in found.values():
        if check.status == "warn":
            say(f"Preflight: {check.why}" + (f" Fix: {check.fix}" if check.fix else ""))
    failed = [check for check in found.values() if check.status == "fail"]
    for check in failed[1:]:
        say(f"Preflight: {check.why}" + (f" Fix: {check.fix}" if check.fix else ""))
    if failed:
        raise ToolkitError(
            f"this machine is not fit: {failed[0].why.rstrip('.')}",
            failed[0].fix or "`toolkit preflight` tells more; --no-preflight starts all the same",
        )
    say(f"Preflight: {len(found)} checks, none failed")


def needs_of(stack: Stack) -> list[Needs]:
    """What is asked of the machine: by each different vLLM and set of GPUs once; ports all with the first."""
    ports = tuple(port for each in stack.engines for port in (each.port, each.spare_port) if port)
    if stack.proxy is not None and stack.proxy.port:
        ports += (stack.proxy.port,)
    kinds = {(each.kind, each.vllm, each.gpus, each.model): each for each in stack.engines}
    every = list(kinds.values())
    return [_needs(each, ports if each is every[0] else (), stack) for each in every]


def _needs(setting: EngineSetting, ports: tuple[int, ...], stack: Stack) -> Needs:
    is_vllm, flags = setting.kind == "vllm", dict(setting.flags)
    needs = Needs(
        ports=ports,
        host=stack.proxy.host if stack.proxy is not None else setting.host,
        model=setting.model if is_vllm else None,
        disk_bytes=None if is_vllm else 0,
        memory_bytes=TINY_BYTES if setting.kind == "tiny" else None,
        gpu_memory_utilization=_number(flags.get("gpu-memory-utilization"), UTILIZATION),
        gpu=is_vllm and ON_CPU not in {*os.environ, *dict(setting.env)},
        gpus=setting.gpus,
        vllm=None if setting.kind == "sim" else setting.vllm,
    )
    if not is_vllm:
        return needs
    try:
        known = model_of(setting.model)
    except ToolkitError:
        return (
            needs  # the planner does not know how large its weights are: only the floor is checked
        )
    shape, size = known.shape, known.on_disk
    told = flags.get("quantization")
    quantization = told if isinstance(told, str) else None
    tp = round(_number(flags.get("tensor-parallel-size"), 1))
    return with_weights(
        needs,
        weights_bytes(shape, quantization, on_disk=size),
        of_gpu=weights_of_gpu(shape, quantization, tp=tp, on_disk=size),
    )


def _number(value: str | bool | None, usual: float) -> float:
    """A flag's number; what is none vLLM will refuse in its own words."""
    found = None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = float(value)
    return usual if found is None or found <= 0 else found
