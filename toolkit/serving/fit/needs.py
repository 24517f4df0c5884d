"""What a stack asks of the machine that is to serve it: plain numbers, and how users become open files. Pure."""

from dataclasses import dataclass

USERS = 256
"""Clients at the same time, where nobody said how many."""
FILES_A_USER = 2
"""A client's connection and the engine's: both are the proxy's, which is one process."""
OTHER_FILES = 1024
"""Libraries, logs, the database, workers' pipes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is asked of the machine; None: not known, then only the floor is checked."""

    ports: tuple[int, ...] = (8000,)
    host: str = "0.0.0.0"  # noqa: S104 (vLLM's own default; it is compared, never bound to for service)
    """The address that the ports will listen on."""
    users: int = USERS
    open_files: int | None = None
    """None: worked out from the users."""
    model: str | None = None
    """A name at Hugging Face or a directory: its files are no rubbish."""
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


def open_files(needs: Needs) -> int:
    """How many files one process holds open at the most: 256 users are 2 x 256 + 1,024 = 1,536."""
    if needs.open_files is not None:
        return needs.open_files
    return FILES_A_USER * needs.users + OTHER_FILES
