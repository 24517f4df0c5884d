"""Debian's promtool, and a site whose rules it is given."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolkit.deploy import prometheus
from toolkit.deploy.site import Site, SiteEngine, SiteProxy
from toolkit.deploy.write import templates, write

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="needs promtool: apt-get install --no-install-recommends prometheus",
)

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


def rendered(folder: Path, site: Site = SITE) -> Path:
    """The site's files, and the keys' that who deploys has to write."""
    kit = prometheus.kit(site, templates())
    write(kit.files, folder)
    (folder / "keys").mkdir()
    for engine in site.engines:
        if engine.key_env is not None:
            (folder / "keys" / engine.key_env).write_text("secret\n")
    return folder


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, words)], check=False, capture_output=True, text=True
    )


def unit_test(
    folder: Path,
    series: Mapping[str, str],
    checks: Sequence[Mapping[str, Any]],
    *,
    alerts: Sequence[Mapping[str, Any]] = (),
    step: str = "30s",
) -> str:
    """What `promtool test rules` has to say of queries' values and of whole alerts; nothing: all held."""
    told = {
        "rule_files": ["rules/recording.yml", "rules/alerts.yml"],
        "evaluation_interval": step,
        # as promtool has it they run in any order, and an alert may see a recorded series one step late
        "group_eval_order": ["engines", "proxy", "engine alerts", "proxy alerts"],
        "tests": [
            {
                "interval": step,
                "input_series": [{"series": name, "values": v} for name, v in series.items()],
                "promql_expr_test": list(checks),
                "alert_rule_test": list(alerts),
            }
        ],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(told))
    found = promtool("test", "rules", file)
    return "" if found.returncode == 0 else found.stdout + found.stderr
