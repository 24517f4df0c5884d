"""How a simulated server is started: each setting with its limits, and the presets of presets.toml. Nothing here acts."""

import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from toolkit.sim.engine import EngineConfig

Dialect = Literal["v0", "v1", "rust"]

VERSIONS: dict[Dialect, str] = {"v0": "0.7.3", "v1": "0.32.0", "rust": "0.33.0"}
"""The vLLM that speaks it: a page and a `/version` that contradict each other would help nobody."""

_TABLES: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    resources.files(__package__).joinpath("presets.toml").read_text("utf-8")
)
PRESETS: dict[str, dict[str, Any]] = {}
"""Settings by name: the contest's cast first, then a server for each bottleneck."""
for _tables in _TABLES.values():
    for _name, _table in _tables.items():
        PRESETS[_name] = PRESETS.get(_table.pop("base", ""), {}) | _table | {"name": _name}

CONTEST = tuple(_TABLES["contest"])
BOTTLENECKS = tuple(_TABLES["bottlenecks"])


class Setup(EngineConfig):
    """How one simulated server is started. Raises ValueError on what cannot be.

    Times are simulated seconds, which `time_scale` stretches, unless said otherwise.
    """

    name: str
    summary: str
    model: str = "Qwen3.5-35B-A3B"
    """Served name: what requests call it, and the metrics' `model_name`."""
    root: str
    """Where the weights came from, as `/v1/models` shows it."""
    gpu_memory_utilization: float = 0.9
    cache_dtype: str = "auto"
    later: "Setup | None" = None
    """What it is when it comes back from its downtime. None: the same."""

    response_cache: bool = False
    """Answer a request seen before from memory, without the engine."""
    cache_hit_s: float = Field(0.003, ge=0)
    """Time to the answer from memory; the contest's cache took under 5 ms."""
    first_token_only: bool = False
    """Send one token of what was asked for and claim a complete answer."""
    down_after_s: float | None = Field(None, ge=0)
    """Refuse connections from this moment on, counted from the start. None: never."""
    down_for_s: float = Field(0.0, ge=0)
    error_share: float = Field(0.0, ge=0, le=1)
    """Share of requests answered with status 500."""
    cut_share: float = Field(0.0, ge=0, le=1)
    """Share of requests whose connection is closed in the middle of the answer."""
    stream_error_share: float = Field(0.0, ge=0, le=1)
    """Share of requests whose stream, begun with status 200, ends in an error event."""
    drip_bytes_per_s: float | None = Field(None, gt=0)
    """Every answer, `/metrics` too, leaves at this speed. None: at once."""
    cpu_s_per_request: float = Field(0.0, ge=0)
    """CPU time of the API process for each request before an engine hears of it, all of them on one core, which
    `process_cpu_seconds_total` shows."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    dialect: Dialect = "v1"
    api_key: str | None = Field(None, repr=False)
    engines: int = Field(1, ge=1)
    """Data-parallel engine cores behind the one address."""
    stats: bool = True
    """False: as with `--disable-log-stats`."""
    load: int = Field(0, ge=0)
    """Synthetic clients that ask the engines straight."""
    startup_s: float = Field(0.0, ge=0)
    """Refuse connections so long after the start; real seconds, whatever the time scale."""
    cache_header: bool = False
    """Send `x-cache: HIT` or `MISS`, as an honest response cache would."""

    @field_validator("down_after_s", "drip_bytes_per_s", mode="before")
    @classmethod
    def _never(cls, value: object) -> object:
        return None if value in ("none", "None", "null") else value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.error_share + self.cut_share + self.stream_error_share > 1:
            raise ValueError("the shares of failing requests must be at most 1 together")
        if self.dialect == "v0" and self.engines > 1:
            raise ValueError("`engines` must be exactly 1 in dialect `v0`")
        if not self.host.strip() or not 0 <= self.port <= 65535:
            raise ValueError(f"`{self.host}:{self.port}` is no address to listen on")
        return self


SETTINGS = tuple(
    each
    for each in Setup.model_fields
    if each not in ("name", "summary", "later", "host", "port", "api_key", "dialect", "load")
)
"""But for what makes a preset one, and what the command line has options for."""


def setup_for(name: str = "gptq-int4", /, **changes: Any) -> Setup:
    """Take a preset with some settings changed, also in what it is later; text is read as what the setting wants.

    Raises ValueError on a preset that is none, with the known ones, on an unknown setting, and on a wrong value.
    """
    if name not in PRESETS:
        raise ValueError(f"`{name}` is no personality; known are {', '.join(PRESETS)}")
    unknown = changes.keys() - (Setup.model_fields.keys() - {"name", "summary", "later"})
    if unknown:
        raise ValueError(f"`{name}` has no setting `{min(unknown)}`")
    settings = PRESETS[name] | changes
    if "later" in settings:
        settings["later"] = setup_for(settings["later"], **changes)
    try:
        return Setup(**settings)
    except ValidationError as error:
        wrong = error.errors()[0]
        if "error" in wrong.get("ctx", {}):
            raise wrong["ctx"]["error"] from None
        said = wrong["msg"].removeprefix("Input ")
        raise ValueError(f"`{wrong['loc'][0]}` {said}, not `{wrong['input']}`") from None


def setups_for(
    words: Iterable[str], *, port: int = 0, seed: int = 0, **changes: Any
) -> dict[str, Setup]:
    """Read `cached` or `alice=cached`: host name -> Setup, in order; no words mean the contest's whole cast.

    Ports count up from `port`, unless that is 0; seeds count up, too, so that no two hosts roll the same
    dice. Raises ValueError on an unknown preset and on a name that stands twice.
    """
    setups: dict[str, Setup] = {}
    for index, word in enumerate(tuple(words) or CONTEST):
        name, _, preset = word.rpartition("=")
        host = name or preset
        if not preset:
            raise ValueError(f"`{word}` names no personality")
        if host in setups:
            raise ValueError(f"the name `{host}` stands twice")
        if not host.strip() or any(sign.isspace() or sign in "#=" for sign in host):
            raise ValueError(f"`{host}` is no name for a host")
        setups[host] = setup_for(
            preset, port=port + index if port else 0, seed=seed + index, **changes
        )
    return setups
