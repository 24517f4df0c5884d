"""`toolkit bench` against a real vLLM: client, `usage` and the server's counters agree exactly, and a prefix cache
is not called a response cache."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

LONG_PROMPT = "Describe a garden. " + " ".join(
    f"In bed {number} grow roses." for number in range(14)
)
"""Longer than two blocks of 32 tokens, so that an exact twin finds its start in the prefix cache."""
WARMUP = 4
KEY_VARIABLE = "TOOLKIT_TEST_REAL_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benched:
    """A bench of a server that meanwhile served nobody else, and what the server counted."""

    said: dict[str, Any]
    shots: list[dict[str, Any]]
    ledger: dict[str, Any]
    before: dict[str, float]
    after: dict[str, float]

    def moved(self, name: str, **labels: str) -> float:
        return total(self.after, name, **labels) - total(self.before, name, **labels)

    def answered(self, *kinds: str) -> list[dict[str, Any]]:
        return [shot for shot in self.shots if shot["ok"] and (not kinds or shot["kind"] in kinds)]


def counters(url: str) -> dict[str, float]:
    """Read `/metrics` line by line, without the toolkit."""
    text = httpx.get(f"{url}/metrics", timeout=10, trust_env=False).text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def total(page: dict[str, float], name: str, **labels: str) -> float:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        value
        for series, value in page.items()
        if series.partition("{")[0] == name and all(pair in series for pair in wanted)
    )


def run(
    folder: Path, *words: str, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [Path(sys.executable).with_name("toolkit"), "bench", *words],
        cwd=folder,
        env=os.environ | {"TOOLKIT_DB": str(folder / "toolkit.db")} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def stored(folder: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / "toolkit.db")) as file:
        file.row_factory = sqlite3.Row
        return [dict(row) for row in file.execute(f"SELECT * FROM {table}")]


def codes(said: dict[str, Any]) -> set[str]:
    return {verdict["code"] for verdict in said["verdicts"]}


@pytest.fixture(scope="module")
def benched(roomy_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Benched:
    """40 requests, half of them streamed, a quarter of them twins, 8 at once, after 4 to warm up."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "prompts.txt").write_text(LONG_PROMPT + "\n")
    before = counters(roomy_server.url)
    words = [
        "--num-prompts",
        "40",
        "--max-concurrency",
        "8",
        "--warmup",
        str(WARMUP),
        "--mix",
        "50",
    ]
    words += ["--max-tokens", "48", "--profile", "prompts.txt", "--json"]
    done = run(folder, roomy_server.url, *words)
    after = counters(roomy_server.url)
    (line,) = done.stdout.splitlines()
    (ledger,) = stored(folder, "ledgers")
    return Benched(
        said=json.loads(line),
        shots=stored(folder, "shots"),
        ledger=ledger,
        before=before,
        after=after,
    )


def test_every_request_is_answered_and_counted_by_both_sides(benched: Benched) -> None:
    assert (benched.said["requests"], benched.said["ok"], benched.said["errors"]) == (40, 40, 0)
    assert len(benched.shots) == 40 + WARMUP
    assert benched.moved("vllm:request_success_total") == 40 + WARMUP


def test_the_clients_tokens_equal_the_servers_counters(benched: Benched) -> None:
    answers = benched.answered()
    assert (
        sum(shot["output_tokens"] for shot in answers)
        == benched.moved("vllm:generation_tokens_total")
        > 0
    )
    assert (
        sum(shot["prompt_tokens"] for shot in answers)
        == benched.moved("vllm:prompt_tokens_total")
        > 0
    )
    assert not any(shot["output_tokens_estimated"] for shot in answers)
    for reason in ("length", "stop"):
        seen = sum(shot["finish_reason"] == reason for shot in answers)
        assert seen == benched.moved("vllm:request_success_total", finished_reason=reason)


def test_the_tokens_of_the_printed_line_are_those_of_the_measured_answers(benched: Benched) -> None:
    measured = benched.answered("unique", "twin")
    assert benched.said["output_tokens"] == sum(shot["output_tokens"] for shot in measured)


def test_the_stored_ledger_is_what_the_server_counted(benched: Benched) -> None:
    for column, series in {
        "requests": "vllm:request_success_total",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "prefix_hits": "vllm:prefix_cache_hits_total",
        "prefix_queries": "vllm:prefix_cache_queries_total",
        "asked_tokens": "vllm:request_params_max_tokens_sum",
    }.items():
        assert benched.ledger[column] == benched.moved(series), column
    assert benched.ledger["asked_tokens"] == 48 * (40 + WARMUP)


def test_a_real_prefix_cache_hit_is_not_called_a_response_cache(benched: Benched) -> None:
    twins = benched.answered("twin")
    assert len(twins) == 10  # a quarter of 40
    # every twin found at least one block of 32 tokens, and the server says so twice
    assert all(shot["cached_tokens"] >= 32 for shot in twins)
    assert benched.moved("vllm:prefix_cache_hits_total") >= 10 * 32
    assert codes(benched.said) == {"clean"}


