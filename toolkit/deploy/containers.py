"""One engine as the process of a container: its command line, how long it may finish what is under way, and what no container can do.

For compose and Kubernetes alike; nothing is rendered here.
"""

import re

from toolkit.deploy.flags import is_older, number, pairs, value
from toolkit.deploy.site import Site, SiteEngine
from toolkit.errors import ToolkitError
from toolkit.serving.flags import MEDIA, media_words

TOOLKIT_IMAGE = "llm-serving-toolkit:latest"
"""The image that is built from the Dockerfile that `deploy compose` writes."""
ANYWHERE = "0.0.0.0"  # noqa: S104 - inside the container; what is bound outside it the deployment says
DRAIN_S = 30
"""To finish what is under way, where no proxy says how long that may take."""
END_S = 30
"""From then on until the processes are gone; a vLLM at rest takes about 2 s."""
SHUTDOWN = "--shutdown-timeout"
SHUTDOWN_SINCE = "0.32"
"""The oldest version whose help was read that has it. Without it SIGTERM cuts every answer that is under way."""
MEDIA_SINCE = "0.11"
"""The first version that can be told from where it may fetch what requests name."""
CACHE = "/cache"
"""Of an engine: where its volumes are, with weights and compiled kernels."""
SHM_GIB = 2
"""Shared memory for each GPU, as vLLM's own Kubernetes sample has it; only what is used is taken."""
THERE = (f"{CACHE}/", "/dev/", "/proc/", "/tmp/", "/usr/")  # noqa: S108 - of a container
"""Every container has these of its own."""


def refuse_unfit(site: Site) -> None:
    """Raise a ToolkitError for an engine that no container can run."""
    for engine in site.engines:
        if engine.kind == "tiny":
            raise ToolkitError(
                f"the engine `{engine.name}` has the tiny model, which `toolkit serve` makes on the spot",
                'Name a model of Hugging Face, or a simulated one: `kind = "sim"`',
            )
        if "CUDA_VISIBLE_DEVICES" in dict(engine.env):
            raise ToolkitError(
                f"the engine `{engine.name}` sets CUDA_VISIBLE_DEVICES, and a container counts its GPUs anew from 0",
                'Write `gpus = "2,3"` instead',
            )


def is_directory(model: str) -> bool:
    """Whether a model is a place on a disk, and no name at Hugging Face."""
    return model.startswith(("/", "./", "../", "~"))


def fetches_weights(engine: SiteEngine) -> bool:
    """Whether its model comes from Hugging Face."""
    return engine.kind == "vllm" and not is_directory(engine.model)


def fetches_media(engine: SiteEngine, site: Site) -> bool:
    """Whether it may fetch what requests name: then it needs a way out."""
    is_let = bool(site.proxy and site.proxy.media_hosts)
    return engine.kind == "vllm" and (is_let or value(engine.arguments, MEDIA) is not None)


def command(engine: SiteEngine, site: Site) -> tuple[str, ...]:
    """What the container runs, all words."""
    at = ("--host", ANYWHERE, "--port", str(engine.port))
    if engine.kind == "sim":
        key = () if engine.key_env is None else ("--api-key-env", engine.key_env)
        sim = ("toolkit", "sim", "serve", "--personality", engine.model, *at)
        return (*sim, "--model", engine.served_name, *key)
    words = ["vllm", "serve", engine.model, *at]
    if engine.served_name != engine.model:
        words += ["--served-model-name", engine.served_name]
    words += engine.arguments
    if not is_older(site.image, MEDIA_SINCE):
        hosts = () if site.proxy is None else site.proxy.media_hosts
        words += media_words(engine.arguments, hosts)
    if not is_older(site.image, SHUTDOWN_SINCE) and value(engine.arguments, SHUTDOWN) is None:
        words += [SHUTDOWN, str(seconds_to_end(site))]
    return tuple(words)


def drain_s(engine: SiteEngine, site: Site) -> int:
    """How long it finishes what is under way once it is told to end; 0: it does not."""
    return number(command(engine, site), SHUTDOWN) or 0


def seconds_to_end(site: Site) -> int:
    """That an answer under way is given: as long as the proxy gives it, so that neither waits for the other in vain."""
    return DRAIN_S if site.proxy is None else max(1, round(site.proxy.drain_s))


def hang(site: Site) -> str:
    """What becomes of an engine that stands still and says that it is healthy."""
    left = "to end it is left to whoever hears the alert EngineStuck"
    if site.proxy is None:
        return f"{left}, or to `toolkit watchdog`, which asks it for a token"
    return f"the proxy asks it for a token, and then leaves it alone; {left}"


def last_steps(site: Site) -> list[str]:
    """What is not carried along: files that flags and variables name (weights go along), and flags of simulated engines."""
    steps: list[str] = []
    for engine in site.engines:
        flags = [(name, word) for name, word in pairs(engine.arguments) if name.startswith("-")]
        paths = [
            (name, path)
            for name, word in (*flags, *engine.env)
            # JSON's strings as well
            for path in ([word] if word.startswith("/") else re.findall(r'"(/[^"]+)"', word))
        ]
        steps += [
            f"If `{path}` (`{name}` of `{engine.name}`) lies on this machine, mount it into its container,"
            " which has nothing else of the disk"
            for name, path in paths
            if engine.kind == "vllm"
            and not path.startswith((*THERE, f"{engine.model}/"))
            and path != engine.model
        ]
    if any(engine.kind == "sim" for engine in site.engines):
        steps.append(
            "Simulated engines run with their personality alone: their `flags` are not carried along."
        )
    return steps
