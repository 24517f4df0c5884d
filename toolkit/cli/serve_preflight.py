"""Preflight of a whole stack: the needs of all its engines and of the proxy, looked at once; what fails is told with its fix."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.serving.checks import Check, checks
from toolkit.serving.machine import look
from toolkit.serving.needs import Needs
from toolkit.serving.stack import EngineSetting, Stack

TINY_BYTES = 2 * 2**30
"""1.6 GB of memory were measured for the tiny model with 1 GiB of KV cache."""


async def refuse_unfit(stack: Stack, say: Callable[[str], None]) -> None:
    """Raise for what would fail; say what is doubtful."""
    found: dict[tuple[str, str], Check] = {}
    for needs in needs_of(stack):
        facts = await asyncio.to_thread(look, needs)
        found |= {(each.check, each.why): each for each in checks(facts, needs)}
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
    say(f"Preflight: {len(found)} things looked at, nothing in the way")


def needs_of(stack: Stack) -> list[Needs]:
    """What is asked of the machine: by each different vLLM and set of GPUs once; ports all with the first."""
    ports = tuple(port for each in stack.engines for port in (each.port, each.spare_port) if port)
    if stack.proxy is not None and stack.proxy.port:
        ports += (stack.proxy.port,)
    kinds = {(each.kind, each.vllm, each.gpus, each.model): each for each in stack.engines}
    every = list(kinds.values())
    return [_needs(each, ports if each is every[0] else (), stack) for each in every]


def _needs(setting: EngineSetting, ports: tuple[int, ...], stack: Stack) -> Needs:
    is_vllm = setting.kind == "vllm"
    is_local = is_vllm and Path(setting.model).is_dir()
    return Needs(
        ports=ports,
        host=stack.proxy.host if stack.proxy is not None else setting.host,
        model=setting.model if is_vllm else None,
        disk_bytes=0 if is_local or not is_vllm else None,
        memory_bytes=TINY_BYTES if setting.kind == "tiny" else None,
        gpu=is_vllm and "VLLM_CPU_KVCACHE_SPACE" not in dict(setting.env),
        gpus=setting.gpus,
        vllm=None if setting.kind == "sim" else setting.vllm,
    )
