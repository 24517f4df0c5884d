"""A stack as containers on one machine: compose.yaml, the proxy's image and settings. It starts nothing."""

import hashlib
import json
from typing import Any

from toolkit.deploy.containers import (
    CACHE,
    END_S,
    SHM_GIB,
    TOOLKIT_IMAGE,
    command,
    drain_s,
    fetches_media,
    fetches_weights,
    hang,
    is_directory,
    last_steps,
    refuse_unfit,
    seconds_to_end,
)
from toolkit.deploy.flags import value
from toolkit.deploy.proxy_config import STATE, proxy_file
from toolkit.deploy.render import Kit, Plain, Rendered, address, render, unlike
from toolkit.deploy.site import Site, SiteEngine
from toolkit.errors import ToolkitError

REDIS_ADDRESS = "redis://redis:6379/0"
LOOPBACK = "127.0.0.1"
FETCH = (
    "import sys; from huggingface_hub import snapshot_download as fetch; "
    "[fetch(word.partition('@')[0], revision=word.partition('@')[2] or None, "
    "ignore_patterns=['original/*', '*.pth', '*.gguf']) for word in sys.argv[1:]]"
)
"""Models' whole repositories, but for second copies of the weights in forms that vLLM does not load by a repository's name."""


def kit(site: Site, *, toolkit_image: str = TOOLKIT_IMAGE) -> Kit:
    """The files of `toolkit deploy compose`. Raises ToolkitError for a stack that containers can't run."""
    refuse_unfit(site)
    real = [each for each in site.engines if each.kind == "vllm"]
    loose = [each.name for each in real if not each.gpus]
    if len(real) > 1 and loose:
        # `count: 1` is the first GPU, for each service that says so
        raise ToolkitError(
            f"the engine `{loose[0]}` names no GPU, and several that don't would all get the first one",
            'Write `gpus = "0"` and so on; engines that share one name the same',
        )
    # services of our own have these names
    taken = ("proxy", "redis", "weights")
    names = unlike((*taken, *(each.name for each in site.engines)))[len(taken) :]
    proxy, settings = site.proxy, ""
    if proxy is not None:
        urls = [
            f"http://{name}:{each.port}" for name, each in zip(names, site.engines, strict=True)
        ]
        settings = proxy_file(site, proxy, urls).text
    environment = [_passed(name) for name in proxy.key_envs] if proxy else []
    if site.redis_env is not None:
        environment.append(Plain(f'"{site.redis_env}=${{{site.redis_env}:-{REDIS_ADDRESS}}}"'))
    services = render(
        "compose/compose.yaml.j2",
        "compose",
        site=site,
        engines=list(map(_service, site.engines, names, [site] * len(names))),
        proxy=proxy,
        proxy_environment=environment,
        redis_env=site.redis_env,
        proxy_health=_health(proxy.port, "/ping") if proxy else None,
        settings_sum=hashlib.sha256(settings.encode()).hexdigest(),
        proxy_stop_s=seconds_to_end(site) + END_S,
        # what clients reach; engines behind the proxy are for this machine alone
        engine_address=LOOPBACK if proxy else site.listen,
        redis_image="redis:7.4-alpine",
        state=STATE,
        toolkit_image=toolkit_image,
        hang=hang(site),
        fetch=FETCH,
    )
    example = render(
        "compose/env.example.j2",
        "shell",
        variables=[Plain(name) for name in site.key_envs],
        redis_env=site.redis_env and Plain(site.redis_env),
        redis_address=Plain(REDIS_ADDRESS),
        has_engines=bool(real),
    )
    files = [
        Rendered(path="compose.yaml", text=services),
        Rendered(path=".env.example", text=example),
    ]
    has_image = proxy is not None or len(real) < len(names)
    if has_image:
        extra = Plain("[redis]" if site.redis_env else "")
        for path, template in (
            ("Dockerfile", "Dockerfile.j2"),
            ("constraints.txt", "constraints.txt"),
            ("wheels/README.txt", "wheels.txt.j2"),
        ):
            text = render(f"compose/{template}", "shell", extra=extra, state=Plain(STATE))
            files.append(Rendered(path=f"proxy/{path}", text=text))
    if settings:
        files.append(Rendered(path="proxy/proxy.toml", text=settings))
    return Kit(files=tuple(files), next_steps=_next_steps(site, has_image=has_image))


