"""The tiny model: made once, whole or not at all, by the Python that is named."""

import asyncio
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.tiny_model import MAKER, tiny

# Plays vLLM's Python: writes the files that the maker would, and notes what it was asked.
FAKE = """#!/bin/bash
echo "$@" >> "{calls}"
shift
for name in config.json model.safetensors tokenizer.json tokenizer_config.json; do echo x > "$1/$name"; done
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(FAKE.format(calls=tmp_path / "calls"))
    path.chmod(0o755)
    return path


def test_it_is_made_once(tmp_path: Path, python: Path) -> None:
    for _ in range(2):
        made = asyncio.run(tiny(tmp_path / "models", str(python)))
    assert made == tmp_path / "models" / "tiny"
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith(str(MAKER))
    assert list((tmp_path / "models").iterdir()) == [made]


def test_half_a_model_is_made_anew(tmp_path: Path, python: Path) -> None:
    half = tmp_path / "models" / "tiny"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{")
    assert asyncio.run(tiny(tmp_path / "models", str(python))) == half
    assert (half / "model.safetensors").exists()
    assert (half / "config.json").read_text() == "x\n"


def test_a_python_without_torch_is_told_with_its_own_last_word(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/bash\necho \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\n"
    )
    python.chmod(0o755)
    with pytest.raises(ToolkitError) as caught:
        asyncio.run(tiny(tmp_path / "models", str(python)))
    assert caught.value.message == (
        "the tiny model could not be made: ModuleNotFoundError: No module named 'torch'"
    )
    assert list((tmp_path / "models").iterdir()) == []
