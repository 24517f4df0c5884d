"""When Kubernetes starts another replica of an engine, and when it ends one: on waiting requests, by KEDA or by prometheus-adapter.

Nothing is asked here; the metrics are the engines' own.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from toolkit.deploy.render import Rendered, render, yaml
from toolkit.deploy.site import Site
from toolkit.errors import ToolkitError

WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
WAITING_EACH = 4
"""Requests that wait for each replica before there is one more: more than a moment's chance, less than a batch."""
LOADING_S = 300
"""That a loading may well take, where the longest that is allowed is more; of a policy Kubernetes takes 1,800 at most."""
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""The Service that Prometheus' operator makes, in the namespace that its chart is mostly put into."""


def scaling(
    site: Site,
    engines: Sequence[dict[str, Any]],
    *,
    prometheus: str,
    replicas: int,
    slots: int | None,
) -> list[Rendered]:
    """The files below `scaling/`; none where there is nothing to be scaled. Raises ToolkitError."""
    scaled = []
    for engine in engines:
        if engine["is_simulated"]:
            continue
        is_group = engine["nodes"] > 1
        # Its pods that answer, and no other's: `qwen` is how `qwen-2` begins, too. A ReplicaSet's mark and five characters of the
        # pod's own; of a group the leader, which bears the group's number
        ending = "[0-9]+" if is_group else "[a-z0-9]+-[a-z0-9]{5}"
        # PromQL's strings know every escape that JSON writes
        pods = yaml(f"{engine['name']}-{ending}")
        labels = f"model_name={yaml(engine['served_name'])},pod=~{pods}"
        scaled.append(
            {
                "name": engine["name"],
                "api": "leaderworkerset.x-k8s.io/v1" if is_group else "apps/v1",
                "kind": "LeaderWorkerSet" if is_group else "Deployment",
                "waiting": f"sum({WAITING}{{{labels}}})",
                "running": f"sum({RUNNING}{{{labels}}})",
                "seqs": engine["seqs"],
                "running_each": max(1, engine["seqs"] // 2),
                "up_s": min(engine["ready_s"], LOADING_S),
            }
        )
    if not scaled:
        return []
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
    url, path = f"{parts.scheme}://{host}", parts.path.rstrip("/")
    # as prometheus-adapter hands a metric on
    renamed = {metric: metric.replace(":", "_") for metric in (WAITING, RUNNING)}
    values = {
        "site": site,
        "engines": engines,
        "scaled": scaled,
        "most": replicas,
        "slots": slots,
        "prometheus": f"{url}:{port}{path}",
        "prometheus_url": url,
        "prometheus_port": port,
        "prometheus_path": path,
        "waiting_each": WAITING_EACH,
        "renamed": renamed,
        "waiting_name": renamed[WAITING],
        "running_name": renamed[RUNNING],
    }
    return [
        Rendered(path=f"scaling/{name}", text=render(f"k8s/{name}.j2", "yaml", **values))
        for name in ("keda.yaml", "hpa.yaml", "prometheus-adapter.yaml")
    ]
