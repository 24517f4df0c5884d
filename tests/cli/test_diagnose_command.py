"""`toolkit diagnose` as a user meets it."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support import shots
from support.blasted import STARTED_AT, blasted

from toolkit.cli import main
from toolkit.records import Event, Ledger, Run, Verdict
from toolkit.serving.preflight.gpu import Gpus, NvmlGpu
from toolkit.sim.app import SimThread, serve_in_thread
from toolkit.store import Store

SAMPLE = Path(__file__).parents[2] / "data" / "sample.pcap"
KEYS = "code confidence evidence lever risk watch".split()


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


def diagnose(*words: str) -> Result:
    return CliRunner().invoke(main, ["diagnose", *words], catch_exceptions=False)


def objects(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- hosts that are looked at -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet() -> Iterator[dict[str, SimThread]]:
    """A sick server and a healthy one, five times as fast as life, each with 24 clients of its own."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serve_in_thread(name, time_scale=0.2, load=24))
            for name in ("seq_limited", "gptq-int4")
        }


@pytest.mark.slow
def test_a_bottleneck_is_found_over_a_socket_with_its_lever(fleet: dict[str, SimThread]) -> None:
    result = diagnose(fleet["seq_limited"].url, "--interval", "2s", "--json")
    url = fleet["seq_limited"].url
    assert (result.exit_code, result.stderr) == (0, f"Looking at {url} for 2 s\n")
    first, *rest = objects(result)
    assert list(first)[: len(KEYS)] == KEYS
    assert first["code"] == "seq_limited"
    assert "8 ran at most" in str(first["evidence"])
    assert "--max-num-seqs" in str(first["lever"])
    assert [each["code"] for each in rest] == ["not_known"]
    assert first["url"] == url


@pytest.mark.slow
def test_a_healthy_server_has_none_and_says_what_was_looked_at(fleet: dict[str, SimThread]) -> None:
    result = diagnose(fleet["gptq-int4"].url, "--interval", "2s")
    assert result.exit_code == 0
    assert "  no bottleneck found" in result.stdout.splitlines()
    assert re.search(
        r"looked at over \d+ s: running 24.0, waiting 0, KV cache at most", result.stdout
    )
    assert "Not known:" in result.stdout
    assert "`toolkit capture`" in result.stdout


