"""What a compose file says of each engine and of the proxy, as plain values for the template. Nothing is rendered here."""

import json
from dataclasses import dataclass

from toolkit.deploy.containers import (
    CACHE,
    END_S,
    SHM_GIB,
    command,
    drain_s,
    fetches_media,
    fetches_weights,
    is_directory,
    seconds_to_end,
)
from toolkit.deploy.engine_flags import value
from toolkit.deploy.names import unlike
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Site, SiteEngine
from toolkit.errors import ToolkitError

OWN_SERVICES = ("proxy", "redis", "weights")
_HEALTH = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"  # on loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeEngine:
    """One service."""

    name: Plain
    """The service's, a DNS label, and so its host name for the others."""
    title: str
    is_simulated: bool
    words: tuple[str, ...]
    """What stands behind `vllm serve`; of a simulated one the whole command."""
    port: int
    environment: tuple[object, ...]
    """`KEY=VALUE`, or `KEY` alone: as the shell has it."""
    device_ids: tuple[str, ...]
    gpu_count: int
    shm_gib: int
    weights: str | None
    """A directory of this machine that holds the model."""
    fetched: str | None
    """What `weights` fetches for it: `MODEL`, or `MODEL@REVISION`."""
    has_way_out: bool
    """It fetches what requests name."""
    health: str
    start_s: int
    stop_s: int


def services(site: Site) -> tuple[ComposeEngine, ...]:
    """One for each engine, with names that the proxy and Redis leave free. Raises ToolkitError."""
    _refuse_shared_by_chance(site)
    names = unlike((*OWN_SERVICES, *(each.name for each in site.engines)))[len(OWN_SERVICES) :]
    return tuple(
        _service(engine, name, site) for engine, name in zip(site.engines, names, strict=True)
    )


def _service(engine: SiteEngine, name: str, site: Site) -> ComposeEngine:
    is_simulated = engine.kind == "sim"
    words = command(engine, site)
    return ComposeEngine(
        name=Plain(name),
        title=engine.model,
        is_simulated=is_simulated,
        words=words if is_simulated else words[2:],
        port=engine.port,
        environment=_environment(engine),
        device_ids=engine.gpus,
        gpu_count=engine.gpu_count,
        shm_gib=SHM_GIB * max(1, engine.gpu_count),
        weights=_weights(engine),
        fetched=_fetched(engine),
        has_way_out=fetches_media(engine, site),
        health=health(engine.port, "/health"),
        start_s=round(engine.ready_s),
        stop_s=drain_s(engine, site) + END_S,
    )


def proxy_stop_s(site: Site) -> int:
    """As long as the proxy may take to end."""
    return seconds_to_end(site) + END_S


def health(port: int, path: str) -> str:
    """A line of Python that fails where a page does not answer: both images have Python, neither surely has curl."""
    return _HEALTH.format(port=port, path=path)


def passed(variable: str, name: str | None = None) -> Plain:
    """A variable handed on from the shell or `.env`, under another name perhaps; compose refuses to start without it."""
    told = f"${{{variable}:?set it in the shell or in .env}}"
    return Plain(json.dumps(f"{name or variable}={told}"))


def _environment(engine: SiteEngine) -> tuple[object, ...]:
    own = [f"{name}={value}" for name, value in engine.env]
    if engine.kind == "sim":
        return (*own, *([] if engine.key_env is None else [passed(engine.key_env)]))
    # only where the stack does not say: its own words come last and hold
    usual = {"HF_HOME": f"{CACHE}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE}/vllm"}
    told = dict(engine.env)
    places = [f"{name}={value}" for name, value in usual.items() if name not in told]
    # the engine has no way out; a model that is not there is to be an error at once, not after minutes of tries
    if fetches_weights(engine) and "HF_HUB_OFFLINE" not in told:
        places.append("HF_HUB_OFFLINE=1")
    # in the variable in which vLLM looks for it; on the command line every user of the machine could read it
    key = [] if engine.key_env is None else [passed(engine.key_env, "VLLM_API_KEY")]
    return (*places, "HF_TOKEN", *own, *key)


def _fetched(engine: SiteEngine) -> str | None:
    if not fetches_weights(engine):
        return None
    revision = value(engine.arguments, "--revision")
    return f"{engine.model}@{revision}" if revision else engine.model


def _weights(engine: SiteEngine) -> str | None:
    if engine.kind == "sim" or not is_directory(engine.model):
        return None
    if not engine.model.startswith("/"):
        raise ToolkitError(
            f"the model `{engine.model}` of `{engine.name}` lies beside the stack file, not beside the compose file",
            "Write its whole path, e.g., `/srv/models/qwen`",
        )
    return engine.model


def _refuse_shared_by_chance(site: Site) -> None:
    """`count: 1` is the first GPU, for each service that says so."""
    real = [each for each in site.engines if each.kind == "vllm"]
    loose = [each.name for each in real if not each.gpus]
    if len(real) > 1 and loose:
        raise ToolkitError(
            f"the engine `{loose[0]}` names no GPU, and several that don't would all get the first one",
            'Write `gpus = "0"` and so on; engines that share one name the same',
        )
