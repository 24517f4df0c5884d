"""Rules over the installed vLLM: which command installs it, and whether the driver runs its CUDA."""

import pytest

from toolkit.serving.fit.engine_checks import checks, version
from toolkit.serving.fit.facts import Engine, Facts, Gpu, Gpus
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check

GPUS = Gpus(driver="550.54", cuda=(12, 4), gpus=(Gpu(index=0),))


INTO_A_FOLDER = (
    "python3 -m venv vllm-env && vllm-env/bin/pip install vllm"
    ' && export PATH="$PWD/vllm-env/bin:$PATH"'
)


def judged(
    engine: Engine | None, needs: Needs | None = None, gpus: Gpus = GPUS
) -> dict[str, Check]:
    facts = Facts(engine=engine, gpus=gpus)
    return {check.check: check for check in checks(facts, needs or Needs())}


def built(cuda: str | None) -> Engine:
    return Engine(command="vllm", path="/v/bin/vllm", version="0.32.0", torch="2.13.0", cuda=cuda)


def test_where_no_vllm_is_needed_nothing_is_said() -> None:
    assert judged(None) == {}


@pytest.mark.parametrize(
    ("command", "needs", "fix"),
    [
        (
            "vllm",
            Needs(),
            INTO_A_FOLDER,
        ),
        (
            "/opt/my vllm/bin/vllm",
            Needs(),
            "python3 -m venv '/opt/my vllm' && '/opt/my vllm'/bin/pip install vllm",
        ),
        ("vllm", Needs(gpu=False), 'export PATH="$(tests/real/install_vllm.sh)/bin:$PATH"'),
    ],
)
def test_a_missing_vllm_comes_with_the_command_that_installs_it(
    command: str, needs: Needs, fix: str
) -> None:
    found = judged(Engine(command=command), needs)["vllm"]
    assert (found.status, found.fix) == ("fail", fix)


def test_a_command_whose_python_has_no_vllm_fails() -> None:
    found = judged(Engine(command="vllm", path="/usr/bin/vllm"))["vllm"]
    assert found.status == "fail"
    assert "no package `vllm`" in found.why


def test_a_command_that_is_no_script_is_unknown() -> None:
    found = judged(Engine(command="vllm", path="/usr/bin/vllm", is_script=False))["vllm"]
    assert (found.status, found.fix) == ("warn", None)


@pytest.mark.parametrize(
    ("cuda", "status"),
    [
        ("12.4", "ok"),
        ("12.1", "ok"),
        ("11.8", "ok"),
        ("12.8", "warn"),  # the same major version: compiled code runs, PTX may not
        ("13.0", "fail"),
        (None, "fail"),  # built for the CPU
        ("rocm", "warn"),
    ],
)
def test_the_cuda_of_vllm_is_compared_with_the_drivers(cuda: str | None, status: str) -> None:
    found = judged(built(cuda))["vllm_cuda"]
    assert found.status == status
    if status == "fail":
        assert found.fix == (
            "pip install uv && uv pip install --python /v/bin/python --torch-backend=auto --reinstall vllm"
        )


def test_cuda_is_nobodys_business_where_the_cpu_serves() -> None:
    assert set(judged(built(None), Needs(gpu=False))) == {"vllm"}
    assert set(judged(built("13.0"), gpus=Gpus())) == {"vllm"}


def test_versions_of_cuda_are_read() -> None:
    assert version("12.8") == (12, 8)
    assert version("13") == (13, 0)
    assert version("12.8.1") == (12, 8)
    assert version("rocm6.2") is None
