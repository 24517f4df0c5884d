"""Reads what is known of a model: a config.json, a directory of weights, or a name of the catalog. Its only I/O: small reads.

Of weights it reads the headers alone. What a file claims is bounded before it is believed: a header may say it is terabytes long.
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.errors import ToolkitError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
QUANTIZED = ("quantize_config.json", "hf_quant_config.json")
"""Where older AutoGPTQ and ModelOpt say what others put into the config."""
LONGEST_CONFIG = 4 * 2**20
"""Published ones have some kilobytes; those with lists of modules that stay in 16 bit some hundred."""
LONGEST_HEADER = 32 * 2**20
"""The format's own bound is 100 MB; 93,000 tensors (256 experts in 61 layers, with scales) of 130 bytes each are 12 MB."""
MOST_FILES = 4096
NO_CONFIG = "Name a model's config.json, or its directory; if this is the one, fetch it again"
DRAFTS = ("mtp.", "model.mtp.")
"""Names of the tensors for multi-token prediction (Qwen), which vLLM loads for speculation only. DeepSeek's are layers behind
the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What is known of one model before its weights are read."""

    name: str
    config: Mapping[str, Any]
    source: str
    """`catalog`, or the path it was read from."""
    weight_bytes_on_disk: int | None = None
    """Of all tensors but those for multi-token prediction; None: no weights were found."""
    draft_bytes_on_disk: int = 0
    dtypes: tuple[tuple[str, int], ...] = ()
    """Bytes by the files' own words, e.g., BF16 and F8_E4M3, the most first."""
    notes: tuple[str, ...] = ()


def read_model(word: str, known: Mapping[str, Mapping[str, Any]]) -> ModelFiles:
    """Read the path, else the catalog's model of this name. Raises ToolkitError."""
    path = Path(word)
    if _is_path(word, path):
        return _from_directory(path) if path.is_dir() else _from_config(path)
    name = catalog_name(word, known)
    if name is None:
        raise ToolkitError(f"no model is called `{word}`, and no file either", _hint(word, known))
    entry = known[name]
    return ModelFiles(
        name=name,
        config=entry["config"],
        source="catalog",
        weight_bytes_on_disk=entry.get("weight_bytes"),
        notes=(entry["note"],) if "note" in entry else (),
    )


