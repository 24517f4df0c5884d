"""What Kubernetes is told of each engine and of the proxy, as plain values for the templates. Nothing is rendered here."""

import math
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
from toolkit.deploy.engine_flags import USUAL_MAX_NUM_SEQS, copies, max_num_seqs
from toolkit.deploy.image_flags import precedes, version_of
from toolkit.deploy.names import unlike
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Site, SiteEngine, SiteProxy
from toolkit.errors import ToolkitError

LONGEST_NAME = 46
"""Of a Deployment or a group: their pods' names and labels add up to 17 characters, and 63 is the end."""
HOME = CACHE
"""Where the claim is mounted: the home of the container's user, so that every cache lies there."""
PROBE_S = 10
LEAVING_S = 15
"""From the moment that a pod is to end until nobody sends it anything new: endpoints are told in turn."""
MASTER_PORT = 29501
"""vLLM's own default; named, as it must be open between the pods."""
NODES_SINCE = "0.32"
"""The oldest version whose help was read that has `--nnodes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One of a container's."""

    name: Plain
    value: str | None = None
    secret_key: Plain | None = None
    """In the site's Secret."""
    is_optional: bool = False
    field: str | None = None
    """Of the pod itself, e.g., `status.podIP`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of an engine's pods: the only one, or leader and workers of several nodes."""

    name: str
    """`engine`, `leader` or `worker`."""
    words: tuple[str, ...]
    variables: tuple[Variable, ...]
    leaving_s: int
    """From the word that it is to end until it is told so itself."""
    answers: bool = True
    """It has an HTTP port; a worker has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesEngine:
    """One engine, all of its pods."""

    name: Plain
    """Of all its objects but, where it spans nodes, its Service."""
    service: Plain
    """How it is asked."""
    title: str
    served_name: str
    is_simulated: bool
    way_out: str | None
    """What it asks of the world; None: nothing."""
    port: int
    nodes: int
    gpus_each: int
    """On each node."""
    shm_gib: int
    roles: tuple[Role, ...]
    starts: int
    """Probes until it counts as failed."""
    ready_s: int
    grace_s: int
    seqs: int
    """Requests that it runs at a time."""


def engines(site: Site, names: "Names", gpus_per_node: int | None) -> tuple[KubernetesEngine, ...]:
    """Each engine under its name. Raises ToolkitError for what nodes don't have."""
    return tuple(
        _engine(engine, name, leader, site, gpus_per_node)
        for engine, name, leader in zip(site.engines, names.each, names.leaders, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What objects are called, in a namespace that others use, too."""

    proxy: Plain
    engines: Plain
    """Of what holds for all engines together."""
    secret: Plain
    each: tuple[str, ...]
    """Of each engine's, in the site's order."""
    leaders: tuple[str, ...]
    """Of the Service of each that spans nodes: LeaderWorkerSet makes one with the engine's own name, for its pods among themselves."""


def names(site: Site) -> Names:
    """Names that are unlike each other, and short enough for what Kubernetes adds to them."""
    words = ("proxy", "engines", "keys", *(each.name for each in site.engines))
    own = unlike((f"{site.name}-{word}" for word in words), LONGEST_NAME)
    proxy, engines, secret, *each = own
    return Names(
        proxy=Plain(proxy),
        engines=Plain(engines),
        secret=Plain(secret),
        each=tuple(each),
        leaders=unlike((*own, *(f"{name}-leader" for name in each)))[len(own) :],
    )


def proxy_variables(proxy: SiteProxy) -> tuple[Variable, ...]:
    """Everything that the proxy's settings name."""
    redis = () if proxy.redis_env is None else (proxy.redis_env,)
    return tuple(_secret(name) for name in (*proxy.key_envs, *redis))


def proxy_grace_s(site: Site) -> int:
    """Leaving, finishing, ending."""
    return LEAVING_S + seconds_to_end(site) + END_S


def _engine(
    engine: SiteEngine, name: str, leader: str, site: Site, gpus_per_node: int | None
) -> KubernetesEngine:
    is_simulated = engine.kind == "sim"
    if not is_simulated:
        _refuse_directory(engine)
    nodes = 1 if is_simulated else _nodes(engine, site, gpus_per_node)
    gpus_each = engine.gpu_count // nodes
    return KubernetesEngine(
        name=Plain(name),
        service=Plain(name if nodes == 1 else leader),
        title=engine.model,
        served_name=engine.served_name,
        is_simulated=is_simulated,
        way_out=_way_out(engine, site),
        port=engine.port,
        nodes=nodes,
        gpus_each=gpus_each,
        shm_gib=SHM_GIB * max(1, gpus_each),
        roles=_roles(engine, site, nodes),
        starts=max(1, math.ceil(engine.ready_s / PROBE_S)),
        ready_s=math.ceil(engine.ready_s),
        grace_s=LEAVING_S + drain_s(engine, site) + END_S,
        seqs=max_num_seqs(engine) or USUAL_MAX_NUM_SEQS,
    )


def _way_out(engine: SiteEngine, site: Site) -> str | None:
    weights = "weights, of Hugging Face" if fetches_weights(engine) else None
    media = "what requests name" if fetches_media(engine, site) else None
    return " and ".join(filter(None, (weights, media))) or None


def _nodes(engine: SiteEngine, site: Site, gpus_per_node: int | None) -> int:
    if gpus_per_node is None or engine.gpu_count <= gpus_per_node:
        return 1
    if engine.gpu_count % gpus_per_node:
        raise ToolkitError(
            f"the engine `{engine.name}` takes {engine.gpu_count} GPUs, and nodes have {gpus_per_node} each:"
            " vLLM wants as many on every node",
            f"Let tensor- times pipeline-parallel-size be a multiple of {gpus_per_node}",
        )
    if copies(engine) > 1:
        raise ToolkitError(
            f"the engine `{engine.name}` spans nodes with several copies of its model (data-parallel-size)",
            "Make each copy an engine of its own; the proxy spreads requests over them",
        )
    version = version_of(site.image)
    if version is not None and precedes(version, NODES_SINCE):
        raise ToolkitError(
            f"the engine `{engine.name}` spans nodes, and whether vLLM {version} can is not known",
            f"Name an --image of {NODES_SINCE} or newer",
        )
    return engine.gpu_count // gpus_per_node


def _roles(engine: SiteEngine, site: Site, nodes: int) -> tuple[Role, ...]:
    words = tuple(literal(word) for word in command(engine, site))
    variables = _variables(engine)
    if nodes == 1:
        return (Role(name="engine", words=words, variables=variables, leaving_s=LEAVING_S),)
    of_nodes = (
        *variables,
        # the address that the others reach; the one that it would pick itself may be another network's
        Variable(name=Plain("VLLM_HOST_IP"), field="status.podIP"),
    )
    rank = Variable(
        name=Plain("NODE_RANK"),
        field="metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']",
    )
    leader = Role(
        name="leader",
        words=(*words, *node_words(nodes, "0")),
        variables=of_nodes,
        leaving_s=LEAVING_S,
    )
    worker = Role(
        name="worker",
        words=(*words, *node_words(nodes, "$(NODE_RANK)"), "--headless"),
        variables=(*of_nodes, rank),
        # it computes what the leader still answers
        leaving_s=LEAVING_S + drain_s(engine, site),
        answers=False,
    )
    return leader, worker


def node_words(nodes: int, rank: str) -> tuple[str, ...]:
    """Where one node of several stands; LeaderWorkerSet sets the leader's address in every pod."""
    return (
        *("--nnodes", str(nodes), "--node-rank", rank),
        *("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(MASTER_PORT)),
    )


def literal(word: str) -> str:
    """A word of a command, or a variable's value: Kubernetes puts variables where `$(NAME)` stands, and reads `$$` as `$`."""
    return word.replace("$", "$$")


def _variables(engine: SiteEngine) -> tuple[Variable, ...]:
    own = tuple(Variable(name=Plain(name), value=literal(value)) for name, value in engine.env)
    if engine.kind == "sim":
        return (*own, *(() if engine.key_env is None else (_secret(engine.key_env),)))
    told = dict(engine.env)
    # without an entry in the image's passwd, torch asks these two for the user's name and fails without
    usual = {"HOME": HOME, "USER": "vllm", "LOGNAME": "vllm"}
    places = tuple(
        Variable(name=Plain(name), value=value) for name, value in usual.items() if name not in told
    )
    token = Variable(name=Plain("HF_TOKEN"), secret_key=Plain("HF_TOKEN"), is_optional=True)
    key = () if engine.key_env is None else (_secret(engine.key_env, "VLLM_API_KEY"),)
    return (*places, token, *own, *key)


def _secret(variable: str, name: str | None = None) -> Variable:
    return Variable(name=Plain(name or variable), secret_key=Plain(variable))


def _refuse_directory(engine: SiteEngine) -> None:
    if is_directory(engine.model) and not engine.model.startswith(f"{HOME}/"):
        raise ToolkitError(
            f"the model `{engine.model}` of `{engine.name}` is a directory of this machine, which nodes don't have",
            f"Name one of Hugging Face's, or copy it to the engine's claim and write `{HOME}/NAME`",
        )
