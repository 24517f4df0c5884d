"""What `toolkit bench --json` tells of streams whose tokens a test has sent one by one: which count, when, and as what."""

import json
import time
from pathlib import Path
from typing import Any

from contract.harness.programs import rows, run
from contract.harness.servers import Asked, answer, server

PAUSE_S = 0.4
"""Before each piece that a test waits for."""


def bench(tmp_path: Path, *deltas: Any, usage: dict[str, int] | None = None) -> dict[str, Any]:
    """A host's row after four requests, one after the other; a number among the deltas is a pause in seconds."""

    def stream(asked: Asked) -> None:
        asked.keep = False
        asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for delta in [*deltas, None]:
            if isinstance(delta, float):
                time.sleep(delta)
                continue
            choice = {"index": 0, "delta": delta or {}, "finish_reason": None if delta else "stop"}
            chunk = {"id": "c", "model": "tiny", "choices": [choice]}
            asked.send(b"data: %b\n\n" % json.dumps(chunk).encode())
        if usage is not None:
            asked.send(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
        asked.send(b"data: [DONE]\n\n")

    pages = {"/v1/models": answer({"data": [{"id": "tiny"}]}), "/v1/chat/completions": stream}
    with server(pages) as host:
        words = ("--requests", 4, "--concurrency", 1, "--stream", "--json")
        (row,) = rows(run("bench", host.url, *words, cwd=tmp_path).stdout)
    assert (row["ok"], row["errors"]) == (4, 0), row
    return row


ROLE = {"role": "assistant", "content": ""}


def test_a_role_is_no_token_and_thoughts_are_tokens_that_nobody_sees(tmp_path: Path) -> None:
    for number, name in enumerate(("reasoning_content", "reasoning")):
        thought, text = {name: "hm"}, {"content": "Yes"}
        folder = tmp_path / str(number)
        folder.mkdir()
        row = bench(folder, ROLE, PAUSE_S, thought, thought, PAUSE_S, text, text, text)
        # percentiles are told to 1 %
        assert row["ttft_p50_ms"] >= 950 * PAUSE_S
        assert row["ttft_visible_p50_ms"] - row["ttft_p50_ms"] >= 950 * PAUSE_S
        # without a usage the chunks are counted, and said to be: four answers of five
        assert (row["output_tokens"], row["output_tokens_estimated"]) == (20, True)


def test_a_gap_is_divided_by_the_tokens_that_usage_tells(tmp_path: Path) -> None:
    texts = [{"content": "a"}, PAUSE_S, {"content": "b"}, PAUSE_S, {"content": "c"}]
    row = bench(tmp_path, ROLE, *texts, usage={"prompt_tokens": 7, "completion_tokens": 9})
    # three chunks of three tokens each: six of them in two pauses
    assert (row["output_tokens"], row["output_tokens_estimated"]) == (36, False)
    assert row["tpot_p50_ms"] >= 950 * 2 * PAUSE_S / 6
    assert row["e2e_p50_ms"] - row["ttft_p50_ms"] >= 950 * 2 * PAUSE_S
    assert row["e2e_p50_ms"] >= 6 * row["tpot_p50_ms"] * 0.9


def test_a_refusal_counts_by_its_status_whatever_it_calls_itself(tmp_path: Path) -> None:
    refusal = answer(
        {"error": {"message": "no"}}, "400 Bad Request", content_type="text/event-stream"
    )
    pages = {"/v1/models": answer({"data": [{"id": "tiny"}]}), "/v1/chat/completions": refusal}
    with server(pages) as host:
        words = ("--requests", 4, "--concurrency", 1, "--stream", "--json")
        (row,) = rows(run("bench", host.url, *words, cwd=tmp_path).stdout)
    assert (row["ok"], row["errors"], row["error_kinds"]) == (0, 4, {"http_400": 4})
