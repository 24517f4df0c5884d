"""What a starting vLLM says, line by line: how far it is, and what it found out about itself. It reads no file.

Wordings of 0.6 to 0.33 are known; a line of a version that is not is simply no step.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

_SHARDS = re.compile(
    r"Loading (?:safetensors|pt|bin) checkpoint shards:\s*(?P<percent>\d+)% Completed \| (?P<done>\d+)/(?P<of>\d+)"
)
_GRAPHS = re.compile(r"Capturing CUDA ?graph[^:]*:\s*(?P<percent>\d+)%")
_DOWNLOAD = re.compile(r"(?:Fetching \d+ files|\S+\.safetensors):\s*(?P<percent>\d+)%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a start."""

    code: str
    """config, download, load, compile, profile, cache, capture, warm, serve."""
    text: str
    share: float | None = None
    """Of this step, from 0 to 1; None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What it has told so far. GiB and seconds as vLLM prints them."""

    version: str | None = None
    architecture: str | None = None
    max_model_len: int | None = None
    batched_tokens: int | None = None
    """Of chunked prefill."""
    block_size: int | None = None
    """Only told where a hybrid model enlarged it."""
    weights_gib: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    kv_gib: float | None = None
    """Memory that is left for the KV cache."""
    kv_tokens: int | None = None
    concurrency: float | None = None
    """Requests of full length that fit at once."""
    graphs_gib: float | None = None
    graphs_s: float | None = None
    gpu_free_gib: float | None = None
    gpu_total_gib: float | None = None
    utilization: float | None = None
    activations_gib: float | None = None
    kv_cache_memory_bytes: int | None = None
    """What it suggests for `--kv-cache-memory-bytes`: a restart with it needs no profiling."""
    init_s: float | None = None
    """Profiling, KV cache and warm-up together."""
    url: str | None = None


def _int(word: str) -> int:
    return int(word.replace(",", "").replace("_", ""))


_READERS: dict[str, Callable[[str], Any]] = {
    "version": str,
    "architecture": str,
    "url": lambda word: word.rstrip("/."),
    "max_model_len": _int,
    "batched_tokens": _int,
    "block_size": _int,
    "kv_tokens": _int,
    "kv_cache_memory_bytes": _int,
}
"""By fact; all others are plain decimals."""
_N = r"[\d,]+"
_F = r"\d+(?:\.\d+)?"

_CONCURRENCY = rf"Maximum concurrency for {_N} tokens per request: (?P<concurrency>{_F})x"
"""On a line of its own until 0.27."""
_MEMORY = (
    rf"Free memory on device \((?P<gpu_free_gib>{_F})/(?P<gpu_total_gib>{_F}) GiB\) on startup\. Desired GPU"
    rf" memory utilization is \((?P<utilization>{_F}),.*?(?P<activations_gib>{_F})\s+GiB for peak activation"
    rf".*?--kv-cache-memory=(?P<kv_cache_memory_bytes>\d+)"
)
_TOLD: tuple[tuple[str | None, str], ...] = (
    ("config", r"(?:vLLM API server|█.*) version (?P<version>\d+\.\d+[\w.+]*)"),
    ("config", r"LLM engine \(v(?P<version>\d+\.\d+[\w.+]*)\)"),
    ("config", r"Resolved architectures?: (?P<architecture>\w+)"),
    ("config", rf"Using max model len (?P<max_model_len>{_N})"),
    (
        None,
        rf"Auto-fit max_model_len: (?:reduced from {_N} to |full model context length |.*=)(?P<max_model_len>{_N})",
    ),
    (None, rf"Chunked prefill is enabled with max_num_batched_tokens=(?P<batched_tokens>{_N})"),
    (None, rf"Setting attention block size to (?P<block_size>{_N}) tokens"),
    ("load", r"Starting to load model"),
    ("load", rf"Loading (?:model )?weights took (?P<load_s>{_F}) ?(?:s\b|sec)"),
    # 0.6: `Loading model weights took 14.2487 GB`
    ("load", rf"Loading model weights took (?P<weights_gib>{_F}) G"),
    (
        "load",
        rf"Model loading took (?P<weights_gib>{_F}) (?:GiB|GB)(?: memory)?(?: and (?P<load_s>{_F}) sec)?",
    ),
    ("compile", rf"torch\.compile (?:takes|took) (?P<compile_s>{_F}) s"),
    ("compile", r"Compiling a graph|Dynamo bytecode transform|Start compiling|Cache the graph"),
    (
        "profile",
        r"Memory profiling (?:takes|results)|Profiling|Warming up model for the compilation",
    ),
    ("cache", rf"Available KV cache memory: (?P<kv_gib>{_F}) GiB"),
    ("cache", rf"Explicitly set \((?P<kv_gib>{_F})/"),
    ("cache", rf"KV cache size: (?P<kv_tokens>{_N}) tokens(?:, {_CONCURRENCY})?"),
    ("cache", _CONCURRENCY),
    ("capture", r"Capturing (?:the model for )?CUDA ?graphs"),
    (
        "capture",
        rf"Graph capturing finished in (?P<graphs_s>{_F}) secs?, took (?P<graphs_gib>{_F}) GiB",
    ),
    ("capture", rf"CUDA graph pool memory: (?P<graphs_gib>{_F}) GiB"),
    ("warm", _MEMORY),
    ("warm", rf"init engine \(.*?\) took (?P<init_s>{_F}) s"),
    ("serve", r"Starting vLLM (?:API )?server(?: \d+)? on (?P<url>https?://\S+)"),
    ("serve", r"Uvicorn running on (?P<url>https?://\S+)"),
)
"""Step, and wording with the facts that it holds. The first that matches counts."""
_PATTERNS = [(code, re.compile(wording)) for code, wording in _TOLD]

_TEXTS = {
    "config": "reads the model's configuration",
    "download": "downloads the weights",
    "load": "loads the weights",
    "compile": "compiles",
    "profile": "measures how much memory a step takes",
    "cache": "makes the KV cache",
    "capture": "captures CUDA graphs",
    "warm": "warms up",
    "serve": "serves",
}
_ORDER = list(_TEXTS)


class Startup:
    """Follows one start."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.step: Step | None = None

    def feed(self, line: str) -> Step | None:
        """Read the next line; the step where it tells a new one, or further progress of the same."""
        found = _progress(line) or self._told(line)
        if found is None or found == self.step or self._is_past(found):
            return None
        self.step = found
        return found

    def _told(self, line: str) -> Step | None:
        for code, pattern in _PATTERNS:
            match = pattern.search(line)
            if match:
                told = {name: word for name, word in match.groupdict().items() if word}
                facts = {name: _READERS.get(name, float)(word) for name, word in told.items()}
                self.facts = replace(self.facts, **facts)
                return None if code is None else Step(code=code, text=_TEXTS[code])
        return None

    def _is_past(self, found: Step) -> bool:
        """Workers tell the same in turn, and the last of them lags: progress does not go back."""
        if self.step is None or _ORDER.index(found.code) > _ORDER.index(self.step.code):
            return False
        if found.code != self.step.code:
            return True
        return found.share is None or (self.step.share or 0.0) >= found.share


def _progress(line: str) -> Step | None:
    for code, pattern in (("load", _SHARDS), ("capture", _GRAPHS), ("download", _DOWNLOAD)):
        match = pattern.search(line)
        if match:
            return Step(code=code, text=_TEXTS[code], share=int(match["percent"]) / 100)
    return None
