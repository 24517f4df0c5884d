"""Configs and weights on disk: what is read of them, and what a broken or hostile one leads to."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.shapes import TINY

from toolkit.errors import ToolkitError
from toolkit.plan.catalog import model_of
from toolkit.plan.model_config import shape_of

CONFIG_BYTES, HEADER_BYTES = 4 * 2**20, 32 * 2**20
"""The longest that are read."""
INDEX = "model.safetensors.index.json"


def safetensors(tensors: Mapping[str, int], *, cut: int = 0) -> bytes:
    """A file of zeros: name -> bytes, as the format's own description lays it out."""
    header, at = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at - cut)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "small"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(TINY))
    return home


def shards(folder: Path, **files: dict[str, int]) -> None:
    mapped = {name: f"{file}.safetensors" for file, tensors in files.items() for name in tensors}
    for file, tensors in files.items():
        (folder / f"{file}.safetensors").write_bytes(safetensors(tensors))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": mapped}))


def size(folder: Path) -> int | None:
    return model_of(str(folder)).on_disk


def refused(path: Path) -> str:
    with pytest.raises(ToolkitError) as raised:
        model_of(str(path))
    return raised.value.message


def test_a_config_is_read_alone_or_in_a_folder_without_weights(folder: Path) -> None:
    alone = model_of(str(folder / "config.json"))
    assert (alone.shape, alone.on_disk) == (shape_of(TINY, "small"), None)
    without = model_of(str(folder))
    assert without.on_disk is None
    assert "no safetensors" in without.notes[0]
    os.mkfifo(folder / "model.safetensors")  # a pipe is not waited for
    assert size(folder) is None


def test_weights_are_added_up_by_their_headers(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({"a": 100, "b": 300}))
    assert size(folder) == 400
    # a second copy beside a single file is not counted
    (folder / "consolidated.safetensors").write_bytes(safetensors({"a": 150}))
    assert size(folder) == 400


def test_shards_are_those_of_the_index_whose_own_total_is_not_believed(folder: Path) -> None:
    shards(folder, one={"a": 100}, two={"b": 50})
    (folder / "consolidated.safetensors").write_bytes(safetensors({"a": 150}))
    model = model_of(str(folder))
    assert model.on_disk == 150
    assert model.notes == ("1 file of weights is not in the index: not loaded",)
    (folder / "two.safetensors").unlink()
    assert "lacks 1 of 2 files of weights, the first: `two.safetensors`" in refused(folder)


def test_layers_for_speculation_are_not_counted(folder: Path) -> None:
    shards(folder, one={"a": 100, "mtp.layers.0.x": 7})
    assert size(folder) == 100
    # DeepSeek's stands behind the last: TINY has 4 layers, 0 to 3
    (folder / "config.json").write_text(json.dumps(TINY | {"num_nextn_predict_layers": 1}))
    shards(folder, one={"model.layers.3.x": 100, "model.layers.4.x": 7})
    assert size(folder) == 100


def headed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\x01\x02", "is empty"),
        # a header that is longer than the file, and one of 2^63 bytes
        ((1000).to_bytes(8, "little") + b"{}", "claims a header of 1,000 bytes"),
        ((2**63).to_bytes(8, "little") + b"{}", "claims a header of 9,223,372,036,854,775,808"),
        (headed(b"xx"), "is not JSON"),
        (headed(b"[]"), "is no object"),
        (headed(b"[" * 20_000), "is not JSON"),
        (safetensors({"late": 100}, cut=1), "ends before its tensor `late`"),
        *(
            (headed(json.dumps({"a": tensor}).encode()) + bytes(8), "tensor `a`")
            for tensor in (None, [], {"dtype": "BF16"}, {"data_offsets": "ab"}, {"data_offsets": [0]})
        ),
        *(
            (headed(json.dumps({"a": {"data_offsets": pair}}).encode()) + bytes(8), "tensor `a`")
            for pair in ([5, 1], [-1, 1], [0, 1.5], [0, 9])
        ),
    ],
)  # fmt: skip
def test_a_broken_file_of_weights_is_refused(folder: Path, content: bytes, why: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    message = refused(folder)
    assert why in message
    assert "model.safetensors" in message


def test_what_is_endless_is_not_read_to_its_end(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((HEADER_BYTES + 1).to_bytes(8, "little"))
    os.truncate(path, HEADER_BYTES + 100)  # a hole: no byte of it is on disk
    assert "claims a header of 33,554,433 bytes" in refused(folder)
    os.truncate(folder / "config.json", CONFIG_BYTES + 1)
    assert "longer than 4,194,304 bytes" in refused(folder / "config.json")


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        (INDEX, "{}", "names no files"),
        (INDEX, '{"weight_map": {}}', "names no files"),
        (INDEX, '{"weight_map": ["a"]}', "names no files"),
        (INDEX, '{"weight_map": {"a": "../../secret.safetensors"}}', "outside its directory"),
        ("config.json", "{", "is not JSON"),
        ("config.json", "[1]", "is no object"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    folder: Path, file: str, text: str, why: str
) -> None:
    (folder / file).write_text(text)
    assert why in refused(folder)


def test_a_directory_without_a_config_names_what_is_missing(tmp_path: Path) -> None:
    assert "config.json` cannot be read: no such file" in refused(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "name", "group"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32}, "gptq-int4", 32),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "nvfp4", 16),
    ],
)
def test_older_quantizers_own_files_are_read(
    folder: Path, file: str, content: object, name: str, group: int
) -> None:
    (folder / file).write_text(json.dumps(content))
    found = model_of(str(folder)).shape.quantization
    assert found is not None
    assert (found.name, found.group) == (name, group)


def test_a_model_in_hugging_faces_cache_has_its_own_name(tmp_path: Path) -> None:
    home = tmp_path / "models--Qwen--Qwen2.5-7B" / "snapshots" / "abc"
    home.mkdir(parents=True)
    (home / "config.json").write_text(json.dumps(TINY))
    assert model_of(str(home)).shape.name == "Qwen/Qwen2.5-7B"


def test_the_catalog_knows_a_model_by_any_of_its_names() -> None:
    for word, quantization in (
        ("Qwen2.5-7B-Instruct", None),
        ("qwen/qwen2.5-7b-instruct", None),
        ("qwen2.5-7b", None),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq"),
    ):
        found = model_of(word).shape
        assert found.name == "Qwen2.5-7B-Instruct"
        assert (found.quantization and found.quantization.name) == quantization
    example = model_of("example-27b")
    assert example.on_disk == 54_000_000_000
    assert "the 58 that it is published with" in example.notes[0]


@pytest.mark.parametrize("word", ["\0", "x" * 5000, "nowhere/config.json"])
def test_a_word_that_is_no_path_is_no_crash(word: str) -> None:
    refused(Path(word))