def catalog_name(word: str, known: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The catalog's name for this one: case, the owner before the slash and what the catalog calls aliases are all one."""
    wanted = _plain(word)
    for name, entry in known.items():
        if wanted in {_plain(one) for one in _names(name, entry)}:
            return name
    return None


def _names(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    return name, *entry.get("aliases", ())


def _plain(word: str) -> str:
    return word.rpartition("/")[2].casefold()


def _is_path(word: str, path: Path) -> bool:
    try:
        return path.exists() or word.endswith(".json")
    except (OSError, ValueError):
        return False


def _hint(word: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The nearest names, else all."""
    plain = {_plain(alias): name for name in known for alias in _names(name, known[name])}
    near = difflib.get_close_matches(_plain(word), plain, n=3, cutoff=0.5)
    names = list(dict.fromkeys(plain[one] for one in near))
    told = f"Did you mean {' or '.join(f'`{name}`' for name in names)}?" if names else ""
    told = told or f"Known: {', '.join(known)}."
    return f"{told} Or name a config.json, or a directory with one"


def _from_config(path: Path) -> ModelFiles:
    config = _json(path)
    return ModelFiles(name=_name(path.parent, path.stem), config=config, source=str(path))


def _from_directory(folder: Path) -> ModelFiles:
    config = dict(_json(folder / CONFIG))
    if "quantization_config" not in config:
        config |= _quantized_beside(folder)
    files, notes = _weight_files(folder)
    if not files:
        told = (*notes, "no safetensors in the directory: weights are counted from the config")
        return ModelFiles(
            name=_name(folder, "model"), config=config, source=str(folder), notes=told
        )
    sizes = _sizes(files)
    drafts = sum(size for name, _, size in sizes if name.startswith(_draft_names(config)))
    return ModelFiles(
        name=_name(folder, "model"),
        config=config,
        source=str(folder),
        weight_bytes_on_disk=sum(size for _, _, size in sizes) - drafts,
        draft_bytes_on_disk=drafts,
        dtypes=_by_dtype(sizes),
        notes=tuple(notes),
    )


def _draft_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    if not config.get("num_nextn_predict_layers"):
        return DRAFTS
    return (*DRAFTS, f"model.layers.{config.get('num_hidden_layers')}.")


def _name(folder: Path, otherwise: str) -> str:
    """Of a directory; Hugging Face's cache keeps a model at models--OWNER--NAME/snapshots/HASH."""
    parts = [part for part in folder.absolute().parts if part.startswith("models--")]
    if parts:
        return parts[-1].removeprefix("models--").replace("--", "/")
    return folder.absolute().name or otherwise


def _quantized_beside(folder: Path) -> dict[str, Any]:
    for name in QUANTIZED:
        path = folder / name
        if path.is_file():
            read = _json(path)
            inner = read.get("quantization", read)
            method = {"quantize_config.json": "gptq", "hf_quant_config.json": "modelopt"}[name]
            return {"quantization_config": {"quant_method": method, **inner}}
    return {}


def _weight_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The files that vLLM would load: those of the index where there is one, else all at the top of the directory.

    Some repositories hold the same weights twice, in shards and in one `consolidated.safetensors`: the index tells them apart.
    """
    # files only: opening a pipe would wait for ever
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if len(found) > MOST_FILES:
        raise ToolkitError(
            f"`{folder}` holds more than {MOST_FILES:,} files of weights",
            "Name a directory with one model, or the model's config.json",
        )
    index = folder / INDEX
    if not index.is_file():
        return [path for path in found if len(found) == 1 or not _is_copy(path)], []
    named = _names_in(index)
    missing = sorted(named - {path.name for path in found})
    if missing:
        raise ToolkitError(
            f"`{folder}` lacks {len(missing)} of {len(named)} files of weights, the first: `{missing[0]:.80}`",
            "The download was cut: fetch it again",
        )
    notes = _beside_the_index(len(found) - len(named))
    return [path for path in found if path.name in named], notes


def _beside_the_index(files: int) -> list[str]:
    if not files:
        return []
    told = "1 file of weights is" if files == 1 else f"{files:,} files of weights are"
    return [f"{told} not in the index: not loaded"]


def _is_copy(path: Path) -> bool:
    return path.name.startswith("consolidated")


def _names_in(index: Path) -> set[str]:
    mapped = _json(index, LONGEST_HEADER).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise ToolkitError(f"`{index}` names no files", "Fetch it again, or delete it")
    names = {one for one in mapped.values() if isinstance(one, str)}
    if any(os.sep in one for one in names):
        raise ToolkitError(f"`{index}` names a file outside its directory", "Fetch it again")
    return names


Tensor = tuple[str, str, int]
"""Name, dtype, bytes."""


def _sizes(files: list[Path]) -> list[Tensor]:
    return [tensor for path in files for tensor in _tensors(path)]


def _tensors(path: Path) -> Iterator[Tensor]:
    """Every tensor of a file, by its header."""
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            header, start = _header(path, opened, size)
    except OSError as error:
        raise _unreadable(path, error) from error
    for name, tensor in header.items():
        if name != "__metadata__":
            yield name, *_dtype_and_size(path, name, tensor, size - start)


def _header(path: Path, opened: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    first = opened.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(LONGEST_HEADER, size - 8):
        claim = (
            f"claims a header of {length:,} bytes, and has {size:,}"
            if len(first) == 8
            else "is empty"
        )
        raise ToolkitError(f"`{path}` {claim}: no safetensors, or cut", "Fetch it again")
    try:
        header = json.loads(opened.read(length))
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"the header of `{path}` is not JSON", "Fetch it again") from error
    if not isinstance(header, dict):
        raise ToolkitError(f"the header of `{path}` is no object", "Fetch it again")
    return header, 8 + length


def _dtype_and_size(path: Path, name: str, tensor: object, room: int) -> tuple[str, int]:
    """A tensor's, if it lies inside the file."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if (
        not isinstance(tensor, dict)
        or not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(isinstance(one, int) for one in offsets)
        or not 0 <= offsets[0] <= offsets[1] <= room
    ):
        raise ToolkitError(f"`{path}` ends before its tensor `{name:.80}`", "Fetch it again")
    return str(tensor.get("dtype")), offsets[1] - offsets[0]


def _by_dtype(sizes: list[Tensor]) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for _, dtype, size in sizes:
        totals[dtype] = totals.get(dtype, 0) + size
    return tuple(sorted(totals.items(), key=lambda pair: -pair[1]))


def _json(path: Path, longest: int = LONGEST_CONFIG) -> dict[str, Any]:
    """Read an object. Raises ToolkitError."""
    try:
        with path.open("rb") as opened:
            raw = opened.read(longest + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if len(raw) > longest:
        raise ToolkitError(
            f"`{path}` is longer than {longest:,} bytes, no model's config is", NO_CONFIG
        )
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"`{path}` is not JSON", NO_CONFIG) from error
    if not isinstance(read, dict):
        raise ToolkitError(f"`{path}` is no object, so no model's config", NO_CONFIG)
    return read


def _unreadable(path: Path, error: Exception) -> ToolkitError:
    reason = getattr(error, "strerror", None) or "no reason given"
    return ToolkitError(
        f"`{path}` cannot be read: {reason.lower()}",
        "Name a model's config.json, the directory that holds it, or a model of the catalog",
    )
