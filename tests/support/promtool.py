"""Debian's promtool, and a site whose rules it is given."""

import subprocess
from pathlib import Path

from toolkit.deploy import prometheus
from toolkit.deploy.render import write
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


def rendered(folder: Path, site: Site = SITE) -> Path:
    """The site's files, and the keys' that who deploys has to write."""
    write(prometheus.kit(site).files, folder)
    (folder / "keys").mkdir()
    for engine in site.engines:
        if engine.key_env is not None:
            (folder / "keys" / engine.key_env).write_text("secret\n")
    return folder


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, words)], check=False, capture_output=True, text=True
    )
