"""A stack as objects of Kubernetes: engines, proxy, who may reach whom, and how they are scaled. It asks no cluster."""

import hashlib
import math
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
from toolkit.deploy.flags import USUAL_MAX_NUM_SEQS, is_older, number, version_of
from toolkit.deploy.keda import PROMETHEUS, scaling
from toolkit.deploy.proxy_config import STATE, proxy_file
from toolkit.deploy.render import Kit, Plain, Rendered, render, unlike
from toolkit.deploy.site import Site, SiteEngine
from toolkit.errors import ToolkitError

LONGEST_NAME = 46
"""Of a Deployment or a group: their pods' names and labels add up to 17 characters, and 63 is the end."""
HOME = CACHE
"""Where the claim is mounted: the home of the container's user, so that every cache lies there."""
PROBE_S = 10
LEAVING_S = 15
"""From the moment that a pod is to end until nobody sends it anything new: endpoints hear of it in turn."""
MASTER_PORT = 29501
"""vLLM's own default; named, as it must be open between the pods."""
NODES_SINCE = "0.32"
"""The oldest version whose help was read that has `--nnodes`."""


def kit(
    site: Site,
    *,
    gpus_per_node: int | None = None,
    toolkit_image: str = TOOLKIT_IMAGE,
    prometheus: str = PROMETHEUS,
    replicas: int = 4,
) -> Kit:
    """The files of `toolkit deploy k8s`. Raises ToolkitError for a stack that no cluster can run.

    `gpus_per_node`: an engine that takes more spans several nodes; None: every engine fits on one. `replicas`: most of each engine,
    where scaling is applied.
    """
    refuse_unfit(site)
    # names that are unlike each other, in a namespace that others use, too
    words = ("proxy", "engines", "keys", *(each.name for each in site.engines))
    names = unlike((f"{site.name}-{word}" for word in words), LONGEST_NAME)
    proxy_name, engines_name, secret = map(Plain, names[:3])
    # LeaderWorkerSet makes a Service with the engine's own name, for its pods among themselves: the one that is asked has another
    leaders = unlike((*names, *(f"{name}-leader" for name in names[3:])))[len(names) :]
    engines = [
        _engine(each, name, leader, site, gpus_per_node)
        for each, name, leader in zip(site.engines, names[3:], leaders, strict=True)
    ]
    values = {
        "site": site,
        "proxy": site.proxy,
        "engines": engines,
        "secret": secret,
        "proxy_name": proxy_name,
        "engines_name": engines_name,
        "image": site.image,
        "toolkit_image": toolkit_image,
        "home": HOME,
        "probe_s": PROBE_S,
        "hang": hang(site),
        "ports": sorted({each["port"] for each in engines}),
        "master_port": MASTER_PORT,
    }

    def written(name: str, path: str, **more: Any) -> Rendered:
        return Rendered(path=path, text=render(f"k8s/{name}.yaml.j2", "yaml", **values, **more))

    files = [written("engine", f"engine-{each['name']}.yaml", engine=each) for each in engines]
    files.append(written("disruption", "disruption.yaml"))
    slots = None
    if site.proxy is not None:
        settings = proxy_file(
            site, site.proxy, [f"http://{each['service']}:{each['port']}" for each in engines]
        )
        slots, redis_env = settings.slots, site.proxy.redis_env
        more = {
            "settings": settings.text,
            "settings_sum": hashlib.sha256(settings.text.encode()).hexdigest(),
            "has_redis": redis_env is not None,
            "has_public_metrics": settings.has_public_metrics,
            "variables": [Plain(name) for name in (*site.proxy.key_envs, redis_env) if name],
            "state": STATE,
            "grace_s": LEAVING_S + seconds_to_end(site) + END_S,
            "leaving_s": LEAVING_S,
        }
        files.append(written("proxy", "proxy.yaml", **more))
    files.append(written("network", "network.yaml"))
    files += scaling(site, engines, prometheus=prometheus, replicas=replicas, slots=slots)
    return Kit(files=tuple(files), next_steps=_next_steps(site, engines, proxy_name, secret))


