"""Configs and weights on disk: what is read of them, and what a broken or hostile one leads to."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.shapes import TINY

from toolkit.errors import ToolkitError
from toolkit.plan.model_config import shape_of
from toolkit.plan.model_files import LONGEST_CONFIG, LONGEST_HEADER, read_model

KNOWN: dict[str, dict[str, Any]] = {
    "Small-7B": {"aliases": ["Small-7B-AWQ"], "config": TINY},
    "example": {"config": TINY, "weight_bytes": 54, "note": "no real model"},
}


def safetensors(tensors: Mapping[str, tuple[str, int]], *, cut: int = 0) -> bytes:
    """A file of zeros: name -> dtype and bytes, as the format's own description lays it out."""
    header, at = {}, 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at - cut)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "small"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(TINY))
    return home


def test_a_config_json_alone_is_read(folder: Path) -> None:
    model = read_model(str(folder / "config.json"), KNOWN)
    assert model.shape == shape_of(TINY, "small")
    assert model.on_disk is None


def test_a_directory_without_weights_says_so(folder: Path) -> None:
    model = read_model(str(folder), KNOWN)
    assert model.on_disk is None
    assert "no safetensors" in model.notes[0]


def test_one_file_of_weights_is_added_up_by_its_header(folder: Path) -> None:
    weights = safetensors({"a": ("BF16", 100), "b": ("F8_E4M3", 300)})
    (folder / "model.safetensors").write_bytes(weights)
    model = read_model(str(folder), KNOWN)
    assert model.on_disk == 400


def shards(folder: Path, **files: dict[str, tuple[str, int]]) -> None:
    mapped = {name: f"{file}.safetensors" for file, tensors in files.items() for name in tensors}
    for file, tensors in files.items():
        (folder / f"{file}.safetensors").write_bytes(safetensors(tensors))
    index = {"metadata": {"total_size": 0}, "weight_map": mapped}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_added_up_and_their_indexs_own_total_is_not_believed(folder: Path) -> None:
    shards(folder, one={"a": ("BF16", 100)}, two={"b": ("BF16", 50)})
    assert read_model(str(folder), KNOWN).on_disk == 150


def test_a_second_copy_of_the_weights_is_not_counted(folder: Path) -> None:
    shards(folder, one={"a": ("BF16", 100)}, two={"b": ("BF16", 50)})
    (folder / "consolidated.safetensors").write_bytes(safetensors({"a": ("BF16", 150)}))
    model = read_model(str(folder), KNOWN)
    assert model.on_disk == 150
    assert model.notes == ("1 file of weights is not in the index: not loaded",)


def test_a_second_copy_beside_a_single_file_is_not_counted(folder: Path) -> None:
    for name in ("consolidated", "model"):
        (folder / f"{name}.safetensors").write_bytes(safetensors({"a": ("BF16", 150)}))
    assert read_model(str(folder), KNOWN).on_disk == 150


def test_layers_for_speculation_are_told_apart(folder: Path) -> None:
    shards(folder, one={"a": ("BF16", 100), "mtp.layers.0.x": ("BF16", 7)})
    model = read_model(str(folder), KNOWN)
    assert model.on_disk == 100


def test_deepseeks_layer_for_speculation_stands_behind_the_last(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(TINY | {"num_nextn_predict_layers": 1}))
    # TINY has 4 layers: 0 to 3
    shards(folder, one={"model.layers.3.x": ("BF16", 100), "model.layers.4.x": ("BF16", 7)})
    model = read_model(str(folder), KNOWN)
    assert model.on_disk == 100


def test_a_pipe_among_the_weights_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "model.safetensors")
    assert read_model(str(folder), KNOWN).on_disk is None


def test_a_missing_shard_is_named(folder: Path) -> None:
    shards(folder, one={"a": ("BF16", 100)}, two={"b": ("BF16", 50)})
    (folder / "two.safetensors").unlink()
    with pytest.raises(ToolkitError, match=r"lacks 1 of 2 .* `two.safetensors`"):
        read_model(str(folder), KNOWN)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\x01\x02", "is empty"),
        # a header that is longer than the file, and one of 2^63 bytes
        ((1000).to_bytes(8, "little") + b"{}", "claims a header of 1,000 bytes"),
        ((2**63).to_bytes(8, "little") + b"{}", "claims a header of 9,223,372,036,854,775,808"),
        ((2).to_bytes(8, "little") + b"xx", "is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "is no object"),
        ((20_000).to_bytes(8, "little") + b"[" * 20_000, "is not JSON"),
        (safetensors({"late": ("BF16", 100)}, cut=1), "ends before its tensor `late`"),
    ],
)
def test_a_broken_file_of_weights_is_refused(folder: Path, content: bytes, told: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ToolkitError) as raised:
        read_model(str(folder), KNOWN)
    assert told in raised.value.message
    assert "model.safetensors" in raised.value.message


