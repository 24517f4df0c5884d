"""What `toolkit serve` is asked to run: engines, what stands in front of them, and how they are warmed. Plain records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from toolkit.proxy.settings import Settings

Kind = Literal["vllm", "tiny", "sim"]
"""`tiny`: a real vLLM on the CPU with a tiny random model. `sim`: the toolkit's simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """One inference server, on a port of its own, on this machine."""

    name: str = "engine"
    kind: Kind = "vllm"
    model: str = ""
    """A name at Hugging Face, or a directory; for `sim` the personality."""
    served_name: str | None = None
    port: int = 0
    """0: the next free one, found when the stack starts."""
    spare_port: int | None = 0
    """Where a successor starts that takes over without a gap; None: a swap has a gap."""
    host: str = "127.0.0.1"
    flags: tuple[tuple[str, str | bool], ...] = ()
    """Without dashes; True: stands without a value, False: is left out (`--no-...` where the engine has that)."""
    env: tuple[tuple[str, str], ...] = ()
    """Further variables, e.g., CUDA_VISIBLE_DEVICES. Keys are never here: `key_env` names their variable."""
    gpus: str | None = None
    """CUDA_VISIBLE_DEVICES: `0,1` or a MIG slice's UUID; None: as inherited."""
    key_env: str | None = None
    vllm: str = "vllm"
    """The command that starts it: a name on the PATH, or a path."""
    ready_s: float = 1800.0
    """Longest wait for /health."""
    team: str | None = None
    """Whose engine it is, where slices belong to teams."""
    preset: str | None = None
    """The catalog's preset that `flags` began with; told, never read again."""

    @property
    def url(self) -> str:
        """Where it answers on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSetting:
    """What each engine is asked before clients are let in."""

    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Cut at the engine's max-num-seqs."""
    profile: str | None = None
    """Whose prompts: a blast profile of the catalog or a file; None: plain ones."""
    max_tokens: int = 32
    stream: bool | None = None
    """None: streams and whole answers."""
    structured: bool = False
    long_prompts: bool = False
    tolerance: float = 0.2
    """Two rounds agree when their median TTFT differ by less."""
    rounds: int = 8
    """Most, of the last concurrency."""
    limit_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSetting:
    """When an engine is restarted, and when no more."""

    look_s: float = 1.0
    stuck_s: float = 30.0
    """Requests run and nothing that the engine counts moved for so long: then it is asked for one token."""
    answer_s: float = 30.0
    """Time for that token. Only without it, and with nothing moved meanwhile either, it is stuck."""
    ask_s: float = 60.0
    """One that says it has nothing to do is asked for a token so often: an engine that froze idle still says so."""
    refused_s: float = 5.0
    """Connections were refused for so long."""
    backoff_s: float = 2.0
    backoff_most_s: float = 60.0
    restarts: int = 5
    """So many within `restarts_s` are a crash loop: it stays down."""
    restarts_s: float = 600.0
    stop_s: float = 10.0
    """From SIGTERM to SIGKILL of the whole process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All of it."""

    engines: tuple[EngineSetting, ...]
    proxy: Settings | None
    """None: clients ask the engines themselves."""
    warm: WarmSetting = field(default_factory=WarmSetting)
    guard: GuardSetting = field(default_factory=GuardSetting)
    folder: str = "data/serve"
    """Logs, the socket for orders, and what is to be known after a crash."""
    database: str | None = None
    """Events go there; None: nowhere."""
    preflight: bool = True


def turns(engines: Sequence[EngineSetting]) -> list[list[EngineSetting]]:
    """Groups of engines that share a GPU: within each only one may start at a time, as each measures how much is free."""
    groups: list[list[EngineSetting]] = []
    for engine in engines:
        near = [group for group in groups if any(_share_a_gpu(engine, each) for each in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(each for group in near for each in group), engine])
    return groups


def _share_a_gpu(one: EngineSetting, other: EngineSetting) -> bool:
    """One that names none takes what it inherits, which may be any."""
    if one.gpus is None or other.gpus is None:
        return one.kind == other.kind
    return not set(one.gpus.split(",")).isdisjoint(other.gpus.split(","))
