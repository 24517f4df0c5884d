"""When Kubernetes starts another replica of an engine, and when it ends one: on waiting requests, by KEDA or by prometheus-adapter.

Nothing is asked here; the metrics are the engines' own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from toolkit.deploy.kubernetes_parts import KubernetesEngine
from toolkit.deploy.metric_names import RUNNING, WAITING, quoted
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Rendered, Site
from toolkit.deploy.templating import render
from toolkit.errors import ToolkitError

WAITING_EACH = 4
"""Requests that wait for each replica before there is one more: more than a moment's chance, less than a batch."""
LOADING_S = 300
"""That a loading may well take, where the longest that is allowed is more; of a policy Kubernetes takes 1,800 at most."""
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""The Service that Prometheus' operator makes, in the namespace that its chart is mostly put into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What the autoscalers are told of one engine."""

    name: Plain
    api: str
    kind: str
    waiting: str
    """PromQL: how many wait, over all its replicas."""
    running: str
    seqs: int
    running_each: int
    up_s: int


def scaling(
    site: Site,
    engines: Sequence[KubernetesEngine],
    templates: Mapping[str, str],
    *,
    prometheus: str,
    most: int,
    slots: int | None,
) -> tuple[Rendered, ...]:
    """The files below `scaling/`; none where there is nothing to be scaled."""
    scaled = [_scaled(each) for each in engines if not each.is_simulated]
    if not scaled:
        return ()
    url, port, path = _address(prometheus)
    values = {
        "site": site,
        "engines": engines,
        "scaled": scaled,
        "prometheus": f"{url}:{port}{path}",
        "prometheus_url": url,
        "prometheus_port": port,
        "prometheus_path": path,
        "most": most,
        "slots": slots,
        "waiting_each": WAITING_EACH,
        "waiting_name": adapted(WAITING),
        "running_name": adapted(RUNNING),
        "renamed": [(metric, adapted(metric)) for metric in (WAITING, RUNNING)],
    }
    return tuple(
        Rendered(
            path=f"scaling/{name}",
            text=render(templates[f"k8s/{name}.j2"], language="yaml", **values),
        )
        for name in ("keda.yaml", "hpa.yaml", "prometheus-adapter.yaml")
    )


def adapted(metric: str) -> str:
    """As prometheus-adapter hands a metric on."""
    return metric.replace(":", "_")


def _scaled(engine: KubernetesEngine) -> Scaled:
    is_group = engine.nodes > 1
    labels = f"model_name={quoted(engine.served_name)},pod=~{quoted(_pods(engine))}"
    return Scaled(
        name=engine.name,
        api="leaderworkerset.x-k8s.io/v1" if is_group else "apps/v1",
        kind="LeaderWorkerSet" if is_group else "Deployment",
        waiting=f"sum({WAITING}{{{labels}}})",
        running=f"sum({RUNNING}{{{labels}}})",
        seqs=engine.seqs,
        running_each=max(1, engine.seqs // 2),
        up_s=min(engine.ready_s, LOADING_S),
    )


def _pods(engine: KubernetesEngine) -> str:
    """Its pods that answer, as a regular expression, and no other's: `qwen` is how `qwen-2` begins, too."""
    # a ReplicaSet's mark and five characters of the pod's own; of a group the leader, which bears the group's number
    ending = "[0-9]+" if engine.nodes > 1 else "[a-z0-9]+-[a-z0-9]{5}"
    return f"{engine.name}-{ending}"


def _address(prometheus: str) -> tuple[str, int, str]:
    """Scheme and host, the port, and the path below which it answers. Raises ToolkitError."""
    try:
        parts = urlsplit(prometheus)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    is_web = parts.scheme in ("http", "https") and parts.hostname
    if not is_web or parts.username is not None or parts.query or parts.fragment:
        raise ToolkitError(
            f"`{prometheus}` is no address of a Prometheus", f"Write, e.g., `{PROMETHEUS}`"
        )
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}", port, parts.path.rstrip("/")