def _service(engine: SiteEngine, name: str, site: Site) -> dict[str, Any]:
    """What the template is told of one engine."""
    is_simulated = engine.kind == "sim"
    words, environment = command(engine, site), [f"{name}={value}" for name, value in engine.env]
    fetched = weights = None
    if is_simulated:
        environment += [_passed(engine.key_env)] if engine.key_env else []
    else:
        # what stands behind `vllm serve`
        words, told = words[2:], dict(engine.env)
        usual = {"HF_HOME": f"{CACHE}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE}/vllm"}
        if fetches_weights(engine):
            # the engine has no way out; a model that is not there is to be an error at once, not after minutes of tries
            usual["HF_HUB_OFFLINE"] = "1"
            revision = value(engine.arguments, "--revision")
            fetched = f"{engine.model}@{revision}" if revision else engine.model
        # only where the stack does not say: its own words come last and hold
        places = [f"{name}={value}" for name, value in usual.items() if name not in told]
        environment = [*places, "HF_TOKEN", *environment]
        if engine.key_env is not None:
            # in the variable in which vLLM looks for it; on the command line every user of the machine could read it
            environment.append(_passed(engine.key_env, "VLLM_API_KEY"))
        if is_directory(engine.model):
            weights = engine.model
            if not weights.startswith("/"):
                raise ToolkitError(
                    f"the model `{weights}` of `{engine.name}` lies beside the stack file, not beside the compose file",
                    "Write its whole path, e.g., `/srv/models/qwen`",
                )
    return {
        "name": Plain(name),
        "title": engine.model,
        "is_simulated": is_simulated,
        "words": words,
        "port": engine.port,
        "environment": environment,
        "device_ids": engine.gpus,
        "gpu_count": engine.gpu_count,
        "shm_gib": SHM_GIB * max(1, engine.gpu_count),
        "weights": weights,
        "fetched": fetched,
        "has_way_out": fetches_media(engine, site),
        "health": _health(engine.port, "/health"),
        "start_s": round(engine.ready_s),
        "stop_s": drain_s(engine, site) + END_S,
    }


def _health(port: int, path: str) -> str:
    """A line of Python that fails where a page does not answer: both images have Python, neither surely has curl."""
    return f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"


def _passed(variable: str, name: str | None = None) -> Plain:
    """A variable handed on from the shell or `.env`, under another name perhaps; compose refuses to start without it."""
    told = f"${{{variable}:?set it in the shell or in .env}}"
    return Plain(json.dumps(f"{name or variable}={told}"))


def _next_steps(site: Site, *, has_image: bool) -> tuple[str, ...]:
    steps = []
    if has_image:
        steps.append("Put the toolkit's wheel into proxy/wheels/, as proxy/wheels/README.txt says.")
    if site.key_envs:
        steps.append(
            f"Set {', '.join(site.key_envs)} in the shell, or in a .env like .env.example."
        )
    if any(fetches_weights(each) for each in site.engines):
        steps.append(
            "docker compose run --rm weights    # fetches the models: the engines themselves have no way out"
        )
    waits = "" if site.proxy is None else "; the proxy waits for that"
    steps += [
        "docker compose config --quiet && docker compose up --detach --build",
        f"docker compose ps    # `healthy` once the weights are loaded{waits}",
    ]
    host = site.asked_at if site.proxy is None else LOOPBACK
    for engine in site.engines:
        # `serve` warms engines by itself; containers don't
        url = f"http://{address(host, engine.port)}"
        if engine.kind == "vllm" and engine.key_env is None:
            steps.append(f"toolkit warmup {url}")
        elif engine.kind == "vllm":
            steps.append(
                f"echo '{engine.name} {url} api_key_env={engine.key_env}' | toolkit warmup -"
            )
    return (*steps, *(site.keyless if site.is_open else ()), *last_steps(site))
