"""What `toolkit scout`, `bench` and `workload` say of an engine behind `toolkit proxy`: each in a process of its own, over sockets."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.sim.app import serve_in_thread

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


@contextmanager
def proxied(*words: str) -> Iterator[str]:
    """A proxy in front of a simulated engine, ten times as fast as life; the clients' address."""
    with serve_in_thread("gptq-int4", time_scale=0.1) as sim:
        command = [TOOLKIT, "proxy", "--upstream", sim.url, "--port", "0", "--admin-port", "0"]
        with subprocess.Popen(
            [*command, "--no-cache-file", *words], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            try:
                yield next(
                    found[1]
                    for line in process.stderr
                    if (found := re.match(r"Ready: clients on (\S+?),", line))
                )
            finally:
                process.terminate()
                process.stderr.read()


def told(verb: str, *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [verb, *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def finding(url: str) -> str | None:
    found = told("scout", url)
    assert (found["status"], found["engine"]) == ("ok", "vllm")
    return {each["code"]: each["text"] for each in found["findings"]}.get("response_cache")


def test_scout_and_bench_name_the_response_cache_and_its_hit_ratio() -> None:
    with proxied() as url:
        assert finding(url) == "a response cache stands in front; no request has asked it yet"
        # a quarter of them are exact twins of earlier ones: 6 of 24
        shown = told("bench", url, "--requests", "24", "--max-tokens", "32", "--no-store")
        assert finding(url) == "a response cache answers: hit ratio 25.0 % of 24 cacheable requests"
    assert (shown["ok"], shown["errors"]) == (24, 0)
    verdicts = {each["code"]: each for each in shown["verdicts"]}
    assert set(verdicts) - {"not_judged"} == {"response_cache"}
    assert verdicts["response_cache"]["confidence"] == "high"
    said = verdicts["response_cache"]["evidence"]
    assert said.startswith("6 of 6 repeated requests were answered from memory")
    assert "by its header the hit ratio is 0.25 of 24 answers" in said


def test_neither_names_one_where_the_cache_is_off() -> None:
    with proxied("--policy", "off") as url:
        shown = told("bench", url, "--requests", "24", "--max-tokens", "32", "--no-store")
        assert finding(url) is None
    assert "response_cache" not in {each["code"] for each in shown["verdicts"]}


def test_the_workload_reads_from_its_log_what_the_bench_sent() -> None:
    with proxied("--log", "requests.jsonl") as url:
        told("bench", url, "--requests", "24", "--max-tokens", "32", "--no-store")
    shown = told("workload", "--from", "requests.jsonl")
    # 18 of their own and 6 twins; what asked for `/v1/models` asked no model
    assert (shown["requests"], shown["unique_canonical"], shown["unique_exact"]) == (24, 18, 18)
