"""A stack as objects of Kubernetes: engines, proxy, who may reach whom, and how they are scaled. It opens nothing and asks no cluster."""

import hashlib
from collections.abc import Mapping

from toolkit.deploy import kubernetes_parts as parts
from toolkit.deploy.containers import (
    TOOLKIT_IMAGE,
    hang,
    left_behind,
    refuse_unfit,
    simulated,
)
from toolkit.deploy.keda import PROMETHEUS, scaling
from toolkit.deploy.proxy_config import STATE, ProxyFile, proxy_file, whole_file
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Kit, Rendered, Site, SiteProxy
from toolkit.deploy.templating import render
from toolkit.errors import ToolkitError

Engines = tuple[parts.KubernetesEngine, ...]
Templates = Mapping[str, str]
MOST = 4
"""Replicas of one engine, where scaling is applied."""


def kit(
    site: Site,
    templates: Templates,
    *,
    gpus_per_node: int | None = None,
    toolkit_image: str = TOOLKIT_IMAGE,
    prometheus: str = PROMETHEUS,
    most: int = MOST,
) -> Kit:
    """The files of `toolkit deploy k8s`. Raises ToolkitError for a stack that no cluster can run.

    `gpus_per_node`: an engine that takes more spans several nodes; None: every engine fits on one. `most`: replicas of each engine.
    """
    refuse_unfit(site)
    if most < 1 or (gpus_per_node is not None and gpus_per_node < 1):
        raise ToolkitError("a number of GPUs or replicas is less than 1", "Write 1 or more")
    names = parts.names(site)
    engines = parts.engines(site, names, gpus_per_node)
    proxy = _proxy_file(site, engines)
    files = [_engine(site, each, templates, names.secret, toolkit_image) for each in engines]
    files.append(_disruption(site, names, templates))
    if site.proxy is not None and proxy is not None:
        files.append(_proxy(site, site.proxy, proxy, names, templates, toolkit_image))
    files.append(_network(site, engines, names, templates))
    files += scaling(
        site,
        engines,
        templates,
        prometheus=prometheus,
        most=most,
        slots=None if proxy is None else proxy.slots,
    )
    return Kit(files=tuple(files), next_steps=_next_steps(site, engines, names))


def _proxy_file(site: Site, engines: Engines) -> ProxyFile | None:
    if site.proxy is None:
        return None
    urls = {
        each.name: f"http://{found.service}:{found.port}"
        for each, found in zip(site.engines, engines, strict=True)
    }
    return proxy_file(site, site.proxy, urls)


def _engine(
    site: Site,
    engine: parts.KubernetesEngine,
    templates: Templates,
    secret: Plain,
    toolkit_image: str,
) -> Rendered:
    pods = {
        role.name: render(
            templates["k8s/pod.yaml.j2"],
            language="yaml",
            engine=engine,
            role=role,
            secret=secret,
            image=site.image,
            toolkit_image=toolkit_image,
            home=parts.HOME,
            probe_s=parts.PROBE_S,
            hang=hang(site),
            label=Plain,
        ).rstrip("\n")
        for role in engine.roles
    }
    text = render(
        templates["k8s/engine.yaml.j2"],
        language="yaml",
        site=site,
        engine=engine,
        pods=pods,
        label=Plain,
    )
    return Rendered(path=f"engine-{engine.name}.yaml", text=text)


def _proxy(
    site: Site,
    proxy: SiteProxy,
    file: ProxyFile,
    names: parts.Names,
    templates: Templates,
    toolkit_image: str,
) -> Rendered:
    settings = whole_file(site, file, templates)
    text = render(
        templates["k8s/proxy.yaml.j2"],
        language="yaml",
        site=site,
        proxy=proxy,
        name=names.proxy,
        settings=settings.rstrip("\n") + "\n",
        settings_sum=hashlib.sha256(settings.encode()).hexdigest(),
        has_redis=proxy.redis_env is not None,
        has_public_metrics=file.has_public_metrics,
        variables=parts.proxy_variables(proxy),
        secret=names.secret,
        toolkit_image=toolkit_image,
        state=STATE,
        grace_s=parts.proxy_grace_s(site),
        leaving_s=parts.LEAVING_S,
        label=Plain,
    )
    return Rendered(path="proxy.yaml", text=text)


def _disruption(site: Site, names: parts.Names, templates: Templates) -> Rendered:
    template = templates["k8s/disruption.yaml.j2"]
    text = render(template, language="yaml", site=site, name=names.engines)
    return Rendered(path="disruption.yaml", text=text)


def _network(site: Site, engines: Engines, names: parts.Names, templates: Templates) -> Rendered:
    text = render(
        templates["k8s/network.yaml.j2"],
        language="yaml",
        site=site,
        proxy=site.proxy,
        proxy_name=names.proxy,
        engines=engines,
        engines_name=names.engines,
        ports=sorted({each.port for each in engines}),
        master_port=parts.MASTER_PORT,
    )
    return Rendered(path="network.yaml", text=text)


def _next_steps(site: Site, engines: Engines, names: parts.Names) -> tuple[str, ...]:
    steps = [*_secret_steps(site.variables, engines, names.secret)]
    if site.proxy is not None or any(each.is_simulated for each in engines):
        steps.append(
            "Build the toolkit's image (`toolkit deploy compose` writes its Dockerfile), push it, and name it with --toolkit-image."
        )
    # not recursive: scaling/ is applied when it is wanted
    steps.append("kubectl apply -f .    # in the folder of these files; scaling/ is left out")
    waiting = (
        "deployment,leaderworkerset" if any(each.nodes > 1 for each in engines) else "deployment"
    )
    steps.append(f"kubectl get {waiting},pods -l app.kubernetes.io/part-of={site.name}")
    if site.proxy is not None:
        steps.append(f"kubectl port-forward service/{names.proxy} {site.proxy.port}")
    else:
        steps += [f"kubectl port-forward service/{each.service} {each.port}" for each in engines]
    if site.is_open:
        steps.append(
            f"--listen {site.listen} opens nothing here: Services stay inside the cluster until an Ingress or Gateway leads to one."
        )
        steps += site.keyless
    return (*steps, *left_behind(site), *simulated(site))


def _secret_steps(keys: tuple[str, ...], engines: Engines, secret: str) -> tuple[str, ...]:
    create = f"kubectl create secret generic {secret} --from-env-file=keys.env"
    if keys:
        told = ", ".join(f"{name}=..." for name in keys)
        write = f"Write {told} (and HF_TOKEN=... for a gated model) into keys.env, which is no file to commit."
        return write, create
    if all(each.is_simulated for each in engines):
        return ()
    return (f"Only for a gated model: write HF_TOKEN=... into keys.env, and `{create}`",)