def test_streamed_answers_have_a_first_token_before_their_last(benched: Benched) -> None:
    streams = [shot for shot in benched.answered() if shot["stream"]]
    assert len(streams) >= 20
    for shot in streams:
        assert shot["ttft_ms"] is not None
        assert shot["e2e_ms"] is not None
        assert 0 < shot["ttft_ms"] <= shot["e2e_ms"] <= shot["took_ms"]


def test_a_server_behind_a_key_is_benched_with_the_key_and_the_key_is_kept_nowhere(
    locked_server: Any, tmp_path: Path
) -> None:
    (tmp_path / "hosts.txt").write_text(f"locked {locked_server.url} api_key_env={KEY_VARIABLE}\n")
    words = (
        "hosts.txt",
        "--num-prompts",
        "4",
        "--max-concurrency",
        "2",
        "--max-tokens",
        "8",
        "--json",
    )
    done = run(tmp_path, *words, **{KEY_VARIABLE: locked_server.key})
    said = json.loads(done.stdout)
    assert (said["ok"], said["errors"]) == (4, 0)
    assert locked_server.key not in done.stdout + done.stderr
    files = b"".join(file.read_bytes() for file in tmp_path.glob("toolkit.db*"))
    assert locked_server.key.encode() not in files


def test_without_the_key_every_request_is_an_error_that_says_so(
    locked_server: Any, tmp_path: Path
) -> None:
    done = run(
        tmp_path, locked_server.url, "--num-prompts", "2", "--json", "--model", "tiny", code=1
    )
    said = json.loads(done.stdout)
    assert (said["ok"], said["errors"]) == (0, 2)
    assert "401" in said["error"] or "Unauthorized" in said["error"]


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions"])
def test_prompts_and_answers_have_exactly_the_wanted_tokens(
    roomy_server: Any, tmp_path: Path, endpoint: str
) -> None:
    words = ("--endpoint", endpoint, "--input-len", "160", "--output-len", "8:16")
    done = run(tmp_path, roomy_server.url, "--num-prompts", "12", *words, "--json")
    assert "estimates" not in done.stderr
    shots = stored(tmp_path, "shots")
    assert [shot["ok"] for shot in shots] == [1] * 12
    # as vLLM's own tokenizer counts, its chat template included
    assert {shot["prompt_tokens"] for shot in shots} == {160}
    assert all(shot["output_tokens"] == shot["max_tokens"] for shot in shots)
    assert {shot["finish_reason"] for shot in shots} == {"length"}
    assert codes(json.loads(done.stdout)) == {"clean"}


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions"])
def test_its_tokenizers_file_counts_a_prompts_text(
    roomy_server: Any, vllm_home: Path, tmp_path: Path, endpoint: str
) -> None:
    model = vllm_home / "models" / "tiny-slow"
    words = ("--endpoint", endpoint, "--input-len", "120", "--tokenizer", str(model))
    run(tmp_path, roomy_server.url, "--num-prompts", "8", *words, "--max-tokens", "4")
    with roomy_server.client() as client:
        chat, text = (
            client.post("/tokenize", json=said).json()["count"]
            for said in ({"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": "Hi"})
        )
    # of a chat the template's tokens come on top
    template = chat - text if "chat" in endpoint else 0
    assert {shot["prompt_tokens"] for shot in stored(tmp_path, "shots")} == {120 + template}


def test_a_recorded_body_with_tools_is_replayed_whole(roomy_server: Any, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"type": "function", "function": {"name": "count", "parameters": schema}}
    body = {
        "messages": [{"role": "user", "content": "Count."}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "count"}},
        "max_tokens": 48,
        "stream": True,
    }
    (tmp_path / "bodies.jsonl").write_text(json.dumps(body) + "\n")
    words = ("--dataset-path", "bodies.jsonl", "--num-prompts", "4", "--repeat", "--json")
    done = run(tmp_path, roomy_server.url, *words)
    assert json.loads(done.stdout)["ok"] == 4
    # had the tool not come along, vLLM would have refused the choice of it
    assert {shot["finish_reason"] for shot in stored(tmp_path, "shots")} <= {"stop", "length"}


def test_embeddings_are_timed_whole(vllm_home: Path, serving: Any, tmp_path: Path) -> None:
    with serving(vllm_home, "tiny", "--runner", "pooling", "--convert", "embed") as server:
        words = ("--endpoint", "/v1/embeddings", "--input-len", "100", "--num-prompts", "8")
        done = run(tmp_path, server.url, *words, "--json")
    said = json.loads(done.stdout)
    assert (said["ok"], said["ttft_p50_ms"], said["output_tokens_per_s"]) == (8, None, None)
    assert said["e2e_p50_ms"] > 0
    assert {shot["prompt_tokens"] for shot in stored(tmp_path, "shots")} == {100}
    assert codes(said) == {"not_judged"}