def test_a_dead_host_is_a_part_with_its_reason_and_alone_it_is_an_error(
    fleet: dict[str, SimThread],
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = diagnose(f"127.0.0.1:{port}", "--interval", "100ms", "--json")
    [found] = objects(result)
    assert (found["code"], result.exit_code) == ("not_seen", 1)
    assert "refused" in str(found["evidence"])
    url = fleet["seq_limited"].url
    Path("hosts.txt").write_text(f"alice {url}\nbob 127.0.0.1:{port}\n")
    result = diagnose("hosts.txt", "--interval", "500ms")
    assert result.exit_code == 0
    assert f"alice {url}" in result.stdout.splitlines()
    assert "  not seen: connection refused" in result.stdout


def test_an_interrupt_judges_what_was_seen_until_then(
    fleet: dict[str, SimThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(scout, looks, every_s, keep) -> None:  # noqa: ARG001 (as it is called)
        for _ in range(3):
            await keep(await scout.scrape())
        raise KeyboardInterrupt

    monkeypatch.setattr("toolkit.cli.diagnose.hosts.follow", interrupted)
    result = diagnose(fleet["seq_limited"].url, "--interval", "10m")
    assert result.exit_code == 130
    assert "Stopped: judged by what was seen" in result.stderr
    assert "running 8, waiting 16" in result.stdout


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        (("clocks set by somebody", "power cap"), False),  # the cap: as usual at full load
        (("power cap", "power brake"), True),
        (None, False),
    ],
)
def test_the_gpu_of_this_machine_counts_for_a_server_on_it(
    fleet: dict[str, SimThread],
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[str, ...] | None,
    found: bool,
) -> None:
    idle, busy = NvmlGpu(index=0, busy_share=0.0), NvmlGpu(index=1, busy_share=0.9, limits=limits)
    monkeypatch.setattr("toolkit.serving.preflight.gpu.gpus", lambda: Gpus(gpus=(idle, busy)))
    told = objects(diagnose(fleet["gptq-int4"].url, "--interval", "400ms", "--json"))
    assert ("gpu_throttled" in [each["code"] for each in told]) == found
    unknown = next(each for each in told if each["code"] == "not_known")["unknown"]
    assert ("gpu_throttled" in [each["fact"] for each in unknown]) == (limits is None)


def test_a_capture_tells_what_clients_send(fleet: dict[str, SimThread]) -> None:
    CliRunner().invoke(main, ["capture", str(SAMPLE), "--db", "t.db"], catch_exceptions=False)
    words = ("--interval", "400ms", "--db", "t.db", "--json", "--capture", "newest")
    told = objects(diagnose(fleet["gptq-int4"].url, *words))
    # the contest's two prompts, again and again
    assert told[0]["code"] == "repeats_recomputed"
    assert "asked before, word for word" in str(told[0]["evidence"])


# --- runs ---------------------------------------------------------------------------------------------


def test_a_blasts_hosts_are_judged_by_what_is_stored() -> None:
    run = blasted(Path("t.db"), hosts=6, seconds=60)
    told = objects(diagnose(run.id, "--db", "t.db", "--json"))
    found: dict[str, set[str]] = {}
    for each in told:
        found.setdefault(str(each["name"]), set()).add(str(each["code"]))
    assert list(found) == ["memory", "one-token", "restarter", "told-cache", "dead", "plain-05"]
    assert "connections_refused" in found["dead"]
    assert "truncated_answers" in found["one-token"]
    # two prompts of the contest's profile, again and again; those with a cache in front compute them once
    assert "repeats_recomputed" in found["plain-05"]
    assert not {"repeats_recomputed", "truncated_answers"} & found["told-cache"]
    assert all(each["run"] == run.id for each in told)


def test_one_host_of_a_run_is_shown_for_people() -> None:
    run = blasted(Path("t.db"), hosts=6, seconds=60)
    lines = diagnose(f"{run.id}:plain-05", "--db", "t.db").stdout.splitlines()
    assert lines[0] == f"plain-05 in run {run.id}"
    at = lines.index(
        "  repeats_recomputed (high): whole requests repeat and each one is computed again"
    )
    assert [line.split()[0] for line in lines[at + 1 :] if line[4:5].strip()][:2] == [
        "seen",
        "turn",
    ]
    assert all(len(line) <= 102 for line in lines)


def bench(run: str, *verdicts: str, first_ms: float = 100.0) -> None:
    with Store.open(Path("t.db")) as store:
        settings = json.dumps(
            {"profile": "bench", "concurrency": 8, "rate": None, "sameness": "pairs"}
        )
        store.add_run(Run(id=run, verb="bench", started_at=STARTED_AT, settings=settings))
        cold = [shots.shot(slot, run=run, first_ms=first_ms) for slot in range(8)]
        store.add_shots([*cold, *shots.uniques(24, 8, run=run)])
        store.add_ledgers(
            [Ledger(run=run, name="alice", url="http://h:1", requests=32, preemptions=0)]
        )
        told = [Verdict(code=code, confidence="high", evidence="...") for code in verdicts]
        store.add_verdicts(run, {("alice", "http://h:1"): told})
        store.end_run(run, ended_at=STARTED_AT + 10, client_ok=True)


@pytest.mark.parametrize(
    ("first_ms", "code", "evidence"),
    [
        (5000.0, "cold", "50.0 times"),  # 5,000 ms against 100, both known to 1 %
        (100.0, "none_found", "client's TTFT p50 "),
    ],
)
def test_a_benchs_requests_say_whether_it_began_cold(
    first_ms: float, code: str, evidence: str
) -> None:
    bench("a" * 12, "clean", first_ms=first_ms)
    first = objects(diagnose("a" * 12, "--db", "t.db", "--json"))[0]
    assert (first["code"], first["lever"] is None) == (code, code == "none_found")
    assert evidence in str(first["evidence"])


def told_of(*words: str) -> dict[str, dict[str, object]]:
    return {str(each["code"]): each for each in objects(diagnose(*words, "--json"))}


def unknown(told: dict[str, dict[str, object]]) -> set[str]:
    facts = told["not_known"]["unknown"]
    assert isinstance(facts, list)
    return {each["fact"] for each in facts}


LOG = """\
INFO 01-01 00:00:00 [m.py:1] Model loading took 33.78 GiB memory and 41.25 seconds
(Worker pid=9) INFO 01-01 00:00:00 [gpu_worker.py:1029] Free memory on device (78.69/79.11 GiB) on startup. \
Desired GPU memory utilization is (0.9, 71.2 GiB). Actual usage is 33.78 GiB for weight, 2.5 GiB for peak activation, \
and 0.5 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=31000000000`
"""


@pytest.fixture(scope="module")
def starved() -> Iterator[SimThread]:
    with serve_in_thread("kv_starved", time_scale=0.2, load=24) as served:
        yield served


@pytest.mark.parametrize(
    ("words", "evidence"),
    [
        # 33.78 of 79.11 GiB
        (("--log", "vllm.log"), "weights take 42.7 % of the GPU's memory"),
        # 7,615,616,512 weights of two bytes are 14.19 GiB
        (("--model", "Qwen/Qwen2.5-7B", "--gpu", "24GiB"), "weights take 59.1 % of the GPU's memory"),
        (("--model", "Qwen/Qwen2.5-7B", "--gpu", "80GiB"), None),
    ],
)  # fmt: skip
def test_a_log_or_a_model_and_a_gpu_tell_how_large_the_weights_are(
    starved: SimThread, words: tuple[str, ...], evidence: str | None
) -> None:
    Path("vllm.log").write_text(LOG)
    assert "weights_share" in unknown(told_of(starved.url, "--interval", "1s"))
    told = told_of(starved.url, "--interval", "1s", *words)
    assert "weights_share" not in unknown(told)
    assert "kv_cache_small" in told
    assert (evidence or "") in str(told.get("weights_large", {}).get("evidence"))
    assert ("weights_large" in told) == (evidence is not None)


def test_a_load_of_a_sweep_tells_how_many_answers_were_no_json() -> None:
    run = blasted(Path("t.db"), hosts=6, seconds=60)
    # a blast of no sweep leaves it open
    assert "structured_failure_share" in unknown(told_of(f"{run.id}:plain-05", "--db", "t.db"))
    sweep = "b" * 12
    with Store.open(Path("t.db")) as store:
        store.add_run(Run(id=sweep, verb="sweep", started_at=STARTED_AT))
        cell = {"run": run.id, "figures": {"invalid_json_ratio": 0.25}}
        other = {"run": "c" * 12, "figures": {"invalid_json_ratio": 0.75}}
        store.set_capture(sweep, {"cells": {"1/words/2": other, "1/words/1": cell}})
        text = f"sweep {sweep}: words, block 1 of 2"
        store.add_event(Event(run=run.id, at=STARTED_AT, kind="config", text=text))
    told = told_of(f"{run.id}:plain-05", "--db", "t.db")
    assert "25.0 % of answers that had to be JSON were not" in str(
        told["structured_output_fails"]["evidence"]
    )
    assert "week 11" not in str(told["structured_output_fails"]["source"])
    assert "(decision tables" in str(told["structured_output_fails"]["source"])


def test_the_help_names_the_keys_of_its_json() -> None:
    told = diagnose("--help").stdout
    assert all(f"  {key} " in told for key in (*KEYS, "what", "source"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ffffffffffff",), "has no run `ffffffffffff`"),
        (("aaaaaaaaaaaa:nobody",), "`nobody` is nothing that run `aaaaaaaaaaaa`"),
        (("nowhere.txt",), "`nowhere.txt` cannot be read"),
        (("127.0.0.1:1", "--capture", "newest"), "holds no capture yet"),
        (("127.0.0.1:1", "--capture", "aaaaaaaaaaaa"), "of `bench` holds no requests"),
        (("127.0.0.1:1", "--log", "nowhere.log"), "`nowhere.log` cannot be read"),
        (("127.0.0.1:1", "--log", "other.log"), "holds no log of a start of vLLM"),
        (("two.txt", "--log", "vllm.log"), "names 2 servers, and a log or a model is of one"),
    ],
)
def test_what_cannot_be_diagnosed_is_told_with_a_hint(words: tuple[str, ...], said: str) -> None:
    bench("a" * 12)
    Path("other.log").write_text("GET /health 200\n")
    Path("vllm.log").write_text(LOG)
    Path("two.txt").write_text("a 127.0.0.1:1\nb 127.0.0.1:2\n")
    result = diagnose(*words, "--db", "t.db", "--interval", "100ms")
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Hint: " in result.stderr


@pytest.mark.parametrize(
    "words", [("--interval", "5"), ("--model", "Qwen/Qwen2.5-7B"), ("--gpu", "24GiB")]
)
def test_a_wrong_command_line(words: tuple[str, ...]) -> None:
    """A number is no duration, and weights are nothing without a memory."""
    assert diagnose("127.0.0.1:1", *words).exit_code == 2
