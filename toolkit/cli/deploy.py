"""`toolkit deploy`: the files that run a stack elsewhere."""

import importlib
import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import json_option
from toolkit.cli.output import print_json
from toolkit.cli.places import DATABASE
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolkit.serving.flags import Flags, Value

KINDS = ("nginx", "compose", "k8s", "systemd", "prometheus", "grafana")
ONLY_FOR = {
    "toolkit_image": ("compose", "k8s"),
    "gpus_per_node": ("k8s",),
    "replicas": ("k8s",),
    "prometheus": ("k8s",),
}
"""Options of a kind, as its `kit` takes them."""


@click.command("deploy", cls=Command, short_help="Write the files that run a stack elsewhere.")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("stack", metavar="STACK.toml", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to, made where it is not there.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to listen on; 0.0.0.0 is all.",
)
@advanced("--image", help="vLLM's container image.  [default: the version that was tested]")
@advanced(
    "--toolkit-image",
    metavar="IMAGE",
    help="compose, k8s: the toolkit's own image.  [default: llm-serving-toolkit:latest]",
)
@advanced(
    "--gpus-per-node",
    type=click.IntRange(1),
    help="k8s: GPUs of a node; an engine that takes more spans several nodes.",
)
@advanced(
    "--replicas",
    type=click.IntRange(1),
    help="k8s: most of each engine, once scaling is applied.  [default: 4]",
)
@advanced("--prometheus", metavar="URL", help="k8s: where scaling asks for waiting requests.")
@click.option("--force", is_flag=True, help="Replace files that were not written by this, too.")
@json_option("file")
def command(
    *,
    kind: str,
    stack: Path,
    out: Path,
    listen: str,
    image: str | None,
    force: bool,
    as_json: bool,
    **of_kind: Any,
) -> None:
    """Write the files that run a stack on other machines, from the stack file that `toolkit serve` reads.

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
    \f
    \b
      toolkit deploy compose stack.toml --out deploy/compose
      toolkit deploy k8s stack.toml --out deploy/k8s --gpus-per-node 8

    Nothing is started or sent. No file holds a secret: keys are named by their variables. Ports are bound
    to the loopback unless --listen says otherwise, or for systemd a `host` in the stack file. A file that
    was changed by hand is not replaced.
    """
    given = {name: value for name, value in of_kind.items() if value is not None}
    for name in given:
        if kind not in ONLY_FOR[name]:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is for {' and '.join(ONLY_FOR[name])}, not {kind}")

    from toolkit.cli.stack_read import preset_flags, stack_text
    from toolkit.deploy.flags import image_arguments
    from toolkit.deploy.render import write
    from toolkit.deploy.site import site_of
    from toolkit.plan.catalog import table
    from toolkit.serving.flags import known
    from toolkit.serving.stack import placed, read

    text = stack_text(stack)
    draft = read(text, str(stack), preset_flags, {}, {"database": DATABASE})
    try:
        # `%eth0` is an interface, and other machines have others
        address = str(ipaddress.ip_address("" if "%" in listen else listen.strip("[]")))
    except ValueError:
        raise ToolkitError(
            f"`{listen}` is no IP address to listen on", "Write, e.g., `127.0.0.1` or `0.0.0.0`"
        ) from None
    vllm = table("vllm")
    image = image or vllm["image"]
    notes: list[str] = []

    def spelled(flags: "Iterable[tuple[str, Value]]") -> "Flags":
        recorded = known(vllm["flags"])
        found = image_arguments(flags, image, recorded, vllm["version"], table("flags"))
        notes.extend(found.notes)
        return found

    # the `toolkit` that writes this, by its whole path
    beside = Path(sys.executable).parent / "toolkit"
    site = site_of(
        # nothing is started here, so no port is taken: what the file does not name is the next one in order
        placed(draft, f"`{stack}`", lambda _host, _port: True),
        name=stack.name.removesuffix(".toml"),
        listen=address,
        image=image,
        stack_file=str(stack.absolute()),
        stack_text=text,
        command=str(beside) if os.access(beside, os.X_OK) else "/usr/local/bin/toolkit",
        flags=spelled,
    )
    for note in dict.fromkeys(notes):
        click.echo(note, err=True)

    module = importlib.import_module(f"toolkit.deploy.{'kubernetes' if kind == 'k8s' else kind}")
    rendered = module.kit(site, **given)
    written = write(rendered.files, out, force=force)
    for each in rendered.files:
        place = out / each.path
        if as_json:
            print_json({"path": str(place), "written": place in written, "mode": f"{each.mode:o}"})
        else:
            click.echo(str(place))
    if rendered.next_steps:
        click.echo(f"Next, in `{out}`:", err=True)
    for sentence in rendered.next_steps:
        click.echo(f"  {sentence}", err=True)
