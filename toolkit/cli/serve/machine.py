"""What a stack needs of this machine, asked before anything starts: keys, ports, a vLLM, and what preflight checks."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace

from toolkit.cli.ports import NOT_ALLOWED, TAKEN, why_taken
from toolkit.cli.preflight import with_model
from toolkit.cli.real_vllm import vllm_home
from toolkit.errors import ToolkitError
from toolkit.plan.catalog import model_of
from toolkit.proxy.config import Settings, admin_port
from toolkit.serving.engine_command import found
from toolkit.serving.preflight.check import Check, Needs
from toolkit.serving.preflight.checks import checks
from toolkit.serving.stack import KEY_VARIABLE, EngineSetting, Stack

UTILIZATION = Needs().gpu_memory_utilization
ON_CPU = "VLLM_CPU_KVCACHE_SPACE"
"""Whoever sets it has a vLLM for the CPU."""
TINY_BYTES = 2 * 2**30
"""1.6 GB of memory were measured for the tiny model with 1 GiB of KV cache."""


def check_keys(stack: Stack) -> None:
    """Raise for an engine's key that is missing, or that no header can carry. The keys are never printed."""
    for setting in stack.engines:
        if setting.key_env is None:
            # vLLM takes its own variable by itself, and would then answer neither us nor the proxy
            if setting.kind != "sim" and os.environ.get(KEY_VARIABLE):
                raise ToolkitError(
                    f"`{KEY_VARIABLE}` is set, so vLLM will want that key, and engine `{setting.name}` names none",
                    f'Write `key_env = "{KEY_VARIABLE}"` into a stack file, or `unset {KEY_VARIABLE}`',
                )
            continue
        key = os.environ.get(setting.key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ToolkitError(
                f"`{setting.key_env}`, the key of engine `{setting.name}`, is not set, or no header can carry it",
                f"`export {setting.key_env}=...`",
            )


# --- ports ---------------------------------------------------------------------------------------------


def is_free(host: str, port: int) -> bool:
    """Whether one can listen there. Raises ToolkitError for an address at which nobody can: each port would look taken."""
    refusal = why_taken(host, port)
    if refusal not in (None, TAKEN, NOT_ALLOWED):
        raise ToolkitError(f"nothing can listen on `{host}`: {refusal}", "E.g., `127.0.0.1`")
    return refusal is None


def refuse_taken(proxy: Settings) -> None:
    """Raise before the engines start, which takes minutes: the proxy opens its port only after."""
    for key, host, port in (
        ("port", proxy.host, proxy.port),
        ("admin_port", proxy.admin_host, admin_port(proxy)),
    ):
        refusal = why_taken(host, port) if port else None
        if refusal is None:
            continue
        if refusal == TAKEN:
            word = " with --port" if key == "port" else ""
            hint = f"End that, or choose another `{key}`{word}"
        else:
            hint = "Choose another `host`, or a port from 1024 on"
        raise ToolkitError(f"the proxy cannot listen on {host}:{port}: {refusal}", hint)


# --- vLLM ----------------------------------------------------------------------------------------------


def with_vllm(stack: Stack, command: str | None) -> tuple[Stack, list[ToolkitError]]:
    """Each engine with a vLLM that is there, and what is said of those for which there is none.

    The one that was named, the PATH's, else where install_vllm.sh puts it.
    """
    engines, missing = [], []
    for each in stack.engines:
        try:
            engines.append(_one_with_vllm(each, command))
        except ToolkitError as error:
            engines.append(each)
            missing.append(error)
    return replace(stack, engines=tuple(engines)), missing


def _one_with_vllm(setting: EngineSetting, command: str | None) -> EngineSetting:
    if setting.kind == "sim":
        return setting
    if command is not None:
        return replace(setting, vllm=str(found(command)))
    try:
        return replace(setting, vllm=str(found(setting.vllm)))
    except ToolkitError:
        if setting.kind != "tiny" or setting.vllm != "vllm":
            raise
    try:
        return replace(setting, vllm=str(vllm_home() / "bin" / "vllm"))
    except ToolkitError as error:
        raise ToolkitError(f"{error.message}, and none on the PATH", error.hint) from error


# --- preflight -----------------------------------------------------------------------------------------


async def refuse_unfit(stack: Stack, say: Callable[[str], None]) -> None:
    """Raise for what would fail; say what is doubtful, and what else fails."""
    found: dict[tuple[str, str], Check] = {}
    for needs in needs_of(stack):
        for each in await asyncio.to_thread(checks, needs):
            found[each.check, each.why] = each
    failed = [check for check in found.values() if check.status == "fail"]
    for check in [check for check in found.values() if check.status == "warn"] + failed[1:]:
        say(f"Preflight: {check.why}" + (f" Fix: {check.fix}" if check.fix else ""))
    if failed:
        raise ToolkitError(
            f"this machine is not fit: {failed[0].why.rstrip('.')}",
            failed[0].fix or "`toolkit preflight` shows more; --no-preflight starts anyway",
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
        # of a model that the planner does not know only the floor is checked
        return needs
    quantization = flags.get("quantization")
    return with_model(
        needs,
        known,
        quantization if isinstance(quantization, str) else None,
        round(_number(flags.get("tensor-parallel-size"), 1)),
    )


def _number(value: str | bool | None, usual: float) -> float:
    """A flag's number; what is none vLLM will refuse in its own words."""
    found = None
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = float(value)
    return usual if found is None or found <= 0 else found
