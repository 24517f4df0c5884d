"""What `toolkit deploy` does once its command line is read: the stack's file -> Site -> files, and what to do with them."""

import importlib
import ipaddress
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from toolkit.cli.catalog import table
from toolkit.cli.output import print_json
from toolkit.cli.places import DATABASE
from toolkit.cli.stack_read import preset_flags, stack_text
from toolkit.deploy.image_flags import image_arguments
from toolkit.deploy.site import Kit, Site
from toolkit.deploy.site_of import site_of
from toolkit.deploy.write import templates, write
from toolkit.errors import ToolkitError
from toolkit.serving.flags import Flags, Value, known
from toolkit.serving.stack_file import placed, read

MODULES = {"k8s": "kubernetes"}
"""Kinds whose module is called otherwise."""
ONLY = {
    # option: (the kinds that take it, what their `kit` calls it)
    "toolkit_image": (("compose", "k8s"), "toolkit_image"),
    "gpus_per_node": (("k8s",), "gpus_per_node"),
    "replicas": (("k8s",), "most"),
    "prometheus": (("k8s",), "prometheus"),
}


def run_deploy(options: Mapping[str, Any]) -> None:
    """Write the files of one kind, and say what to do with them."""
    more = more_told(options)
    kit = kit_of(options["kind"], site(options), more)
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


def kit_of(kind: str, found: Site, more: Mapping[str, Any] | None = None) -> Kit:
    """What one kind of deployment comes to."""
    module = importlib.import_module(f"toolkit.deploy.{MODULES.get(kind, kind)}")
    kit: Kit = module.kit(found, templates(), **(more or {}))
    return kit


def more_told(options: Mapping[str, Any]) -> dict[str, Any]:
    """What only some kinds take, by the names of `kit`; another kind's is a wrong command line."""
    told = {name: options.get(name) for name in ONLY}
    for name, value in told.items():
        kinds, _ = ONLY[name]
        if value is not None and options["kind"] not in kinds:
            word = name.replace("_", "-")
            raise click.UsageError(f"--{word} is for {' and '.join(kinds)}, not {options['kind']}")
    return {ONLY[name][1]: value for name, value in told.items() if value is not None}


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

    # nothing is started here, so no port is taken: what the file does not name is the next one in order
    stack = placed(draft, lambda _host, _port: True)
    found = site_of(
        stack,
        name=path.name.removesuffix(".toml"),
        listen=address(options["listen"]),
        image=image,
        stack_file=str(path.absolute()),
        stack_text=text,
        flags=spelled,
    )
    for note in dict.fromkeys(notes):
        click.echo(note, err=True)
    return replace(found, command=_command())


def address(word: str) -> str:
    """An IP address, as a socket is bound to one."""
    try:
        found = ipaddress.ip_address(word.strip("[]"))
    except ValueError:
        found = None
    # `%eth0` is an interface, and other machines have others
    if found is None or "%" in word:
        raise ToolkitError(
            f"`{word}` is no IP address to listen on", "Write, e.g., `127.0.0.1` or `0.0.0.0`"
        )
    return str(found)


def _command() -> str:
    """The `toolkit` that writes this, by its whole path."""
    beside = Path(sys.executable).parent / "toolkit"
    return str(beside) if os.access(beside, os.X_OK) else "/usr/local/bin/toolkit"
