"""What an engine's flags say that others go by: its batch, its copies, how long it may finish, which files they name.

It reads words as `vllm serve` does, and knows of no deployment.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

from toolkit.deploy.site import SiteEngine

USUAL_MAX_NUM_SEQS = 256
"""vLLM's own on most GPUs; 1,024 on those of 70 GiB and more but the A100."""
SHUTDOWN = "--shutdown-timeout"
_IN_JSON = re.compile(r'"(/[^"]+)"')


def max_num_seqs(engine: SiteEngine) -> int | None:
    """Requests that it runs at a time, where its flags say."""
    return number(engine.arguments, "--max-num-seqs") or None


def copies(engine: SiteEngine) -> int:
    """Of the model in one engine: data parallel."""
    return number(engine.arguments, "--data-parallel-size", "-dp") or 1


def value(words: Iterable[str], *names: str) -> str | None:
    """What stands last behind one of these flags; None: nothing."""
    told = [word for name, word in _pairs(words) if name in names]
    return told[-1] if told else None


def number(words: Iterable[str], *names: str) -> int | None:
    """What stands last behind one of these flags; None: nothing, or no number."""
    told = value(words, *names)
    return int(told) if told is not None and told.isdecimal() else None


def is_told(words: Iterable[str], flag: str) -> bool:
    """Whether a flag stands there."""
    return any(name == flag for name, _ in _pairs(words))


def whole_paths(engine: SiteEngine) -> list[tuple[str, str]]:
    """The flag or variable, and the path from `/` on that it names, JSON's strings as well."""
    flags = [(name, word) for name, word in _pairs(engine.arguments) if name.startswith("-")]
    return [
        (name, path)
        for name, word in (*flags, *engine.env)
        for path in ([word] if word.startswith("/") else _IN_JSON.findall(word))
    ]


def _pairs(words: Iterable[str]) -> list[tuple[str, str]]:
    """Each word and the one behind it; `--flag=value` is both."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        is_both = equals and word.startswith("--")
        # vLLM takes `_` for `-` in a flag's name
        name = (name if is_both else word).replace("_", "-") if word.startswith("--") else word
        found += [name, value] if is_both else [name]
    return list(pairwise([*found, ""]))
