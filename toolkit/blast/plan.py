"""What is a blast to send? One record of it for the command line, Locust's options and web form, workers, and the run's settings.

No clock, no socket, no file: profiles come as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolkit.bench.plan import CHAT, ENDPOINTS
from toolkit.bench.random_prompts import read_lengths
from toolkit.blast.pacing import MOST_RATE, MOST_TIMEOUT_S
from toolkit.errors import ToolkitError
from toolkit.profiles import Kind, Profile, read_profile

CANARY_PERCENT = 1.0
REQUEST_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What may differ from start to start, in the words and units of the options, and of a run's settings."""

    canaries: float = CANARY_PERCENT
    """Percent of the requests: unique prompts and their exact twins."""
    mix: float | None = None
    """Percent of the answers that are streamed; None: the profile's, as with `max_tokens`."""
    max_tokens: int | None = None
    model: str | None = None
    """None: what each host's line names, else what it serves."""
    rate: float | None = None
    """Requests a second and host; None: each user sends when its last answer is over."""
    request_timeout_s: float = REQUEST_TIMEOUT_S
    endpoint: str = CHAT
    input_len: str | None = None
    """Tokens of each prompt, as `read_lengths` has it: made-up ones then, no two alike; None: the profile's prompts."""
    tokenizer: str | None = None
    """The file that `input_len` is counted by; None: each host counts."""
    output_len: str | None = None
    """Tokens of each answer, likewise."""

    @property
    def canary_share(self) -> float:
        """Of the requests."""
        return self.canaries / 100

    @property
    def stream_share(self) -> float | None:
        """Of the answers; None: the profile's."""
        return None if self.mix is None else self.mix / 100


class LoadOption(NamedTuple):
    """How Locust's command line, environment and web form call a field of LoadSettings."""

    field: str
    name: str
    variable: str
    """Of the environment."""
    metavar: str
    kind: type
    least: float
    most: float
    help: str

    @property
    def word(self) -> str:
        """In Locust's options and in the form."""
        return self.name.removeprefix("--").replace("-", "_")


LOAD_OPTIONS = (
    LoadOption(
        *("canaries", "--canaries", "TOOLKIT_CANARIES", "<percent>", float, 0, 100),
        help="Unique prompts and their twins, never ranked; 0 for none",
    ),
    LoadOption(
        *("mix", "--mix", "TOOLKIT_MIX", "<percent>", float, 0, 100),
        help="Stream so many of the answers, instead of the profile's share",
    ),
    LoadOption(
        *("max_tokens", "--max-tokens", "TOOLKIT_MAX_TOKENS", "<int>", int, 1, 10**9),
        help="Per answer, instead of the profile's",
    ),
    LoadOption(
        *("model", "--model", "TOOLKIT_MODEL", "<name>", str, 0, 0),
        help="Ask for this model, instead of what each host lists or serves",
    ),
    LoadOption(
        *("rate", "--rate", "TOOLKIT_RATE", "<float>", float, 0, MOST_RATE),
        help="Open loop: requests a second and host, whatever the answers take",
    ),
    LoadOption(
        *(
            "request_timeout_s",
            "--request-timeout",
            "TOOLKIT_REQUEST_TIMEOUT",
            "<seconds>",
            float,
            0.001,
            MOST_TIMEOUT_S,
        ),
        help="For one whole answer",
    ),
    LoadOption(
        *("endpoint", "--endpoint", "TOOLKIT_ENDPOINT", "<path>", str, 0, 0),
        help=f"What is asked: {', '.join(ENDPOINTS)}",
    ),
    LoadOption(
        *("input_len", "--input-len", "TOOLKIT_INPUT_LEN", "<tokens>", str, 0, 0),
        help="Random prompts of this many tokens: 512, 256:1024, normal:512:64",
    ),
    LoadOption(
        *("tokenizer", "--tokenizer", "TOOLKIT_TOKENIZER", "<file>", str, 0, 0),
        help="Count --input-len by this tokenizer.json, without the chat template's own tokens",
    ),
    LoadOption(
        *("output_len", "--output-len", "TOOLKIT_OUTPUT_LEN", "<tokens>", str, 0, 0),
        help="Answers of exactly this many tokens, likewise",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan(LoadSettings):
    """One run as all its workers must know it. Plain values only: it travels as a message."""

    profile_text: str
    profile_name: str
    profile_kind: Kind
    hosts_hash: str
    run: str = ""
    resumptions: int = 0
    """How often the run was resumed."""
    workers: int = 1
    """That began together."""
    users_per_host: int = 1
    words: Sequence[str] = ()
    """Of one token each by the tokenizer's file, which need not be where the workers are; none: each host counts."""
    tokens_around: int = 0
    """By that file: a prompt's first word, and special tokens."""

    @property
    def profile(self) -> Profile:
        """The profile, read anew."""
        return read_profile(self.profile_text, self.profile_name, self.profile_kind)


def plan_of(said: Mapping[str, Any], source: tuple[str, str, Kind], hosts_hash: str) -> WorkerPlan:
    """Read what Locust's options or its web form say; `source`: the profile's text, name and kind.

    The form gives numbers as text; an empty one is as good as none. Raises ToolkitError for what makes no sense.
    """
    settings: dict[str, Any] = {}
    for option in LOAD_OPTIONS:
        value = said.get(option.word)
        if value is None or value == "":
            continue
        if option.kind is str:
            settings[option.field] = value
            continue
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not option.least <= number <= option.most:
            raise ToolkitError(
                f"`{option.name} {value}` is no number from {option.least:g} to {option.most:g}",
                "Leave it out for the default",
            )
        settings[option.field] = option.kind(number)
    for name in ("input_len", "output_len"):
        if settings.get(name) and read_lengths(settings[name]) is None:
            raise ToolkitError(
                f"`--{name.replace('_', '-')} {settings[name]}` is no number of tokens",
                "Write, e.g., `512`, `256:1024` or `normal:512:64`",
            )
    if settings.get("tokenizer") and not settings.get("input_len"):
        raise ToolkitError(
            "`--tokenizer` counts the tokens of random prompts",
            "Say how many with `--input-len`, or leave it out",
        )
    if settings.get("endpoint", CHAT) not in ENDPOINTS:
        raise ToolkitError(
            f"`--endpoint {settings['endpoint']}` is none that a blast can ask",
            f"One of {', '.join(ENDPOINTS)}",
        )
    if not settings.get("rate"):
        settings["rate"] = None
    text, name, kind = source
    plan = WorkerPlan(
        profile_text=text, profile_name=name, profile_kind=kind, hosts_hash=hosts_hash, **settings
    )
    _ = plan.profile  # refused now, and not in the midst of a run
    return plan
