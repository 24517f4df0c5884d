"""Makes a tiny random model with vLLM's own Python, which has torch: `toolkit serve --tiny` downloads nothing.

It runs make_tiny_model.py there and loads no torch into our own process.
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from toolkit.errors import ToolkitError

MAKER = Path(__file__).with_name("make_tiny_model.py")
LIMIT_S = 300.0
"""The imports take most of it: 20 s on two busy cores."""
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


async def tiny(folder: Path, python: str, *, hidden: int = 128, layers: int = 2) -> Path:
    """Make the model in `folder` unless it is there; its directory, named after its sizes.

    0.56 million parameters by default, about 2 ms a token; 512 and 24 give 57.7 million, about 25 ms a token.
    Raises ToolkitError where that Python lacks what it takes.
    """
    made = folder / ("tiny" if (hidden, layers) == (128, 2) else f"tiny-{hidden}x{layers}")
    if all((made / name).is_file() for name in FILES):
        return made
    part = _begun(folder)
    try:
        await _make(part, python, hidden, layers)
        _finish(part, made)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def _begun(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".tiny-", dir=folder))


def _finish(part: Path, made: Path) -> None:
    """Whole or not at all: somebody who was interrupted may have left half of one."""
    shutil.rmtree(made, ignore_errors=True)
    part.chmod(0o755)
    part.replace(made)


async def _make(folder: Path, python: str, hidden: int, layers: int) -> None:
    sizes = ["--hidden-size", str(hidden), "--layers", str(layers)]
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, str(MAKER), str(folder), *sizes),
            # offline, and without the variables that are for our own Python
            env={
                name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ToolkitError(
            f"`{python}` can't be started: {(error.strerror or 'no reason given').lower()}",
            "Name the vLLM whose Python makes the model, e.g., `--vllm ~/venv/bin/vllm`",
        ) from error
    try:
        _, said = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError as error:
        raise ToolkitError(
            f"the tiny model was not made in {LIMIT_S:.0f} s", "Run it again when the machine rests"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise ToolkitError(
            f"the tiny model could not be made: {_last(said)}",
            f"`{python}` must be the Python of a vLLM: it wants torch, transformers and tokenizers",
        )


def _last(said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
