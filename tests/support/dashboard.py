"""A site, and what the rules and the dashboard of one ask Prometheus for."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from toolkit.deploy import grafana, prometheus
from toolkit.deploy.site import Site, SiteEngine, SiteProxy

QWEN = SiteEngine(
    name="qwen",
    kind="vllm",
    model="Qwen/Qwen2.5-7B-Instruct",
    served_name="q",
    host="127.0.0.1",
    port=8101,
    spare_port=8102,
    arguments=("--max-num-seqs", "64"),
)
BIG = SiteEngine(
    name="big",
    kind="vllm",
    model="B",
    served_name="b",
    host="::1",
    port=8105,
    key_env="BIG_KEY",
    team="red",
)
SITE = Site(name="lab", engines=(QWEN, BIG), proxy=SiteProxy(redis_env="REDIS_URL"))

CHOSEN = {
    "$job": "engine",
    "$host": ".*",
    "$model": ".*",
    "$proxy": ".*",
    "$__rate_interval": "1m",
    "$__interval": "15s",
}
"""As Grafana puts them in, where all is chosen."""


def board_of(site: Site) -> dict[str, Any]:
    """The dashboard, as its file says it."""
    files = grafana.kit(site).files
    text = next(each.text for each in files if each.path.endswith(".json"))
    found: dict[str, Any] = json.loads(text)
    return found


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in board["panels"] if each["type"] != "row"]


def chosen(expr: str, window: str = "1m") -> str:
    """An expression as Prometheus gets it."""
    for name, value in {**CHOSEN, "$__rate_interval": window}.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def queries(board: dict[str, Any], window: str = "1m") -> Iterator[tuple[str, str]]:
    """Title and expression of every panel and annotation that asks Prometheus."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], chosen(target["expr"], window)
    for each in board["annotations"]["list"]:
        if each["datasource"]["type"] == "prometheus":
            yield each["name"], chosen(each["expr"], window)


def rules_of(site: Site) -> list[dict[str, Any]]:
    """Every rule of a site's files, recorded or alerting."""
    found = [yaml.safe_load(each.text) for each in prometheus.kit(site).files[1:]]
    return [rule for file in found for group in file["groups"] for rule in group["rules"]]


def rules_and_panels(site: Site) -> list[str]:
    """Every expression."""
    rules = [each["expr"] for each in rules_of(site)]
    return [*rules, *(expr for _, expr in queries(board_of(site)))]


def recorded_names(site: Site) -> set[str]:
    """Series that the rules make."""
    return {each["record"] for each in rules_of(site) if "record" in each}
