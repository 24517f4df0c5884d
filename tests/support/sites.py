"""Sites as `toolkit deploy` makes them of a stack file's text, without a command line."""

import tomllib
from pathlib import Path
from typing import Any

from support.deployed import USUAL

from toolkit.cli.stack_read import preset_flags
from toolkit.deploy.render import Kit
from toolkit.deploy.site import Site, site_of
from toolkit.serving.flags import arguments, known
from toolkit.serving.stack import placed, read

CATALOG = Path(__file__).parents[2] / "toolkit" / "catalog"
TWO = """
[[engine]]
name = "red"
model = "Qwen/Qwen2.5-7B-Instruct"
gpus = "0"
[[engine]]
name = "blue"
model = "Qwen/Qwen2.5-7B-Instruct"
gpus = "1"
"""
"""Two engines with one model, behind a proxy."""


def catalog(name: str) -> dict[str, Any]:
    return tomllib.loads((CATALOG / f"{name}.toml").read_text())


def site(text: str = TWO, **told: Any) -> Site:
    stack = placed(
        read(text, "stack.toml", preset_flags), "`stack.toml`", lambda _host, _port: True
    )
    vllm, table = catalog("vllm"), catalog("flags")
    return site_of(
        stack,
        **USUAL | {"stack_text": text, "image": vllm["image"]} | told,
        flags=lambda flags: arguments(flags, known(vllm["flags"]), vllm["version"], table),
    )


def text_of(kit: Kit, ending: str) -> str:
    """Of the one file with that ending."""
    (found,) = [each.text for each in kit.files if each.path.endswith(ending)]
    return found
