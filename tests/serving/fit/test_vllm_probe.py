"""Which vLLM a command would start: environments by hand, asked by a real Python."""

import sys
from pathlib import Path

import pytest

from toolkit.serving.fit import vllm_probe
from toolkit.serving.fit.facts import Engine
from toolkit.serving.fit.vllm_probe import engine


def installed(
    folder: Path, *, vllm: str | None = "0.32.0", torch: str | None = None, shebang: str = ""
) -> Path:
    """An environment with what pip would have written there; its Python is this one with one more folder."""
    packages = folder / "packages"
    for name, version in (("vllm", vllm), ("torch", "2.13.0" if torch is not None else None)):
        if version:
            about = packages / f"{name}-{version}.dist-info" / "METADATA"
            about.parent.mkdir(parents=True)
            about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if torch is not None:
        (packages / "torch").mkdir(parents=True)
        (packages / "torch/__init__.py").write_text("raise SystemExit('it was imported')\n")
        (packages / "torch/version.py").write_text(torch)
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    script = folder / "bin" / "vllm"
    script.write_text(shebang or f"#!{python}\nraise SystemExit('it was started')\n")
    for file in (python, script):
        file.chmod(0o755)
    return script


CUDA = "from typing import Optional\n__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\n"


def test_the_version_and_the_cuda_are_told_and_nothing_is_imported(tmp_path: Path) -> None:
    script = str(installed(tmp_path, torch=CUDA))
    assert engine(script) == Engine(
        command=script, path=script, version="0.32.0", torch="2.13.0", cuda="12.8"
    )


def test_a_build_for_the_cpu_has_no_cuda(tmp_path: Path) -> None:
    found = engine(str(installed(tmp_path, torch="cuda = None\n")))
    assert (found.version, found.cuda, found.error) == ("0.32.0", None, None)


def test_a_name_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = installed(tmp_path)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    assert engine("vllm").path == str(script)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert engine("vllm") == Engine(command="vllm")


def test_a_script_that_names_its_python_the_long_way_is_understood(tmp_path: Path) -> None:
    """What pip writes where the path of Python is longer than the kernel's 127 characters, or has blanks."""
    python = tmp_path / "bin" / "python"
    long = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    assert engine(str(installed(tmp_path, shebang=long))).version == "0.32.0"


def test_a_python_without_vllm_has_no_version(tmp_path: Path) -> None:
    found = engine(str(installed(tmp_path, vllm=None, torch=CUDA)))
    assert (found.version, found.torch, found.error) == (None, "2.13.0", None)


def test_a_broken_pytorch_is_told_and_the_version_still_known(tmp_path: Path) -> None:
    found = engine(str(installed(tmp_path, torch="cuda = 1 / 0\n")))
    assert (found.version, found.cuda) == ("0.32.0", None)
    assert found.error is not None
    assert "ZeroDivisionError" in found.error


@pytest.mark.parametrize(
    "shebang", ["\x7fELF...", "#!/bin/sh\ndocker run\n", "#!\n", "", "#!/usr/bin/env bash\n"]
)
def test_a_wrapper_in_another_language_is_not_asked(tmp_path: Path, shebang: str) -> None:
    """A shell would take the question for commands."""
    script = installed(tmp_path)
    script.write_text(shebang)
    assert engine(str(script)) == Engine(command=str(script), path=str(script), is_script=False)


def test_a_python_that_env_looks_for_is_understood(tmp_path: Path) -> None:
    found = engine(str(installed(tmp_path, vllm=None, shebang="#!/usr/bin/env python3\n")))
    assert (found.is_script, found.error) == (True, None)


def python_that(folder: Path, does: str) -> Path:
    python = folder / "python-odd"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("exit 1", "failed: it ended with 1"),
        ("echo boom >&2; exit 1", "failed: boom"),
        ("echo hello", "answered something else"),
        ("true", "answered something else"),
    ],
)
def test_a_python_that_cannot_be_asked_is_told_with_its_reason(
    tmp_path: Path, does: str, reason: str
) -> None:
    python = python_that(tmp_path, does)
    found = engine(str(installed(tmp_path, shebang=f"#!{python}\n")))
    assert found.version is None
    assert found.error == f"`{python}` {reason}"


def test_a_python_that_is_gone_is_told(tmp_path: Path) -> None:
    found = engine(str(installed(tmp_path, shebang="#!/no/such/python\n")))
    assert found.error == "`/no/such/python` cannot be run: no such file or directory"


def test_a_python_that_hangs_is_left_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_probe, "LIMIT_S", 0.1)
    asleep = python_that(tmp_path, "exec sleep 30")
    found = engine(str(installed(tmp_path, shebang=f"#!{asleep}\n")))
    assert "did not answer within" in (found.error or "")


def test_a_command_that_no_shell_reads_is_not_found() -> None:
    assert engine("'unclosed").path is None
    assert engine("").path is None
