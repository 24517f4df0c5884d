"""What `toolkit deploy` does once its command line is read: the stack's file -> Site -> files, and what to do with them."""

import importlib
import ipaddress
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from toolkit.cli.catalog import table
from toolkit.cli.output import print_json
from toolkit.cli.places import DATABASE
from toolkit.cli.stack_read import preset_flags, stack_text
from toolkit.deploy.flags import image_arguments
from toolkit.deploy.render import write
from toolkit.deploy.site import Site, site_of
from toolkit.errors import ToolkitError
from toolkit.serving.flags import Flags, Value, known
from toolkit.serving.stack import placed, read

ONLY = {
    # the kinds that take an option; their `kit` has it under the same name
    "toolkit_image": ("compose", "k8s"),
    "gpus_per_node": ("k8s",),
    "replicas": ("k8s",),
    "prometheus": ("k8s",),
}


def run_deploy(options: Mapping[str, Any]) -> None:
    """Write the files of one kind, and say what to do with them."""
    kind = options["kind"]
    told = {name: options[name] for name in ONLY if options[name] is not None}
    for name in told:
        if kind not in ONLY[name]:
            word = name.replace("_", "-")
            raise click.UsageError(f"--{word} is for {' and '.join(ONLY[name])}, not {kind}")
    module = importlib.import_module(f"toolkit.deploy.{'kubernetes' if kind == 'k8s' else kind}")
    kit = module.kit(site(options), **told)
    written = write(kit.files, options["out"], force=options["force"])
    for each in kit.files:
        place = options["out"] / each.path
        if options["as_json"]:
            print_json({"path": str(place), "written": place in written, "mode": f"{each.mode:o}"})
        else:
            click.echo(str(place))
    if kit.next_steps:
        click.echo(f"Next, in `{options['out']}`:", err=True)
    for sentence in kit.next_steps:
        click.echo(f"  {sentence}", err=True)


def site(options: Mapping[str, Any]) -> Site:
    """The site that a stack file describes."""
    path: Path = options["stack"]
    text = stack_text(path)
    draft = read(text, str(path), preset_flags, {}, {"database": DATABASE})
    vllm = table("vllm")
    image = options["image"] or vllm["image"]
    notes: list[str] = []

    def spelled(flags: Iterable[tuple[str, Value]]) -> Flags:
        recorded = known(vllm["flags"])
        found = image_arguments(flags, image, recorded, vllm["version"], table("flags"))
        notes.extend(found.notes)
        return found

    # the `toolkit` that writes this, by its whole path
    beside = Path(sys.executable).parent / "toolkit"
    found = site_of(
        # nothing is started here, so no port is taken: what the file does not name is the next one in order
        placed(draft, f"`{path}`", lambda _host, _port: True),
        name=path.name.removesuffix(".toml"),
        listen=address(options["listen"]),
        image=image,
        stack_file=str(path.absolute()),
        stack_text=text,
        command=str(beside) if os.access(beside, os.X_OK) else "/usr/local/bin/toolkit",
        flags=spelled,
    )
    for note in dict.fromkeys(notes):
        click.echo(note, err=True)
    return found


def address(word: str) -> str:
    """An IP address, as a socket is bound to one."""
    try:
        # `%eth0` is an interface, and other machines have others
        return str(ipaddress.ip_address("" if "%" in word else word.strip("[]")))
    except ValueError:
        raise ToolkitError(
            f"`{word}` is no IP address to listen on", "Write, e.g., `127.0.0.1` or `0.0.0.0`"
        ) from None
