"""When Kubernetes starts another replica of an engine, and when it ends one: on waiting requests, by KEDA or by prometheus-adapter.

Nothing is asked here; the metrics are the engines' own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from toolkit.deploy.kubernetes_parts import KubernetesEngine
from toolkit.deploy.metric_names import RUNNING, WAITING
from toolkit.deploy.quoting import Plain
from toolkit.deploy.site import Rendered, Site
from toolkit.deploy.templating import render
from toolkit.errors import ToolkitError

WAITING_EACH = 4
"""Requests that wait for each replica before there is one more: more than a moment's chance, less than a batch."""
LONGEST_PERIOD_S = 1800
"""Of a policy, by Kubernetes."""
LOADING_S = 300
"""That a loading may well take, where the longest that is allowed is more."""
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
    scaled = [_scaled(each, engines) for each in engines if not each.is_simulated]
    if not scaled:
        return ()
    url, port = _address(prometheus)
    values = {
        "site": site,
        "engines": engines,
        "scaled": scaled,
        "prometheus": f"{url}:{port}",
        "prometheus_url": url,
        "prometheus_port": port,
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


def _scaled(engine: KubernetesEngine, engines: Sequence[KubernetesEngine]) -> Scaled:
    is_group = engine.nodes > 1
    labels = _labels(engine, engines)
    return Scaled(
        name=engine.name,
        api="leaderworkerset.x-k8s.io/v1" if is_group else "apps/v1",
        kind="LeaderWorkerSet" if is_group else "Deployment",
        waiting=f"sum({WAITING}{{{labels}}})",
        running=f"sum({RUNNING}{{{labels}}})",
        seqs=engine.seqs,
        running_each=max(1, engine.seqs // 2),
        up_s=min(engine.ready_s, LOADING_S, LONGEST_PERIOD_S),
    )


def _labels(engine: KubernetesEngine, engines: Sequence[KubernetesEngine]) -> str:
    """Which series are this engine's: by its model, and by its pods where another has the same."""
    # PromQL's strings are Go's, and so escaped as JSON's are
    labels = f"model_name={json.dumps(engine.served_name, ensure_ascii=False)}"
    names = [each.served_name for each in engines]
    return f'{labels},pod=~"{engine.name}-.+"' if names.count(engine.served_name) > 1 else labels


def _address(prometheus: str) -> tuple[str, int]:
    """Scheme and host, and the port. Raises ToolkitError."""
    try:
        parts = urlsplit(prometheus)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ToolkitError(
            f"`{prometheus}` is no address of a Prometheus", f"Write, e.g., `{PROMETHEUS}`"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}", port
