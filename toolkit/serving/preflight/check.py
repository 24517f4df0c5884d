"""What preflight is asked and what it answers: the needs of a server, and a row for each thing that was looked at."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Repair = Callable[[], tuple[bool, str]]
"""Mends without risk; whether it did, and what is to be said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a server asks of the machine; None: not known, then only the floor is checked."""

    ports: tuple[int, ...] = (8000,)
    host: str = "0.0.0.0"  # noqa: S104 (vLLM's own default; it is compared, never bound to for service)
    """The address that the ports will listen on."""
    users: int = 256
    """Clients at the same time."""
    model: str | None = None
    """A name at Hugging Face or a directory; its files are never offered for removal."""
    disk_bytes: int | None = None
    """Weights that still have to be downloaded; 0: they are there."""
    disk_path: str | None = None
    """Where they go; None: the Hugging Face cache."""
    memory_bytes: int | None = None
    """Of the machine's own memory, e.g., for a model that is served by the CPU."""
    gpu_bytes: int | None = None
    """Of the weights on each GPU."""
    gpu_memory_utilization: float = 0.92
    """The share of each GPU that vLLM asks for; its default since 0.20.0."""
    gpu: bool = True
    """Whether it is served by GPUs."""
    gpus: str | None = None
    """CUDA_VISIBLE_DEVICES of the engine; None: as inherited."""
    vllm: str | None = "vllm"
    """The command that starts vLLM; None: none is needed, as for the simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; the first four are the keys of `toolkit preflight --json`."""

    check: str
    """A stable code, e.g., `open_files`, `disk`, `port_8000`."""
    status: Literal["ok", "warn", "fail"]
    why: str
    """What was found, and why it matters, in one sentence."""
    fix: str | None = None
    """A command that can be pasted; None: nothing is wrong, or no command helps."""
    repair: Repair | None = field(default=None, compare=False)
    """What `--fix` does; None: the command is left to the user."""


def ok(check: str, why: str) -> Check:
    """Nothing to do."""
    return Check(check=check, status="ok", why=why)


def warn(check: str, why: str, fix: str | None = None, repair: Repair | None = None) -> Check:
    """It serves, but worse, or nobody can tell."""
    return Check(check=check, status="warn", why=why, fix=fix, repair=repair)


def fail(check: str, why: str, fix: str | None = None, repair: Repair | None = None) -> Check:
    """It does not serve, or breaks under load."""
    return Check(check=check, status="fail", why=why, fix=fix, repair=repair)


def as_root(command: str) -> str:
    """The command as this user can paste it."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def container() -> str | None:
    """What kind of container this is, by the marks that they leave; None: none was found."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if Path("/.dockerenv").exists():
        return "docker"
    return "podman" if Path("/run/.containerenv").exists() else None


def unless_contained(command: str, options: str = "") -> str | None:
    """The command as root; in a container, which it would not reach, how that is started instead. A pod has no such command."""
    kind = container()
    if kind is None:
        return as_root(command)
    return f"{kind} run {options}" if options and kind != "kubernetes" else None
