"""MODEL: a model of the catalog, a config.json or a folder; or the one that a scouted server tells it has."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from toolkit.cli.catalog import table
from toolkit.cli.plan.options import PlanOptions
from toolkit.errors import ToolkitError
from toolkit.plan.model_config import Shape, shape_of
from toolkit.plan.model_files import catalog_name, read_model
from toolkit.plan.weights import as_stored
from toolkit.records import Sighting

NEAREST = 4
STORED = ("fp8", "awq", "gptq-int4")
"""Quantizations that stand at the end of a checkpoint's name."""
PARTS = "-fp8 -awq -gptq-int4 -gptq -int4 -instruct".split()
"""Ends of names that do not change a model's shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One model."""

    shape: Shape
    on_disk: int | None
    notes: tuple[str, ...] = ()


def known_model(options: PlanOptions, seen: Sighting | None) -> KnownModel | None:
    """The model of the command line, else what the server names; None: the catalog does not know that one."""
    known = table("models")
    if options.model is None:
        name = _same_shape(seen.model or "", known) if seen else None
        return model_of(name) if name else None
    return model_of(options.model)


def model_of(word: str) -> KnownModel:
    """Read one. Raises ToolkitError, with the nearest names where it is unknown."""
    known = table("models")
    name = catalog_name(word, known)
    if name is None and not _may_be_a_path(word):
        raise ToolkitError(f"no model is called `{word}`, and no file either", _hint(word, known))
    model = read_model(word, known)
    shape = shape_of(model.config, model.name)
    if name and model.source == "catalog":
        shape = _as_named(shape, word)
    return KnownModel(shape=shape, on_disk=model.weight_bytes_on_disk, notes=model.notes)


def _as_named(shape: Shape, word: str) -> Shape:
    """The catalog has one config for `Qwen3-8B` and for `Qwen3-8B-AWQ`: who names the second means its weights."""
    stored = next((name for name in STORED if word.lower().endswith(f"-{name}")), None)
    if stored is None or shape.quantization is not None:
        return shape
    return replace(shape, quantization=as_stored(shape, stored))


def _may_be_a_path(word: str) -> bool:
    try:
        return Path(word).exists() or word.endswith(".json")
    except (OSError, ValueError):
        return False


def _same_shape(word: str, known: dict[str, dict[str, list[str]]]) -> str | None:
    """The catalog's name for a server's model, which may bear its quantization at the end."""
    name = word.rstrip("/").rpartition("/")[2].lower()
    while name:
        found = catalog_name(name, known)
        end = next((part for part in PARTS if name.endswith(part)), None)
        if found or end is None:
            return found
        name = name.removesuffix(end)
    return None


def _hint(word: str, known: dict[str, dict[str, list[str]]]) -> str:
    spelled = {
        alias.rpartition("/")[2].lower(): name
        for name, row in known.items()
        for alias in (name, *row.get("aliases", []))
    }
    wanted = word.rpartition("/")[2].lower()
    near = get_close_matches(wanted, spelled, n=2 * NEAREST, cutoff=0.5)
    names = list(dict.fromkeys(spelled[one] for one in near))[:NEAREST]
    told = f"Nearest: {', '.join(names)}" if names else f"Known: {', '.join(known)}"
    return f"{told}; or name a config.json, or a folder with one"