def test_a_huge_header_is_not_read_though_the_file_is_as_long(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((LONGEST_HEADER + 1).to_bytes(8, "little"))
    # a hole: no byte of it is on disk
    os.truncate(path, LONGEST_HEADER + 100)
    with pytest.raises(ToolkitError, match="claims a header of 33,554,433 bytes"):
        read_model(str(folder), KNOWN)


@pytest.mark.parametrize(
    "tensor",
    [None, [], {"dtype": "BF16"}, {"data_offsets": "ab"}, {"data_offsets": [0]}]
    + [{"data_offsets": pair} for pair in ([5, 1], [-1, 1], [0, 1.5], [0, 9])],
)
def test_a_tensor_without_sane_offsets_is_refused(folder: Path, tensor: object) -> None:
    text = json.dumps({"a": tensor}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ToolkitError, match="tensor `a`"):
        read_model(str(folder), KNOWN)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}])
def test_an_index_that_names_no_files_is_refused(folder: Path, index: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ToolkitError, match="names no files"):
        read_model(str(folder), KNOWN)


def test_an_index_cannot_lead_outside_its_directory(folder: Path) -> None:
    shards(folder)
    index = {"weight_map": {"a": "../../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ToolkitError, match="outside its directory"):
        read_model(str(folder), KNOWN)


@pytest.mark.parametrize(("text", "told"), [("{", "is not JSON"), ("[1]", "is no object")])
def test_a_config_that_is_none_is_refused(folder: Path, text: str, told: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ToolkitError, match=told):
        read_model(str(folder), KNOWN)


def test_an_endless_config_is_not_read_to_its_end(folder: Path) -> None:
    os.truncate(folder / "config.json", LONGEST_CONFIG + 1)
    with pytest.raises(ToolkitError, match="longer than 4,194,304 bytes"):
        read_model(str(folder / "config.json"), KNOWN)


def test_a_directory_without_a_config_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot be read: no such file") as raised:
        read_model(str(tmp_path), KNOWN)
    assert "config.json" in raised.value.hint


def test_an_older_quantizers_own_file_is_read(folder: Path) -> None:
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32}))
    found = read_model(str(folder), KNOWN).shape.quantization
    assert found is not None
    assert (found.name, found.group) == ("gptq-int4", 32)


def test_modelopts_own_file_is_read(folder: Path) -> None:
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(beside))
    found = read_model(str(folder), KNOWN).shape.quantization
    assert found is not None
    assert found.name == "nvfp4"


def test_a_model_in_hugging_faces_cache_has_its_own_name(tmp_path: Path) -> None:
    home = tmp_path / "models--Qwen--Qwen2.5-7B" / "snapshots" / "abc"
    home.mkdir(parents=True)
    (home / "config.json").write_text(json.dumps(TINY))
    assert read_model(str(home), KNOWN).shape.name == "Qwen/Qwen2.5-7B"


@pytest.mark.parametrize("word", ["Small-7B", "small-7b", "acme/Small-7B", "Small-7B-AWQ"])
def test_the_catalog_knows_a_model_by_any_of_its_names(word: str) -> None:
    model = read_model(word, KNOWN)
    assert model.shape.name == "Small-7B"
    is_awq = model.shape.quantization is not None
    assert is_awq is word.endswith("AWQ")


def test_the_catalog_may_know_bytes_and_have_something_to_say() -> None:
    model = read_model("example", KNOWN)
    assert (model.on_disk, model.notes) == (54, ("no real model",))


def test_an_unknown_name_hears_the_nearest() -> None:
    with pytest.raises(ToolkitError, match="no model is called `smal-7b`") as raised:
        read_model("smal-7b", KNOWN)
    assert raised.value.hint.startswith("Nearest: Small-7B;")
    with pytest.raises(ToolkitError) as raised:
        read_model("zzz", KNOWN)
    assert raised.value.hint.startswith("Known: Small-7B, example;")


@pytest.mark.parametrize("word", ["\0", "x" * 5000, "nowhere/config.json"])
def test_a_word_that_is_no_path_is_no_crash(word: str) -> None:
    with pytest.raises(ToolkitError):
        read_model(word, KNOWN)
