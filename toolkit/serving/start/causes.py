"""Why an engine did not start, or fell: the true cause in one sentence, with a code and a way out. It reads no file.

vLLM's last line is hardly ever the cause: "Engine core initialization failed" stands at the end of a full disk, a
taken GPU and a wrong block size alike, three tracebacks below the line that knew. So the lines are searched for the
causes that are known, the most telling first; else the first error that is no mere echo is told in its own words.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.serving.start.known_causes import CAUSES, Words

LINE_CHARACTERS = 2000
"""Of a line are searched: a cause stands at its beginning."""
TOLD_CHARACTERS = 300
"""Of an error in vLLM's own words."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why it ended."""

    code: str
    """Stable, e.g., `disk_full`."""
    sentence: str
    """Without a full stop."""
    hint: str


def cause(lines: Sequence[str], code: int | None) -> Cause:
    """The cause, from all that it said and its exit code; None as code: it still runs, or nobody knows."""
    errors = [text for line in lines if (text := _error_text(line)) is not None]
    return (
        _known(errors) or _by_code(code) or _own_words(errors) or _wordless(errors) or _silent(code)
    )


def _error_text(line: str) -> str | None:
    """What may be an error's text; None for a line that is marked as something else."""
    match = _PREFIX.match(line)
    level = match["level"] if match else None
    if level in ("DEBUG", "INFO", "WARNING"):
        return None
    text = line[match.end() :] if match else line
    # a line of source code in a traceback holds the words of errors that did not happen
    return None if text.startswith("    ") else text[:LINE_CHARACTERS]


def _known(errors: Sequence[str]) -> Cause | None:
    """The first of the known causes, in their order, wherever it stands."""
    whole = "\n".join(errors)
    for known in CAUSES:
        match = known.pattern.search(whole)
        if match:
            words = {name: word.strip() for name, word in match.groupdict().items() if word}
            return Cause(
                code=known.code,
                sentence=_filled(known.sentence, words),
                hint=_filled(known.hint, words),
            )
    return None


def _filled(words: Words, found: Mapping[str, str]) -> str:
    return words if isinstance(words, str) else words(found)


_SIGNALS: dict[int, tuple[str, str, str]] = {
    9: (
        "killed",
        "it was killed (SIGKILL), as Linux does when memory runs out",
        "See `dmesg | grep -i 'killed process'`; give it less (`cpu-offload-gb`, `kv-offloading-size`, `VLLM_CPU_KVCACHE_SPACE`), or free memory",
    ),
    7: (
        "shared_memory",
        "it died of a bus error (SIGBUS), as when `/dev/shm` is full",
        "See `df -h /dev/shm`; in a container start it with `--shm-size 8g` or `--ipc=host`",
    ),
    11: (
        "crashed",
        "it crashed in compiled code (SIGSEGV)",
        "Look for the last lines of its log; often torch and a kernel library were built for one another's other versions",
    ),
    6: ("crashed", "it aborted itself (SIGABRT)", "See the last lines of its log"),
    4: (
        "processor",
        "its compiled code has an instruction that this processor lacks (SIGILL)",
        "Install a build for this processor; vLLM's CPU builds want AVX-512 or AVX2",
    ),
}
_ASKED = (15, 2, 1)


def _by_code(code: int | None) -> Cause | None:
    """What an exit code alone tells; a shell tells signal 9 as 137."""
    if code is None:
        return None
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number in _SIGNALS:
        told, sentence, hint = _SIGNALS[number]
        return Cause(code=told, sentence=sentence, hint=hint)
    if number in _ASKED:
        return Cause(
            code="stopped",
            sentence="somebody asked it to end while it started",
            hint="Start it again; see who sends it a signal if it was not you",
        )
    return None


def _own_words(errors: Sequence[str]) -> Cause | None:
    """The error that the first echo repeats, else the last one."""
    told = [(text, bool(_ECHO.search(text))) for text in errors if _exception(text) is not None]
    first_echo = next((index for index, (_, echo) in enumerate(told) if echo), len(told))
    before = [text for text, echo in told[:first_echo] if not echo]
    others = before or [text for text, echo in told if not echo]
    if not others:
        return None
    return Cause(
        code="other",
        sentence=f"it said: {_exception(others[-1])}",
        hint="The whole log has its traceback",
    )


def _wordless(errors: Sequence[str]) -> Cause | None:
    """An echo of nothing: vLLM's front saw its engine gone, which had no time for a word."""
    if not any(_ECHO.search(text) for text in errors):
        return None
    return Cause(
        code="killed",
        sentence="one of its processes died without a word, as when Linux kills it because memory ran out",
        hint="See `dmesg | grep -i 'killed process'` and `free -h`; give it less, or free memory",
    )


def _exception(text: str) -> str | None:
    """An exception's own words, on its last line."""
    for pattern in (_VALIDATION, _EXCEPTION):
        match = pattern.match(text)
        if match:
            words = " ".join((match["text"] or text).split())
            return words[:TOLD_CHARACTERS].rstrip(" .")
    return None


def _silent(code: int | None) -> Cause:
    if code == 0:
        return Cause(
            code="ended",
            sentence="it ended by itself without an error",
            hint="The whole log has its last words",
        )
    how = "" if code is None else f" (exit {code})"
    return Cause(
        code="unknown",
        sentence=f"it gave no reason that is known{how}",
        hint="The whole log has its last words",
    )
