"""All checks of a machine, in the order in which a start would stumble over what they find."""

from toolkit.serving.preflight import disk, gpu, memory, port, shared_memory, system, vllm
from toolkit.serving.preflight.check import Check, Needs


def checks(needs: Needs) -> tuple[Check, ...]:
    """Look at everything; it takes as long as vLLM's Python needs to start, and a second or two for full disks."""
    engine = None if needs.vllm is None else vllm.installed(needs.vllm)
    with gpu.opened(needs.gpus) as found:
        # a vLLM server is its front end, its engine core and a worker for each GPU
        processes = 2 + (max(1, len(gpu.visible(found))) if needs.gpu else 1)
        return (
            system.open_files(needs.users),
            *disk.checks(needs),
            *memory.checks(needs.memory_bytes),
            *shared_memory.checks(),
            *port.checks(needs),
            *gpu.checks(needs, found, engine),
            *vllm.checks(needs, engine, found.cuda, has_gpu=bool(found.gpus)),
            *system.cpu_checks(needs, processes),
            system.clock(),
        )
