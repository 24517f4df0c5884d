"""`toolkit deploy`: the files that run a stack elsewhere."""

from pathlib import Path
from typing import Any

import click

KINDS = ("nginx", "compose", "k8s", "systemd", "prometheus", "grafana")

EXAMPLES = """
Write the files that run a stack on other machines, from the stack file that `toolkit serve` reads.

\b
  nginx        a balancer: streams at once, only the paths that clients need
  compose      containers on one machine, each engine on GPUs of its own
  k8s          Deployments, Services, probes, scaling on waiting requests
  systemd      a service that is restarted when it hangs
  prometheus   what to scrape, recording rules, alerts with their reasons
  grafana      a dashboard of engines and proxy

\b
  toolkit deploy systemd stack.toml --out deploy/systemd
  toolkit deploy nginx stack.toml --out deploy/nginx --listen 0.0.0.0
  toolkit deploy compose stack.toml --out deploy/compose
  toolkit deploy k8s stack.toml --out deploy/k8s --gpus-per-node 8

Nothing is started or sent. No file holds a secret: keys are named by their variables. Ports are bound
to the loopback unless --listen says otherwise, or for systemd a `host` in the stack file. A file that
was changed by hand is not replaced.
"""


@click.command("deploy", help=EXAMPLES, short_help="Write the files that run a stack elsewhere.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("stack", metavar="STACK.toml", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to, made where it is not there.",
)  # fmt: skip
@click.option(
    "--listen", metavar="ADDRESS", default="127.0.0.1", show_default=True,
    help="Where clients are taken; 0.0.0.0 is everywhere.",
)  # fmt: skip
@click.option("--image", help="vLLM's container image.  [default: the version that was tested]")
@click.option(
    "--toolkit-image", metavar="IMAGE",
    help="compose, k8s: the toolkit's own image.  [default: llm-serving-toolkit:latest]",
)  # fmt: skip
@click.option(
    "--gpus-per-node", type=click.IntRange(1), metavar="N",
    help="k8s: what a node has; an engine that takes more spans several nodes.",
)  # fmt: skip
@click.option(
    "--replicas", type=click.IntRange(1), metavar="N",
    help="k8s: most of each engine, once scaling is applied.  [default: 4]",
)  # fmt: skip
@click.option("--prometheus", metavar="URL", help="k8s: where scaling asks for waiting requests.")
@click.option("--force", is_flag=True, help="Replace files that were not written by this, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each file.")
def command(**options: Any) -> None:
    """Write the files of one kind (the help text is EXAMPLES)."""
    from toolkit.cli.deploy.run import run_deploy

    run_deploy(options)
