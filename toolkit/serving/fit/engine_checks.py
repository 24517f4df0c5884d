"""Rules over the installed vLLM: is it there, and does the driver run the CUDA it was built for? Facts in, checks out. Pure."""

import shlex
from collections.abc import Iterator

from toolkit.serving.fit.facts import Engine, Facts
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check, bad, doubtful, good

SCRIPT = "/bin/vllm"


def checks(facts: Facts, needs: Needs) -> Iterator[Check]:
    """Nothing where no vLLM is needed."""
    engine = facts.engine
    if engine is None:
        return
    if engine.path is None:
        yield bad(
            "vllm",
            f"`{engine.command}` is not to be found: there is nothing to serve with",
            _install(engine, needs),
        )
    elif not engine.is_script:
        yield doubtful(
            "vllm", f"unknown: `{engine.path}` is no Python script, so its version cannot be asked"
        )
    elif engine.version is None:
        reason = engine.error or "its Python has no package `vllm`"
        yield bad("vllm", f"`{engine.path}` is there, but {reason}", _install(engine, needs))
    else:
        torch = f" with PyTorch {engine.torch}" if engine.torch else ""
        yield good("vllm", f"vLLM {engine.version}{torch} at `{engine.path}`")
        yield from _cuda(engine, facts, needs)


def _install(engine: Engine, needs: Needs) -> str:
    """A folder of its own: vLLM pins a hundred packages."""
    if not needs.gpu:
        return 'export PATH="$(tests/real/install_vllm.sh)/bin:$PATH"'  # in a checkout
    if engine.command.endswith(SCRIPT):
        home = shlex.quote(engine.command.removesuffix(SCRIPT))
        return f"python3 -m venv {home} && {home}/bin/pip install vllm"
    return 'python3 -m venv vllm-env && vllm-env/bin/pip install vllm && export PATH="$PWD/vllm-env/bin:$PATH"'


def _cuda(engine: Engine, facts: Facts, needs: Needs) -> Iterator[Check]:
    code, driver = "vllm_cuda", facts.gpus.cuda
    if not needs.gpu or not facts.gpus.gpus:
        return
    if engine.error:
        yield doubtful(code, f"unknown: {engine.error}")
    elif engine.cuda is None:
        why = "this vLLM was built for the CPU: it leaves the GPU alone"
        yield bad(code, why, _reinstall(engine))
    elif driver is None or (built := version(engine.cuda)) is None:
        yield doubtful(
            code,
            f"unknown: it was built for CUDA {engine.cuda}, and the driver does not tell what it runs",
        )
    else:
        yield _compared(code, built, driver, engine)


def _compared(code: str, built: tuple[int, int], driver: tuple[int, int], engine: Engine) -> Check:
    """Within a major version an older driver runs what is compiled, but not PTX of a newer one (NVIDIA's compatibility rules)."""
    told = f"vLLM was built for CUDA {engine.cuda}, the driver runs up to {driver[0]}.{driver[1]}"
    if built <= driver:
        return good(code, told)
    if built[0] == driver[0]:
        return doubtful(
            code,
            f"{told}: kernels that are compiled at the start may fail to load",
            _reinstall(engine),
        )
    return bad(code, f"{told}: it ends at the start, or sees no GPU", _reinstall(engine))


def _reinstall(engine: Engine) -> str:
    """`--torch-backend=auto` takes the PyTorch that this driver runs, as vLLM's own guide says."""
    python = (engine.path or "").removesuffix("/vllm") + "/python"
    return f"pip install uv && uv pip install --python {shlex.quote(python)} --torch-backend=auto --reinstall vllm"


def version(word: str) -> tuple[int, int] | None:
    """`12.8` is (12, 8)."""
    major, _, minor = word.partition(".")
    minor = minor.partition(".")[0] or "0"
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
