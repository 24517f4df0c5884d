"""The catalog's tables; models and GPUs by the word that somebody has for them: a name there, a path, or an amount of memory."""

import tomllib
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan.engine import Gpu
from toolkit.plan.model_config import shape_of
from toolkit.plan.model_files import KnownModel, read_model
from toolkit.plan.weights import as_stored
from toolkit.units import GIB, bytes_of

STORED = ("fp8", "awq", "gptq-int4")
"""Quantizations that stand at the end of a checkpoint's name."""
PARTS = ("-fp8", "-awq", "-gptq-int4", "-gptq", "-int4", "-instruct")
"""Ends of names that do not change a model's shape."""
NEAREST = 4
"""Names that a hint offers."""


@cache
def table(name: str) -> dict[str, Any]:
    """One of the catalog's own tables: e.g., `models` or `gpus`."""
    return tomllib.loads((files("toolkit") / "catalog" / f"{name}.toml").read_text("utf-8"))


@cache
def spellings(of: str) -> dict[str, str]:
    """What the models or GPUs may be called -> their names: case does not matter, nor the owner before a slash."""
    rows = table(of).items()
    return {plain(one): name for name, row in rows for one in (name, *row.get("aliases", ()))}


def plain(word: str) -> str:
    """As `spellings` has it."""
    return word.rpartition("/")[2].casefold()


def nearest(word: str, of: str) -> str:
    """The names that are meant, perhaps; else all."""
    known = spellings(of)
    near = get_close_matches(word, known, n=2 * NEAREST, cutoff=0.5)
    names = list(dict.fromkeys(known[one] for one in near))[:NEAREST]
    return f"Nearest: {', '.join(names)}" if names else f"Known: {', '.join(table(of))}"


def model_of(word: str) -> KnownModel:
    """A model of the catalog, of a config.json, or of a folder with one. Raises ToolkitError."""
    path = Path(word)
    try:
        is_path = path.exists() or word.endswith(".json")
    except (OSError, ValueError):
        is_path = False
    if is_path:
        return read_model(path)
    name = spellings("models").get(plain(word))
    if name is None:
        raise ToolkitError(
            f"no model is called `{word}`, and no file either",
            f"{nearest(plain(word), 'models')}; or name a config.json, or a folder with one",
        )
    entry = table("models")[name]
    shape = shape_of(entry["config"], name)
    kinds = {"": as_stored(shape, None).name} | {f"-{each}": each for each in STORED}
    stored = next((each for each in STORED if word.lower().endswith(f"-{each}")), None)
    # the catalog has one config for `Qwen3-8B` and for `Qwen3-8B-AWQ`: who names the second means its weights
    if stored is not None and shape.quantization is None:
        shape = replace(shape, quantization=as_stored(shape, stored))
    notes = (entry["note"],) if "note" in entry else ()
    # `qwen2.5-7b` is served as Qwen/Qwen2.5-7B-Instruct, which chats; `llama-70b` is a nickname, no model's name
    spelled = next((each for each in entry.get("aliases", ()) if plain(each) == plain(word)), name)
    if plain(name).startswith(plain(word)) or (spelled.islower() and not name.islower()):
        spelled = name
    owner = entry.get("owner")
    served = word if "/" in word else "/".join(filter(None, (owner, spelled)))
    # what others publish beside their own copy of a model is not known
    first = plain(served).removesuffix(f"-{stored}")
    published = {
        kinds[end]: f"{owner}/{each}"
        for each in (name, *entry.get("aliases", ()))
        for end in kinds
        if plain(each) == f"{first}{end}" and served.rpartition("/")[0] == owner
    }
    return KnownModel(
        shape=shape,
        served=served,
        published=published,
        on_disk=entry.get("weight_bytes"),
        notes=notes,
    )


def served_model(name: str) -> KnownModel | None:
    """The model of the catalog that has the shape of one that a server names; None: there is none."""
    # it may bear its quantization at the end
    name = plain(name.rstrip("/"))
    while name:
        if name in spellings("models"):
            return model_of(spellings("models")[name])
        end = next((part for part in PARTS if name.endswith(part)), None)
        if end is None:
            return None
        name = name.removesuffix(end)
    return None


def gpu_of(word: str) -> Gpu:
    """Read `a100-80gb`, `A100`, `NVIDIA A100-SXM4-80GB`, `1g.10gb` or `80GiB`. Raises ToolkitError for what is neither."""
    # as the catalog spells it: `RTX 4090` is `rtx-4090`
    words = word.lower().replace("_", "-").split()
    wanted = "-".join(one for one in words if one not in ("nvidia", "amd", "geforce", "instinct"))
    name = spellings("gpus").get(wanted)
    if name is not None:
        row = table("gpus")[name]
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
        hint = f"{nearest(wanted, 'gpus')}; or give its memory, e.g., `--gpu 80GiB`"
    raise ToolkitError(f"no GPU is called `{word}`", hint)
