"""What do other tools make of the same server? Runs an installed one, reads its own report, holds it against the truth.

It touches processes, files in a temporary folder and `/proc`. Nothing is downloaded: the tools get a tokenizer of a
thousand made-up words, are told to stay offline, and find a dead proxy wherever they might still want to go.

Command lines and reports are those of guidellm 0.8, aiperf 0.13 and vLLM 0.32.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from stamped_truths import Truth, truths

from toolkit.bench.selftest import ROUNDS, Delay, StampedServer, loaded
from toolkit.bench.stamped import MODEL

LOOK_EVERY_S = 0.1
"""A look costs 1.5 ms among 73 processes."""
TIMEOUT_S = 600.0
PROMPT_TOKENS = 32
WORDS = 1000
REPO = "toolkit/words"
REVISION = "0" * 40
TOLD_LINES = 5
"""Of the output of a tool that failed."""
NOWHERE = "http://127.0.0.1:9"
"""Discard's port: nothing listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a tool is to do."""

    url: str
    streams: int
    requests: int
    tokens: int
    tokenizer: Path
    """A folder; in the offline cache it is REPO."""
    folder: Path
    """For whatever the tool writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a tool's own report says."""

    requests: int
    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool that we know how to run and to read."""

    name: str
    words: Callable[[Job], list[str]]
    """Its command line after its name."""
    report: str
    """The file it writes, below the job's folder."""
    read: Callable[[Any], Claim]
    """From the report's JSON; KeyError, TypeError, IndexError or ValueError when it is another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A tool that is installed here."""

    tool: Tool
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLevel:
    """What one tool added at one number of streams."""

    tool: str
    streams: int
    requests: int
    tokens: int
    ttft_p50_ms: float | None
    """As its own report claims."""
    ttft_p99_ms: float | None
    ttft_mean_ms: float | None
    ttft_delay_p50_ms: float | None
    """Its p50 - the server's p50; so the others."""
    ttft_delay_p99_ms: float | None
    ttft_delay_mean_ms: float | None
    cpu_us_per_event: float | None
    """CPU of all its processes between the first request and the last token / tokens. Its start, which takes some
    tools longer than the load, is left out. None where there is no `/proc`."""


# --- the tools -----------------------------------------------------------------------------------------


def _guidellm(job: Job) -> list[str]:
    return [
        "run",
        f"--backend=kind=openai_http,target={job.url},model={MODEL}",
        f"--profile=kind=concurrent,streams={job.streams}",
        f"--constraint=kind=max_requests,count={job.requests}",
        f"--tokenizer=kind=huggingface_auto,model={job.tokenizer}",
        f"--data=kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={job.tokens}",
        f"--output=kind=json,path={job.folder / 'guidellm.json'}",
        "--disable-console-interactive",
    ]


