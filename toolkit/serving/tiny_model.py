"""Makes a tiny random model with vLLM's own Python, which has torch: `toolkit serve --tiny` downloads nothing.

It runs make_tiny_model.py there and loads no torch into our own process.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.serving.engine_command import ran

MAKER = Path(__file__).with_name("make_tiny_model.py")
LIMIT_S = 300.0
"""The imports take most of it: 20 s on two busy cores."""
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


async def tiny(folder: Path, python: str) -> Path:
    """Make the model in `folder` unless it is there; its directory. 0.56 million parameters, about 2 ms a token.

    Raises ToolkitError where that Python lacks what it takes.
    """
    made = folder / "tiny"
    if all((made / name).is_file() for name in FILES):
        return made
    # without the variables that are for our own Python
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with _whole(made) as part:
        code, _, said = await ran([python, str(MAKER), str(part)], env, LIMIT_S)
        if code != 0:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise ToolkitError(
                f"the tiny model could not be made: {last[0].strip()[:200]}",
                f"`{python}` must be the Python of a vLLM: it wants torch, transformers and tokenizers",
            )
    return made


@contextmanager
def _whole(made: Path) -> Iterator[Path]:
    """A new folder that is `made` after the block, whole or not at all: somebody who was interrupted may have left half of one."""
    made.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".tiny-", dir=made.parent))
    try:
        yield part
        shutil.rmtree(made, ignore_errors=True)
        part.chmod(0o755)
        part.replace(made)
    finally:
        shutil.rmtree(part, ignore_errors=True)
