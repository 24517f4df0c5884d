"""The command line and the environment of an engine: the simulator's by hand, vLLM's by a made-up one with a real help text's form."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from toolkit.serving import engine_command
from toolkit.serving.engine_command import Installed, LaunchConfig, installed, interpreter
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


def test_the_tiny_model_is_served_offline_with_caches_in_the_stacks_folder(
    vllm: str, tmp_path: Path
) -> None:
    told = words(EngineSetting(name="t", kind="tiny", vllm=vllm, port=1), tmp_path / "f")
    assert told.argv[2] == "/models/tiny"
    assert "--enforce-eager" in told.argv
    assert told.env["HF_HUB_OFFLINE"] == "1"
    assert told.env["VLLM_CACHE_ROOT"] == str(tmp_path / "f" / "vllm")


# --- the vLLM that is installed ---------------------------------------------------------------------

SHORT_HELP = "usage: vllm serve\n\noptions:\n  --max-model-len MAX_MODEL_LEN\n  --enforce-eager\n"

# Plays `vllm`: notes each call, knows `--help=all` or only `--help`, and may be of a broken installation.
FAKE = """#!{python}
import sys
from pathlib import Path
open({calls!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:] == ["--version"]:
    print("INFO a line before", "0.8.2", sep="\\n")
elif sys.argv[1:] == ["serve", {word!r}]:
    print({text!r})
else:
    sys.exit("error: ignored explicit argument 'all'")
"""


class Machine:
    """A folder with a vLLM in it, and a home for notes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.command = folder / "vllm"
        self.calls = folder / "calls.txt"
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        self.put()
        self.new_process()

    def put(self, word: str = "--help=all", text: str = SHORT_HELP) -> None:
        source = FAKE.format(python=sys.executable, calls=str(self.calls), word=word, text=text)
        self.command.write_text(source)
        self.command.chmod(0o755)

    def new_process(self) -> None:
        engine_command._seen.clear()

    def ask(self) -> Installed:
        return asyncio.run(installed(str(self.command)))

    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_version_flags_and_python_are_what_the_command_says(machine: Machine) -> None:
    there = machine.ask()
    assert there.command == str(machine.command)
    assert interpreter(machine.command) == sys.executable
    # this Python has no vLLM to ask for its version, so the command is
    assert there.version == "0.8.2"
    assert there.known.names == {"--max-model-len", "--enforce-eager"}
    assert there.arguments([("max-model-len", "4k")]).argv == ("--max-model-len", "4000")


def test_a_version_that_knows_no_groups_of_flags_is_asked_for_plain_help(machine: Machine) -> None:
    machine.put(word="--help")
    assert "--enforce-eager" in machine.ask().known.names


def test_a_known_version_is_read_from_a_note_in_the_next_process_unless_it_is_damaged(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_command, "_VERSION", "print('0.32.0')")
    first = machine.ask()
    machine.new_process()
    assert machine.ask() == first
    assert first.version == "0.32.0"
    # and a version that the package tells is never asked of the command
    assert machine.asked() == ["serve --help=all"]
    (kept,) = (machine.command.parent / "cache").rglob("*.json")
    kept.write_text('"--max-mo')
    machine.new_process()
    assert machine.ask() == first