def _guidellm_claim(report: Any) -> Claim:
    told = report["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]
    return Claim(
        requests=int(told["count"]),
        ttft_mean_ms=float(told["mean"]),
        ttft_p50_ms=float(told["percentiles"]["p50"]),
        ttft_p99_ms=float(told["percentiles"]["p99"]),
    )


def _aiperf(job: Job) -> list[str]:
    return [
        "profile",
        *("--model", MODEL, "--url", job.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", REPO, "--use-server-token-count"),
        *("--concurrency", str(job.streams), "--request-count", str(job.requests)),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(job.tokens)),
        *("--artifact-dir", str(job.folder / "aiperf")),
        *("--no-server-metrics", "--no-gpu-telemetry", "--ui", "none"),
    ]


def _aiperf_claim(report: Any) -> Claim:
    told = report["time_to_first_token"]
    return Claim(
        requests=int(report["request_count"]["avg"]),
        ttft_mean_ms=float(told["avg"]),
        ttft_p50_ms=float(told["p50"]),
        ttft_p99_ms=float(told["p99"]),
    )


def _vllm(job: Job) -> list[str]:
    return [
        *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", job.url, "--model", MODEL, "--tokenizer", str(job.tokenizer)),
        *("--dataset-name", "random", "--skip-chat-template"),
        *("--input-len", str(PROMPT_TOKENS), "--output-len", str(job.tokens)),
        *("--num-prompts", str(job.requests), "--max-concurrency", str(job.streams)),
        *("--percentile-metrics", "ttft", "--metric-percentiles", "50,99", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(job.folder), "--result-filename", "vllm.json"),
    ]


def _vllm_claim(report: Any) -> Claim:
    return Claim(
        requests=int(report["completed"]),
        ttft_mean_ms=float(report["mean_ttft_ms"]),
        ttft_p50_ms=float(report["p50_ttft_ms"]),
        ttft_p99_ms=float(report["p99_ttft_ms"]),
    )


TOOLS = (
    Tool(
        name="guidellm",
        words=_guidellm,
        report="guidellm.json",
        read=_guidellm_claim,
    ),
    Tool(
        name="aiperf",
        words=_aiperf,
        report="aiperf/profile_export_aiperf.json",
        read=_aiperf_claim,
    ),
    Tool(
        name="vllm",
        words=_vllm,
        report="vllm.json",
        read=_vllm_claim,
    ),
)


def installed() -> "list[Peer]":
    """Those on the PATH, or in a folder that TOOLKIT_PEERS names (several: separated as in PATH)."""
    path = os.pathsep.join(filter(None, (os.environ.get("TOOLKIT_PEERS"), os.environ["PATH"])))
    found = ((tool, shutil.which(tool.name, path=path)) for tool in TOOLS)
    return [Peer(tool=tool, path=str(Path(file).absolute())) for tool, file in found if file]


# --- running one ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuMark:
    """How much CPU a tool's processes had used at one moment."""

    at_ns: int
    """Of `time.monotonic_ns`."""
    cpu_s: float


def compared(one: Peer, server: StampedServer, streams: int, *, tokens: int) -> PeerLevel:
    """Let a tool put a level's load on the server; RuntimeError when it fails."""
    began_ns = time.monotonic_ns()
    with tempfile.TemporaryDirectory(prefix="toolkit-selftest-") as name:
        folder = Path(name)
        job = Job(
            url=server.url,
            streams=streams,
            requests=streams * ROUNDS,
            tokens=tokens,
            tokenizer=write_tokenizer(folder / "hf"),
            folder=folder,
        )
        marks = _run(one, job)
        claim = _claim(one.tool, folder)
    answered = _answered(server, began_ns)
    cpu_s = None
    if answered:
        last_ns = max(each.last_sent_ns or 0 for each in answered)
        cpu_s = cpu_between(marks, min(each.received_ns for each in answered), last_ns)
    return peer_level(one.tool.name, streams, claim, answered, cpu_s)


def ourselves(server: StampedServer, streams: int, *, tokens: int) -> PeerLevel:
    """The same of the bench's own client: all streams begin at once, as the tools' do."""
    began_ns = time.monotonic_ns()
    exchanges, _, cpu_s = loaded(server, streams, tokens=tokens, spread_s=0.0)
    answers = [(response.answer, sent_s) for response, sent_s, _ in exchanges]
    ttft = [
        (answer.first_token_at - sent_s) * 1000
        for answer, sent_s in answers
        if answer and answer.ok and answer.first_token_at is not None
    ]
    if len(ttft) < len(exchanges):
        failed = len(exchanges) - len(ttft)
        raise RuntimeError(f"{failed} of `toolkit`'s requests failed beside the other tools")
    own = Delay.of(ttft)
    claim = Claim(
        requests=len(ttft),
        ttft_mean_ms=own.mean_ms,
        ttft_p50_ms=own.p50_ms,
        ttft_p99_ms=own.p99_ms,
    )
    return peer_level("toolkit", streams, claim, _answered(server, began_ns), cpu_s)


def _answered(server: StampedServer, began_ns: int) -> list[Truth]:
    """The streams that came since and were answered whole; what a tool asks to try the server is no stream of it."""
    return [each for each in truths(server) if each.received_ns >= began_ns and each.complete]


def peer_level(
    tool: str, streams: int, claim: Claim, answered: Sequence[Truth], cpu_s: float | None
) -> PeerLevel:
    """Hold a tool's claim against what the server knows of the same answers."""
    ttft = [
        (each.first_sent_ns - each.received_ns) / 1e6
        for each in answered
        if each.first_sent_ns is not None
    ]
    true = Delay.of(ttft)
    tokens = sum(each.tokens for each in answered)
    return PeerLevel(
        tool=tool,
        streams=streams,
        requests=claim.requests,
        tokens=tokens,
        ttft_p50_ms=claim.ttft_p50_ms,
        ttft_p99_ms=claim.ttft_p99_ms,
        ttft_mean_ms=claim.ttft_mean_ms,
        ttft_delay_p50_ms=_less(claim.ttft_p50_ms, true.p50_ms),
        ttft_delay_p99_ms=_less(claim.ttft_p99_ms, true.p99_ms),
        ttft_delay_mean_ms=_less(claim.ttft_mean_ms, true.mean_ms),
        cpu_us_per_event=None if cpu_s is None or not tokens else cpu_s * 1e6 / tokens,
    )


def _less(claimed: float | None, true: float | None) -> float | None:
    return None if claimed is None or true is None else claimed - true


def cpu_between(marks: Sequence[CpuMark], began_ns: int, ended_ns: int) -> float | None:
    """CPU used between two moments, on straight lines between the marks; None when they lie outside."""
    before, after = _cpu_at(marks, began_ns), _cpu_at(marks, ended_ns)
    return None if before is None or after is None else after - before


def _cpu_at(marks: Sequence[CpuMark], at_ns: int) -> float | None:
    for earlier, later in pairwise(marks):
        if earlier.at_ns <= at_ns <= later.at_ns:
            share = (at_ns - earlier.at_ns) / max(1, later.at_ns - earlier.at_ns)
            return earlier.cpu_s + share * (later.cpu_s - earlier.cpu_s)
    return None


def _claim(tool: Tool, folder: Path) -> Claim:
    try:
        return tool.read(json.loads((folder / tool.report).read_text()))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RuntimeError(f"`{tool.name}` wrote no report that can be read") from error


def _run(one: Peer, job: Job) -> list[CpuMark]:
    """Run a tool to its end, looking at its CPU now and then; RuntimeError when it fails."""
    log = job.folder / "output.txt"
    marks: list[CpuMark] = []
    before_s = _ended_children_cpu_s()
    end_s = time.monotonic() + TIMEOUT_S
    with _started(one, job, log) as process:
        while process.poll() is None:
            if time.monotonic() > end_s:
                raise RuntimeError(f"`{one.tool.name}` did not end within {TIMEOUT_S:g} s")
            cpu_s = session_cpu_s(process.pid)
            if cpu_s is not None:
                marks.append(CpuMark(at_ns=time.monotonic_ns(), cpu_s=cpu_s))
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
    if marks:  # it may have ended right after its last token
        cpu_s = max(marks[-1].cpu_s, _ended_children_cpu_s() - before_s)
        marks.append(CpuMark(at_ns=time.monotonic_ns(), cpu_s=cpu_s))
    if process.returncode:
        said = log.read_text(errors="replace").strip().splitlines()[-TOLD_LINES:]
        raise RuntimeError(
            f"`{one.tool.name}` failed with exit status {process.returncode}. It said:\n"
            + "\n".join(said)
        )
    return marks


@contextmanager
def _started(one: Peer, job: Job, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a tool in a session of its own, and leave nothing of it running."""
    process = None
    try:
        with log.open("wb") as output, _interrupted_later():
            process = subprocess.Popen(
                [one.path, *one.tool.words(job)],
                cwd=job.folder,
                env=offline(os.environ, job.folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        yield process
    finally:
        if process:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let a Ctrl-C wait for the end of the block: in the middle of starting a process it would lose its number."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def offline(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """An environment in which a tool finds its tokenizer and reaches nothing but this machine."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    quiet = dict.fromkeys(
        (
            *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"),
            *("HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "VLLM_NO_USAGE_STATS"),
        ),
        "1",
    )
    local = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HF_HOME": str(folder / "hf")}
    return dict(environment) | nowhere | quiet | local


def session_cpu_s(session: int) -> float | None:
    """CPU of all processes of a session, and of those they waited for; None where there is no `/proc`."""
    ticks = None
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # the name in parentheses may hold blanks; after it: state, parent, group, session, ...
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks = (ticks or 0) + sum(int(field) for field in fields[11:15])
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


def _ended_children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_tokenizer(hub_home: Path) -> Path:
    """Write a tokenizer of made-up words as Hugging Face's cache keeps one; its folder."""
    home = hub_home / "hub" / f"models--{REPO.replace('/', '--')}"
    folder = home / "snapshots" / REVISION
    folder.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(REVISION)
    words = ["<unk>", "<end>", *(f"word{number}" for number in range(WORDS))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": place, "content": words[place], "special": True} | special for place in (0, 1)]
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: place for place, word in enumerate(words)},
            "unk_token": words[0],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": words[0],
        "eos_token": words[1],
        "model_max_length": 4096,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    # vLLM looks for a model's type, and waits 2 s before it does without
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return folder
