"""A stack as containers on one machine: compose.yaml, the proxy's image and settings. It opens nothing and starts nothing."""

import hashlib
from collections.abc import Mapping

from toolkit.deploy import compose_parts as parts
from toolkit.deploy.containers import (
    TOOLKIT_IMAGE,
    fetches_weights,
    hang,
    left_behind,
    refuse_unfit,
    simulated,
)
from toolkit.deploy.names import address
from toolkit.deploy.proxy_config import STATE, ProxyFile, proxy_file, whole_file
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Kit, Rendered, Site, SiteEngine
from toolkit.deploy.templating import render

PROXY_FILE = "proxy/proxy.toml"
REDIS_IMAGE = "redis:7.4-alpine"
REDIS_ADDRESS = "redis://redis:6379/0"
LOOPBACK = "127.0.0.1"
FETCH = (
    "import sys; from huggingface_hub import snapshot_download as fetch; "
    "[fetch(word.partition('@')[0], revision=word.partition('@')[2] or None, "
    "ignore_patterns=['original/*', '*.pth', '*.gguf']) for word in sys.argv[1:]]"
)
"""Models' whole repositories, but for second copies of the weights in forms that vLLM does not load by a repository's name."""


def kit(site: Site, templates: Mapping[str, str], *, toolkit_image: str = TOOLKIT_IMAGE) -> Kit:
    """The files of `toolkit deploy compose`. Raises ToolkitError for a stack that containers can't run."""
    refuse_unfit(site)
    engines = parts.services(site)
    proxy = _proxy_file(site, engines)
    settings = "" if proxy is None else whole_file(site, proxy, templates)
    files = [
        _services(site, engines, settings, templates, toolkit_image),
        _example(site, engines, templates),
    ]
    has_image = site.proxy is not None or any(each.is_simulated for each in engines)
    if has_image:
        files += _image(templates, has_redis=site.redis_env is not None)
    if settings:
        files.append(Rendered(path=PROXY_FILE, text=settings))
    return Kit(files=tuple(files), next_steps=_next_steps(site, has_image=has_image))


def _services(
    site: Site,
    engines: tuple[parts.ComposeEngine, ...],
    settings: str,
    templates: Mapping[str, str],
    toolkit_image: str,
) -> Rendered:
    text = render(
        templates["compose/compose.yaml.j2"],
        language="compose",
        site=site,
        engines=engines,
        proxy=site.proxy,
        proxy_environment=_proxy_environment(site),
        proxy_health=None if site.proxy is None else parts.health(site.proxy.port, "/ping"),
        settings_sum=hashlib.sha256(settings.encode()).hexdigest(),
        proxy_stop_s=parts.proxy_stop_s(site),
        # what clients reach; engines behind the proxy are for this machine alone
        engine_address=site.listen if site.proxy is None else LOOPBACK,
        redis_env=site.redis_env,
        redis_image=REDIS_IMAGE,
        state=STATE,
        toolkit_image=toolkit_image,
        hang=hang(site),
        fetch=FETCH,
        label=Plain,
    )
    return Rendered(path="compose.yaml", text=text)


def _example(
    site: Site,
    engines: tuple[parts.ComposeEngine, ...],
    templates: Mapping[str, str],
) -> Rendered:
    text = render(
        templates["compose/env.example.j2"],
        language="shell",
        variables=[Plain(name) for name in site.key_envs],
        redis_env=None if site.redis_env is None else Plain(site.redis_env),
        redis_address=Plain(REDIS_ADDRESS),
        has_engines=any(not each.is_simulated for each in engines),
    )
    return Rendered(path=".env.example", text=text)


def _proxy_file(site: Site, engines: tuple[parts.ComposeEngine, ...]) -> ProxyFile | None:
    if site.proxy is None:
        return None
    urls = {
        engine.name: f"http://{service.name}:{engine.port}"
        for engine, service in zip(site.engines, engines, strict=True)
    }
    return proxy_file(site, site.proxy, urls)


def _image(templates: Mapping[str, str], *, has_redis: bool) -> list[Rendered]:
    extra = Plain("[redis]" if has_redis else "")
    dockerfile = render(
        templates["compose/Dockerfile.j2"],
        language="shell",
        extra=extra,
        example=Plain(f"llm-serving-toolkit{extra}==0.1.0"),
        state=Plain(STATE),
    )
    return [
        Rendered(path="proxy/Dockerfile", text=dockerfile),
        Rendered(path="proxy/constraints.txt", text=templates["compose/constraints.txt"]),
        Rendered(path="proxy/wheels/README.txt", text=templates["compose/wheels.txt.j2"]),
    ]


def _proxy_environment(site: Site) -> tuple[Plain, ...]:
    if site.proxy is None:
        return ()
    keys = tuple(parts.passed(name) for name in site.proxy.key_envs)
    if site.redis_env is None:
        return keys
    return (*keys, Plain(f'"{site.redis_env}=${{{site.redis_env}:-{REDIS_ADDRESS}}}"'))


def _next_steps(site: Site, *, has_image: bool) -> tuple[str, ...]:
    steps = []
    waits = "" if site.proxy is None else "; the proxy waits for that"
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
    steps += [
        "docker compose config --quiet && docker compose up --detach --build",
        f"docker compose ps    # `healthy` once the weights are loaded{waits}",
        *_warm(site),
    ]
    if site.is_open:
        steps += site.keyless
    return (*steps, *left_behind(site), *simulated(site))


def _warm(site: Site) -> list[str]:
    """`serve` warms engines by itself; containers don't."""
    host = site.asked_at if site.proxy is None else LOOPBACK
    return [
        _warm_up(each, f"http://{address(host, each.port)}")
        for each in site.engines
        if each.kind == "vllm"
    ]


def _warm_up(engine: SiteEngine, url: str) -> str:
    if engine.key_env is None:
        return f"toolkit warmup {url}"
    return f"echo '{engine.name} {url} api_key_env={engine.key_env}' | toolkit warmup -"
