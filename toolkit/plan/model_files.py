"""Reads what is known of a model from a config.json or a directory of weights. Its only I/O: small reads.

Of weights it reads the headers alone. What a file claims is bounded before it is believed: a header may say it is terabytes long.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError, reason_of
from toolkit.plan.model_config import Shape, shape_of

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
QUANTIZED = {"quantize_config.json": "gptq", "hf_quant_config.json": "modelopt"}
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
class KnownModel:
    """A model whose config is known, before its weights are read."""

    shape: Shape
    served: str
    """What `vllm serve` takes: a name at Hugging Face, or a directory."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Quantization -> the checkpoint of it that the model's owner publishes; none for a directory, or for a copy of another owner's."""
    on_disk: int | None = None
    """Bytes of all its tensors but those for multi-token prediction; None: no weights are here to be measured."""
    notes: tuple[str, ...] = ()


def read_model(path: Path) -> KnownModel:
    """Read a config.json, or a directory that holds one and perhaps the weights. Raises ToolkitError."""
    if not path.is_dir():
        shape = shape_of(_json(path), _name(path.parent, path.stem))
        return KnownModel(shape=shape, served=str(path.parent))
    config = dict(_json(path / CONFIG))
    if "quantization_config" not in config:
        beside = next((path / one for one in QUANTIZED if (path / one).is_file()), None)
        if beside is not None:
            read, method = _json(beside), QUANTIZED[beside.name]
            config["quantization_config"] = {
                "quant_method": method,
                **read.get("quantization", read),
            }
    shape = shape_of(config, _name(path, "model"))
    files, notes = _weight_files(path)
    if not files:
        notes.append("no safetensors in the directory: weights are counted from the config")
        return KnownModel(shape=shape, served=str(path), notes=tuple(notes))
    drafts: tuple[str, ...] = DRAFTS
    if config.get("num_nextn_predict_layers"):
        drafts = (*DRAFTS, f"model.layers.{config.get('num_hidden_layers')}.")
    tensors = (tensor for file in files for tensor in _tensors(file))
    size = sum(size for name, size in tensors if not name.startswith(drafts))
    return KnownModel(shape=shape, served=str(path), on_disk=size, notes=tuple(notes))


def _name(folder: Path, otherwise: str) -> str:
    """Of a directory; Hugging Face's cache keeps a model at models--OWNER--NAME/snapshots/HASH."""
    parts = [part for part in folder.absolute().parts if part.startswith("models--")]
    if parts:
        return parts[-1].removeprefix("models--").replace("--", "/")
    return folder.absolute().name or otherwise


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
        is_one = len(found) == 1
        return [path for path in found if is_one or not path.name.startswith("consolidated")], []
    mapped = _json(index, LONGEST_HEADER).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise ToolkitError(f"`{index}` names no files", "Fetch it again, or delete it")
    named = {one for one in mapped.values() if isinstance(one, str)}
    if any(os.sep in one for one in named):
        raise ToolkitError(f"`{index}` names a file outside its directory", "Fetch it again")
    missing = sorted(named - {path.name for path in found})
    if missing:
        raise ToolkitError(
            f"`{folder}` lacks {len(missing)} of {len(named)} files of weights, the first: `{missing[0]:.80}`",
            "The download was cut: fetch it again",
        )
    notes = []
    if more := len(found) - len(named):
        them = "1 file of weights is" if more == 1 else f"{more:,} files of weights are"
        notes.append(f"{them} not in the index: not loaded")
    return [path for path in found if path.name in named], notes


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Name and bytes of every tensor of a file, by its header."""
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            first = opened.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or length > min(LONGEST_HEADER, size - 8):
                claim = (
                    f"claims a header of {length:,} bytes, and has {size:,}"
                    if len(first) == 8
                    else "is empty"
                )
                raise ToolkitError(f"`{path}` {claim}: no safetensors, or cut", "Fetch it again")
            raw = opened.read(length)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"the header of `{path}` is not JSON", "Fetch it again") from error
    if not isinstance(header, dict):
        raise ToolkitError(f"the header of `{path}` is no object", "Fetch it again")
    room = size - 8 - length
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        # only what lies inside the file is believed
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(isinstance(one, int) for one in offsets)
            or not 0 <= offsets[0] <= offsets[1] <= room
        ):
            raise ToolkitError(f"`{path}` ends before its tensor `{name:.80}`", "Fetch it again")
        yield name, offsets[1] - offsets[0]


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
    return ToolkitError(
        f"`{path}` cannot be read: {reason_of(error)}",
        "Name a model's config.json, the directory that holds it, or a model of the catalog",
    )
