"""A real vLLM on the CPU for the demo, where `tests/real/install_vllm.sh` put one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.cli.children import LOOPBACK, answers, server, wait_until_up
from toolkit.cli.ports import free_port
from toolkit.errors import ToolkitError

NAME = "real"
MODEL = "tiny"
"""0.56 M parameters, made on the spot: 2 ms a token, and nonsense for answers."""
START_LIMIT_S = 240.0
"""Two cores take 21 to 55 s to `/health`, 97 s on the very first start while the system's caches are cold."""
FLAGS = (
    *("--max-model-len", "512", "--max-num-seqs", "16", "--enforce-eager"),
    *("--block-size", "32", "--num-gpu-blocks-override", "64"),
)


def vllm_home() -> Path:
    """Where it is installed. Raises ToolkitError."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(os.environ.get("TOOLKIT_VLLM_HOME") or Path(cache) / "toolkit" / "vllm-0.32.0")
    if not (home / "finished").is_file():
        raise ToolkitError(
            f"there is no real vLLM at `{home}`",
            "Install it in a checkout with `tests/real/install_vllm.sh` (2 minutes, 2 GB)",
        )
    return home


@contextlib.contextmanager
def real_host(home: Path, folder: Path) -> Iterator[str]:
    """Serve until the end of the block; a line of hosts.txt, once it is healthy."""
    port = free_port()
    words = [str(home / "bin" / "vllm"), "serve", str(home / "models" / MODEL)]
    words += ["--served-model-name", MODEL, "--host", LOOPBACK, "--port", str(port), *FLAGS]
    log, url = folder / "vllm.log", f"http://{LOOPBACK}:{port}"
    with server(words, folder, log, environment(folder)) as process:
        wait_until_up(
            process,
            "vLLM",
            log,
            lambda: answers(f"{url}/health"),
            limit_s=START_LIMIT_S,
            hint="Leave `--real` out; `--keep` leaves its log",
        )
        yield f"{NAME} {url}\n"


def environment(folder: Path) -> dict[str, str]:
    """What vLLM writes beside its own folder (caches, sockets, telemetry's files) goes into `folder`, and it calls nobody."""
    own = ("VLLM_", "XDG_", "HF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
