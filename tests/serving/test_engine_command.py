"""The command line and the environment of an engine; the simulator's by hand, vLLM's by a made-up one with a real help text's form."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.engine_command import LaunchConfig, max_num_seqs
from toolkit.serving.stack import EngineSetting

SIM = EngineSetting(name="e", kind="sim", model="fp8", port=9001)
VLLM = EngineSetting(name="e", model="org/m", port=9001)
HELP = """usage: vllm serve
  --host HOST           where
  --port PORT           where
  --served-model-name NAME [NAME ...]
  --max-model-len N     longest
  --max-num-seqs N      most
  --enforce-eager, --no-enforce-eager
  --block-size N
  --num-gpu-blocks-override N
"""


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    """A command that tells a help like vLLM's."""
    command = tmp_path / "vllm"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nprint({HELP!r} if 'serve' in sys.argv else '0.32.0')\n"
    )
    command.chmod(0o755)
    return str(command)


class Words(NamedTuple):
    argv: Sequence[str]
    env: dict[str, str]
    notes: Sequence[str]


def words(setting: EngineSetting, folder: Path = Path("f")) -> Words:
    speller = LaunchConfig(toolkit=("toolkit",), folder=folder, tiny_model=Path("/models/tiny"))
    return Words(*asyncio.run(speller.words(setting)))


def test_the_simulators_options_and_settings_are_told_apart() -> None:
    flags = (("time-scale", "0.1"), ("prefix-caching", False), ("num_gpu_blocks", "64"))
    told = words(replace(SIM, served_name="m", key_env="KEY", flags=flags))
    assert " ".join(told.argv) == (
        "toolkit sim serve --personality fp8 --host 127.0.0.1 --port 9001 --model m --api-key-env KEY"
        " --time-scale 0.1 --set prefix_caching=false --set num_gpu_blocks=64"
    )


def test_vllm_is_given_model_port_and_flags_and_its_key_never_on_the_command_line(
    vllm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    setting = replace(
        VLLM, vllm=vllm, served_name="m", key_env="MY_KEY", gpus="1", env=(("A", "b"),),
        flags=(("max-model-len", "512"),),
    )  # fmt: skip
    told = words(setting)
    assert told.argv == (
        vllm, "serve", "org/m", "--host", "127.0.0.1", "--port", "9001",
        "--served-model-name", "m", "--max-model-len", "512",
    )  # fmt: skip
    assert (told.env["VLLM_API_KEY"], told.env["CUDA_VISIBLE_DEVICES"], told.env["A"]) == (
        "secret",
        "1",
        "b",
    )
    assert told.env["PATH"] == os.environ["PATH"]


def test_an_engine_fetches_from_where_the_proxy_lets_it_and_its_own_flag_wins(
    tmp_path: Path, vllm: str
) -> None:
    newer = tmp_path / "newer"
    domains = "\n  --allowed-media-domains DOMAINS [DOMAINS ...]\n"
    newer.write_text(Path(vllm).read_text().replace(repr(HELP), repr(HELP + domains)))
    newer.chmod(0o755)
    setting = replace(VLLM, vllm=str(newer))

    def told(hosts: tuple[str, ...], flags: tuple[tuple[str, str | bool], ...] = ()) -> list[str]:
        speller = LaunchConfig(toolkit=("toolkit",), folder=tmp_path, media_hosts=hosts)
        argv = Words(*asyncio.run(speller.words(replace(setting, flags=flags)))).argv
        at = argv.index("--allowed-media-domains") if "--allowed-media-domains" in argv else None
        return [] if at is None else list(argv[at + 1 :])

    assert told(()) == ["nowhere.invalid"]
    assert told(("a.example", "b.example")) == ["a.example", "b.example"]
    assert told(("*",)) == []
    assert told((), (("allowed_media_domains", "c.example"),)) == ["c.example"]
    # an older one has no such flag
    speller = LaunchConfig(toolkit=("toolkit",), folder=tmp_path)
    argv = Words(*asyncio.run(speller.words(replace(VLLM, vllm=vllm)))).argv
    assert "--allowed-media-domains" not in argv


def test_a_flag_that_this_vllm_does_not_have_is_refused_before_anything_starts(vllm: str) -> None:
    with pytest.raises(ToolkitError, match="max-modle-len"):
        words(replace(VLLM, vllm=vllm, flags=(("max-modle-len", "1"),)))


def test_the_tiny_model_is_served_offline_with_caches_in_the_stacks_folder(
    vllm: str, tmp_path: Path
) -> None:
    told = words(EngineSetting(name="t", kind="tiny", vllm=vllm, port=1), tmp_path / "f")
    assert told.argv[2] == "/models/tiny"
    assert "--enforce-eager" in told.argv
    assert told.env["HF_HUB_OFFLINE"] == "1"
    assert told.env["VLLM_CACHE_ROOT"] == str(tmp_path / "f" / "vllm")


def test_the_tiny_models_own_flags_give_way() -> None:
    tiny = EngineSetting(name="t", kind="tiny")
    assert max_num_seqs(tiny) == 16
    assert max_num_seqs(replace(tiny, flags=(("max-num-seqs", "4"),))) == 4
    assert max_num_seqs(VLLM) is None