def _engine(
    engine: SiteEngine, name: str, leader: str, site: Site, gpus_per_node: int | None
) -> dict[str, Any]:
    """What the templates are told of one engine and its pods."""
    is_simulated = engine.kind == "sim"
    if not is_simulated and is_directory(engine.model) and not engine.model.startswith(f"{HOME}/"):
        raise ToolkitError(
            f"the model `{engine.model}` of `{engine.name}` is a directory of this machine, which nodes don't have",
            f"Name one of Hugging Face's, or copy it to the engine's claim and write `{HOME}/NAME`",
        )
    nodes = 1 if is_simulated else _nodes(engine, site, gpus_per_node)
    gpus_each = engine.gpu_count // nodes
    drain = drain_s(engine, site)
    weights = "weights, of Hugging Face" if fetches_weights(engine) else None
    media = "what requests name" if fetches_media(engine, site) else None
    # Kubernetes puts variables where `$(NAME)` stands, and reads `$$` as `$`
    words = [word.replace("$", "$$") for word in command(engine, site)]
    variables: list[dict[str, Any]] = [
        {"name": Plain(name), "value": value.replace("$", "$$")} for name, value in engine.env
    ]
    if not is_simulated:
        told = dict(engine.env)
        # without an entry in the image's passwd, torch asks these two for the user's name and fails without
        usual = {"HOME": HOME, "USER": "vllm", "LOGNAME": "vllm"}
        places = [
            {"name": Plain(name), "value": value}
            for name, value in usual.items()
            if name not in told
        ]
        token = {"name": Plain("HF_TOKEN"), "secret_key": Plain("HF_TOKEN"), "is_optional": True}
        variables = [*places, token, *variables]
    if engine.key_env is not None:
        key = engine.key_env if is_simulated else "VLLM_API_KEY"
        variables.append(
            {"name": Plain(key), "secret_key": Plain(engine.key_env), "is_optional": False}
        )
    role = {"name": "engine", "words": words, "variables": variables, "answers": True}
    roles = [role | {"leaving_s": LEAVING_S}]
    if nodes > 1:
        # the address that the others reach; the one that it would pick itself may be another network's
        variables.append({"name": Plain("VLLM_HOST_IP"), "field": "status.podIP"})
        rank = {
            "name": Plain("NODE_RANK"),
            "field": "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']",
        }
        # LeaderWorkerSet sets the leader's address in every pod
        at = ("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(MASTER_PORT))
        place = (*words, "--nnodes", str(nodes), "--node-rank")
        roles = [
            role | {"name": "leader", "words": (*place, "0", *at), "leaving_s": LEAVING_S},
            {
                "name": "worker",
                "words": (*place, "$(NODE_RANK)", *at, "--headless"),
                "variables": [*variables, rank],
                # it has no HTTP port, and computes what the leader still answers
                "answers": False,
                "leaving_s": LEAVING_S + drain,
            },
        ]
    return {
        "name": Plain(name),
        "service": Plain(name if nodes == 1 else leader),
        "title": engine.model,
        "served_name": engine.served_name,
        "is_simulated": is_simulated,
        # what it asks of the world
        "way_out": " and ".join(filter(None, (weights, media))),
        "port": engine.port,
        "nodes": nodes,
        "gpus_each": gpus_each,
        "shm_gib": SHM_GIB * max(1, gpus_each),
        "roles": roles,
        "starts": max(1, math.ceil(engine.ready_s / PROBE_S)),
        "ready_s": math.ceil(engine.ready_s),
        "grace_s": LEAVING_S + drain + END_S,
        # requests that it runs at a time
        "seqs": number(engine.arguments, "--max-num-seqs") or USUAL_MAX_NUM_SEQS,
    }


def _nodes(engine: SiteEngine, site: Site, gpus_per_node: int | None) -> int:
    if gpus_per_node is None or engine.gpu_count <= gpus_per_node:
        return 1
    if engine.gpu_count % gpus_per_node:
        raise ToolkitError(
            f"the engine `{engine.name}` takes {engine.gpu_count} GPUs, and nodes have {gpus_per_node} each:"
            " vLLM wants as many on every node",
            f"Let tensor- times pipeline-parallel-size be a multiple of {gpus_per_node}",
        )
    if (number(engine.arguments, "--data-parallel-size", "-dp") or 1) > 1:
        raise ToolkitError(
            f"the engine `{engine.name}` spans nodes with several copies of its model (data-parallel-size)",
            "Make each copy an engine of its own; the proxy spreads requests over them",
        )
    if is_older(site.image, NODES_SINCE):
        raise ToolkitError(
            f"the engine `{engine.name}` spans nodes, and whether vLLM {version_of(site.image)} can is not known",
            f"Name an --image of {NODES_SINCE} or newer",
        )
    return engine.gpu_count // gpus_per_node


def _next_steps(
    site: Site, engines: list[dict[str, Any]], proxy_name: str, secret: str
) -> tuple[str, ...]:
    create = f"kubectl create secret generic {secret} --from-env-file=keys.env"
    steps = []
    if site.variables:
        told = ", ".join(f"{name}=..." for name in site.variables)
        steps += [
            f"Write {told} (and HF_TOKEN=... for a gated model) into keys.env, which is no file to commit.",
            create,
        ]
    elif not all(each["is_simulated"] for each in engines):
        steps.append(f"Only for a gated model: write HF_TOKEN=... into keys.env, and `{create}`")
    if site.proxy is not None or any(each["is_simulated"] for each in engines):
        steps.append(
            "Build the toolkit's image (`toolkit deploy compose` writes its Dockerfile), push it, and name it with --toolkit-image."
        )
    kinds = (
        "deployment,leaderworkerset" if any(each["nodes"] > 1 for each in engines) else "deployment"
    )
    steps += [
        # not recursive: scaling/ is applied when it is wanted
        "kubectl apply -f .    # in the folder of these files; scaling/ is left out",
        f"kubectl get {kinds},pods -l app.kubernetes.io/part-of={site.name}",
    ]
    if site.proxy is not None:
        steps.append(f"kubectl port-forward service/{proxy_name} {site.proxy.port}")
    else:
        steps += [
            f"kubectl port-forward service/{each['service']} {each['port']}" for each in engines
        ]
    if site.is_open:
        steps += [
            f"--listen {site.listen} opens nothing here: Services stay inside the cluster until an Ingress or Gateway leads to one.",
            *site.keyless,
        ]
    return (*steps, *last_steps(site))
