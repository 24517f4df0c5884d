"""What a starting vLLM says: how far it is, what it found out about itself, and why it ended. It reads no file but the catalog's table.

vLLM's last line is hardly ever the cause: "Engine core initialization failed" stands at the end of a full disk, a taken GPU
and a wrong block size alike, three tracebacks below the line that knew. So the lines are searched for the causes that are
known (`catalog/vllm_log.toml`), the most telling first; else the first error that is no mere echo is shown in its own words.
"""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

LINE_CHARACTERS = 2000
"""Of a line are searched: a cause stands at its beginning."""
SHOWN_CHARACTERS = 300
"""Of an error in vLLM's own words."""
ASKED = (15, 2, 1)
"""Signals by which somebody asks a process to end."""

_PREFIX = re.compile(
    r"^(?:\([\w-]+(?: pid=\d+)?\) )*"
    # 0.6: `INFO 12-01 10:00:00 llm_engine.py:237] `; later ones bracket the place; uvicorn's own: `INFO:     `
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::\s+| [\d:. -]+\[?[^\]\s]*\] ?))?"
)
_EXCEPTION = re.compile(
    # one of Python's own, or any that names its module, as `zmq.error.Again`
    r"^(?:(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)|[a-z_]\w*(?:\.\w+)*\.[A-Z]\w*)"
    r"(?:: (?P<text>.+)|$)"
)
_VALIDATION = re.compile(r"^  (?:Value error|Assertion failed), (?P<text>.+?)(?: \[type=.*)?$")
_ECHO = re.compile(
    r"Engine core initialization failed|EngineCore (?:encountered|failed)|Worker failed with error"
    r"|root cause|WorkerProc (?:initialization )?failed|Failed core proc|validation errors? for"
    r"|Engine process failed to start|Engine loop is not running|cancelled|KeyboardInterrupt|SystemExit"
)
"""What only says that something failed."""


@cache
def table() -> dict[str, Any]:
    """The catalog's steps, causes and signals, their patterns compiled."""
    found = tomllib.loads((files("toolkit") / "catalog" / "vllm_log.toml").read_text("utf-8"))
    for row in found["step"]:
        # one each: a fact's name may stand in several
        row["patterns"] = [re.compile(pattern) for pattern in row["patterns"]]
    for row in found["cause"]:
        row["pattern"] = re.compile("|".join(row["patterns"]), re.MULTILINE)
    return found


# --- how far it is ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupStep:
    """One step of a start."""

    code: str
    """config, download, load, compile, profile, cache, capture, warm, serve."""
    text: str
    share: float | None = None
    """Of this step, from 0 to 1; None: not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFacts:
    """What it has said of itself so far."""

    max_model_len: int | None = None
    kv_tokens: int | None = None
    weights_gib: float | None = None
    gpu_total_gib: float | None = None
    utilization: float | None = None


class Startup:
    """Follows one start. A line of a version that is not known is simply no step."""

    def __init__(self) -> None:
        self.facts = StartupFacts()
        self.step: StartupStep | None = None
        self._number = 0

    def feed(self, line: str) -> StartupStep | None:
        """Read the next line; the step where it says a new one, or further progress of the same."""
        for number, row in enumerate(table()["step"]):
            match = next((match for each in row["patterns"] if (match := each.search(line))), None)
            if match is None:
                continue
            words = {name: word.replace(",", "") for name, word in match.groupdict().items()}
            share = int(words.pop("percent")) / 100 if "percent" in words else None
            numbers: dict[str, Any] = {
                name: float(word) if "." in word else int(word) for name, word in words.items()
            }
            self.facts = replace(self.facts, **numbers)
            # workers say the same in turn, and the last of them lags: progress does not go back
            now = self.step.share if self.step is not None else None
            is_same = self.step is not None and number == self._number
            is_past = share is None or (now or 0.0) >= share if is_same else number < self._number
            if "code" not in row or (self.step is not None and is_past):
                return None
            self.step = StartupStep(code=row["code"], text=row["text"], share=share)
            self._number = number
            return self.step
        return None


# --- why it ended -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why it ended."""

    code: str
    """Stable, e.g., `disk_full`."""
    sentence: str
    """Without a full stop."""
    hint: str


def cause(lines: Sequence[str], exit_code: int | None) -> Cause:
    """The cause, from all that it said and its exit code; None as code: it still runs, or nobody knows."""
    errors = [text for line in lines if (text := _error_text(line)) is not None]
    whole = "\n".join(errors)
    for row in table()["cause"]:
        if match := row["pattern"].search(whole):
            words = {name: word.strip() for name, word in match.groupdict().items() if word}
            if "total" in words:
                # what is free now, rounded down to a hundredth
                share = math.floor(100 * float(words["free"]) / float(words["total"])) / 100
                words["share"] = f"{share:g}"
            if "heads" in words:
                heads = int(words["heads"])
                sizes = (each for each in range(1, min(heads, 16) + 1) if heads % each == 0)
                words["divisors"] = ", ".join(map(str, sizes))
            return Cause(
                code=row["code"],
                sentence=row["cause"].format(**words),
                hint=row["fix"].format(**words),
            )

    # a shell says 137 for signal 9
    signal = -exit_code if exit_code and exit_code < 0 else (exit_code or 0) - 128
    for row in table()["signal"]:
        if row["number"] == signal:
            return Cause(code=row["code"], sentence=row["cause"], hint=row["fix"])
    if signal in ASKED:
        sentence = "somebody asked it to end while it started"
        hint = "Start it again; see who sends it a signal if it was not you"
        return Cause(code="stopped", sentence=sentence, hint=hint)

    # in its own words: the error that the first echo repeats, else the last one
    raised = [
        (said, bool(_ECHO.search(text)))
        for text in errors
        if (said := _exception(text)) is not None
    ]
    first_echo = next((at for at, (_, is_echo) in enumerate(raised) if is_echo), len(raised))
    others = [said for said, is_echo in raised if not is_echo]
    if others:
        last = raised[first_echo - 1][0] if first_echo else others[-1]
        return Cause(
            code="other", sentence=f"it said: {last}", hint="The whole log has its traceback"
        )
    if any(_ECHO.search(text) for text in errors):
        # an echo of nothing: vLLM's front saw its engine gone, which had no time for a word
        sentence = "one of its processes died without a word, as when Linux kills it because memory ran out"
        hint = "See `dmesg | grep -i 'killed process'` and `free -h`; give it less, or free memory"
        return Cause(code="killed", sentence=sentence, hint=hint)
    hint = "The whole log has its last words"
    if exit_code == 0:
        return Cause(code="ended", sentence="it ended by itself without an error", hint=hint)
    how = "" if exit_code is None else f" (exit {exit_code})"
    return Cause(code="unknown", sentence=f"it gave no reason that is known{how}", hint=hint)


def _error_text(line: str) -> str | None:
    """What may be an error's text; None for a line that is marked as something else."""
    match = _PREFIX.match(line)
    if match and match["level"] in ("DEBUG", "INFO", "WARNING"):
        return None
    text = line[match.end() :] if match else line
    # a line of source code in a traceback holds the words of errors that did not happen
    return None if text.startswith("    ") else text[:LINE_CHARACTERS]


def _exception(text: str) -> str | None:
    """An exception's own words, on its last line."""
    match = _VALIDATION.match(text) or _EXCEPTION.match(text)
    if match is None:
        return None
    return " ".join((match["text"] or text).split())[:SHOWN_CHARACTERS].rstrip(" .")
