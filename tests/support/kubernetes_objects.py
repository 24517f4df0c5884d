"""The objects that `toolkit deploy k8s` renders, found by kind and name, and what Kubernetes, KEDA and LeaderWorkerSet say of them."""

from functools import lru_cache
from typing import Any

import kubernetes_validate
import pytest
from support.deployed import documents, problems, site, templates

from toolkit.deploy.kubernetes import kit
from toolkit.deploy.site import Kit, Site
from toolkit.errors import ToolkitError

VERSIONS = ("1.31", "1.36")
"""The oldest that has `unhealthyPodEvictionPolicy` for good, and a new one."""
ONE = '[[engine]]\nname = "qwen"\nmodel = "Qwen/Q"\nport = 8001\n'
BIG = ONE + "[engine.flags]\ntensor-parallel-size = 8\npipeline-parallel-size = 2\n"
SIM = '[[engine]]\nname = "s"\nkind = "sim"\nmodel = "fast"\nport = 8001\nkey_env = "QWEN_KEY"\n'


def objects(found: Kit) -> list[Any]:
    """All of Kubernetes' own kind or another's; not the values of a chart."""
    return [
        each
        for file in found.files
        for each in documents(file.text)
        if not file.path.endswith("prometheus-adapter.yaml")
    ]


@lru_cache
def usual() -> tuple[Any, ...]:
    """Of support.deployed's STACK; nobody changes them."""
    return tuple(objects(kit(site(), templates())))


def one(kind: str, name: str, among: Any = None) -> Any:
    (found,) = (
        each
        for each in (usual() if among is None else among)
        if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def pod(deployment: Any) -> tuple[Any, Any]:
    """The pod's spec and its only container."""
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def refused(found: Site, **more: Any) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        kit(found, templates(), **more)
    return caught.value


def validate(found: Any, version: str) -> None:
    """Raise for what Kubernetes, KEDA or LeaderWorkerSet would not take."""
    if found["kind"] == "ScaledObject":
        assert problems(found, "keda-scaledobject.json") == []
    elif found["kind"] == "LeaderWorkerSet":
        assert problems(found, "leaderworkerset.json") == []
        for role in ("leaderTemplate", "workerTemplate"):
            template = found["spec"]["leaderWorkerTemplate"][role]
            wrapped = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "a"},
                "template": template,
            }
            kubernetes_validate.validate(wrapped, version, strict=True)
    else:
        kubernetes_validate.validate(found, version, strict=True)
