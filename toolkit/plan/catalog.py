"""The catalog's tables; models and GPUs by the word that somebody has for them: a name there, a path, or an amount of memory."""

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan.engine import Gpu
from toolkit.plan.model_files import NEAREST, KnownModel, catalog_name, read_model
from toolkit.units import GIB, bytes_of

PARTS = ("-fp8", "-awq", "-gptq-int4", "-gptq", "-int4", "-instruct")
"""Ends of names that do not change a model's shape."""


@cache
def table(name: str) -> dict[str, Any]:
    """One of the catalog's own tables: e.g., `models` or `gpus`."""
    return tomllib.loads((files("toolkit") / "catalog" / f"{name}.toml").read_text("utf-8"))


def model_of(word: str) -> KnownModel:
    """A model of the catalog, of a config.json, or of a folder with one. Raises ToolkitError."""
    return read_model(word, table("models"))


def served_model(name: str) -> KnownModel | None:
    """The model of the catalog that has the shape of one that a server names; None: there is none."""
    # it may bear its quantization at the end
    name = name.rstrip("/").rpartition("/")[2].lower()
    while name:
        found = catalog_name(name, table("models"))
        if found is not None:
            return model_of(found)
        end = next((part for part in PARTS if name.endswith(part)), None)
        if end is None:
            return None
        name = name.removesuffix(end)
    return None


def gpu_of(word: str) -> Gpu:
    """Read `a100-80gb`, `A100`, `NVIDIA A100-SXM4-80GB`, `1g.10gb` or `80GiB`. Raises ToolkitError for what is neither."""
    known = table("gpus")
    # as the catalog spells it: `RTX 4090` is `rtx-4090`
    words = word.lower().replace("_", "-").split()
    wanted = "-".join(one for one in words if one not in ("nvidia", "amd", "geforce", "instinct"))
    for name, row in known.items():
        if wanted in {name, *row["aliases"]}:
            return Gpu(
                name=name,
                memory_bytes=round(row["memory_gib"] * GIB),
                bandwidth_bytes_s=row["bandwidth_gb_s"] * 1e9,
                fp8=row["fp8"],
                is_a100=name.startswith("a100"),
                is_slice="-mig-" in name,
            )
    size = bytes_of(word)
    if size is not None:
        return Gpu(name=word, memory_bytes=size)
    if wanted[:1] in "-+.0123456789" and wanted[-1:] in "b0123456789":
        hint = "No amount of memory either: write, e.g., `--gpu 80GiB`"
    else:
        spelled = {alias: name for name, row in known.items() for alias in (name, *row["aliases"])}
        near = get_close_matches(wanted, spelled, n=2 * NEAREST, cutoff=0.5)
        names = list(dict.fromkeys(spelled[one] for one in near))[:NEAREST]
        told = f"Nearest: {', '.join(names)}" if names else f"Known: {', '.join(known)}"
        hint = f"{told}; or tell its memory, e.g., `--gpu 80GiB`"
    raise ToolkitError(f"no GPU is called `{word}`", hint)
