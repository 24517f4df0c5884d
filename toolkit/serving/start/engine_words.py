"""What starts an engine: its command line and its environment, after asking the installed vLLM for its flags. It starts nothing."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.serving.flags import MEDIA, media_words
from toolkit.serving.stack import EngineSetting
from toolkit.serving.start.vllm_versions import installed

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A command, its environment, and what is to be said about it."""

    argv: tuple[str, ...]
    env: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speller:
    """Spells the words of any engine of one stack."""

    toolkit: Sequence[str]
    """The command `toolkit` itself, which simulates."""
    folder: Path
    """The stack's."""
    tiny_model: Path | None = None
    """Where the tiny model was made; None: no engine has it."""
    media_hosts: tuple[str, ...] = ()
    """From where engines may fetch what requests name, as the proxy's settings have it."""

    async def words(self, setting: EngineSetting) -> Words:
        """Of one engine. Raises ToolkitError for a flag that its vLLM does not have."""
        if setting.kind == "sim":
            return Words(argv=(*self.toolkit, *sim_words(setting)), env=self._env(setting))
        env = self._env(setting)
        vllm = await installed(setting.vllm, env)
        flags = vllm.arguments(flags_of(setting))
        model = str(self.tiny_model) if setting.kind == "tiny" else setting.model
        own = ["serve", model, "--host", setting.host, "--port", str(setting.port)]
        if setting.served_name is not None:
            own += ["--served-model-name", setting.served_name]
        media = media_words(flags.argv, self.media_hosts) if MEDIA in vllm.known.names else ()
        return Words(argv=(vllm.command, *own, *flags.argv, *media), env=env, notes=flags.notes)

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
