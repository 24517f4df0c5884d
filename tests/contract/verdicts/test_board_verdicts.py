"""A short blast and `toolkit board`: who is accused, who was judged, and who stands on the honest board."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from contract.harness.browser import chromium, leaderboard, tab
from contract.harness.fleets import fleet
from contract.harness.programs import rows, run
from contract.harness.proxies import proxy
from contract.harness.servers import Answer, Asked, answer, server
from playwright.sync_api import expect

MODEL = "Qwen3.5-35B-A3B"
QUICK = {"time_scale": 0.4}
CAST: dict[str, tuple[str, dict[str, Any]]] = {
    "awq": ("awq", QUICK | {"seed": 1}),
    "gptq-int4": ("gptq-int4", QUICK | {"seed": 2}),
    "cached": ("cached", QUICK | {"seed": 3}),
    "first-token": ("first-token", QUICK | {"seed": 4}),
    "other": ("gptq-int4", QUICK | {"model": "Qwen3.5-4B", "root": "Qwen/Qwen3.5-4B", "seed": 5}),
}
EXPECTED = {
    "awq": ["clean"],
    "gptq-int4": ["clean", "same_engine"],
    "gateway": ["clean", "same_engine"],
    "cached": ["response_cache"],
    "first-token": ["truncated_output"],
    "other": ["model_mismatch"],
    "words": ["not_judged"],
}
LEFT_OUT = {"first-token", "words"}


def speak(asked: Asked) -> None:
    """Answer with random words of four letters, without an engine."""
    limit = json.loads(asked.body)["max_tokens"]
    words = "".join("".join(random.choices("abcdefghijklmnop", k=4)) + " " for _ in range(limit))
    about = {"id": random.randbytes(8).hex(), "object": "chat.completion.chunk", "model": MODEL}
    usage = {"prompt_tokens": 40, "completion_tokens": limit, "total_tokens": 40 + limit}
    choice = {"index": 0, "delta": {"content": words}, "finish_reason": "stop"}
    events = [about | {"choices": [choice]}, about | {"choices": [], "usage": usage}]
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    time.sleep(0.1)
    asked.keep = False
    asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    asked.send(data + b"data: [DONE]\n\n")


WORDS: dict[str, Answer] = {
    "/health": answer(),
    "/v1/models": answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]}),
    "/v1/chat/completions": speak,
}


@pytest.fixture(scope="module")
def blasted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a short blast of them all lies in `data/toolkit.db`."""
    folder = tmp_path_factory.mktemp("blasted")
    with (
        fleet(CAST) as running,
        server(WORDS) as words,
        proxy(
            running.urls["gptq-int4"], '[cache]\npolicy = "off"\n', cwd=folder, probes=True
        ) as gateway,
    ):
        hosts = f"{running.hosts}\nwords {words.url}\ngateway {gateway.url}\n"
        (folder / "hosts.txt").write_text(hosts)
        load = f"--users {2 * len(EXPECTED)} --duration 22s --max-tokens 32 --canaries 20 --mix 100"
        done = run(
            *("blast", "hosts.txt", *load.split(), "--scout-every", "1s", "--non-neutral"),
            cwd=folder,
        )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_short_blast_judges_everybody_and_the_honest_board_lacks_whom_it_could_not(
    blasted: Path,
) -> None:
    plain = {each["name"]: each for each in rows(run("board", "--json", cwd=blasted).stdout)}
    told = run("board", "--honest", "--json", cwd=blasted).stdout
    honest = {each["name"]: each for each in rows(told)}
    text = run("board", "--honest", cwd=blasted).stdout

    found = {name: [each["code"] for each in seen["verdicts"]] for name, seen in plain.items()}
    assert found == EXPECTED, json.dumps(
        {name: seen["verdicts"] for name, seen in plain.items()}, indent=1
    )
    assert {name for name, seen in honest.items() if seen["left_out"]} == LEFT_OUT
    assert {name for name, seen in honest.items() if seen["rank"] is None} == LEFT_OUT
    (verdict,) = plain["words"]["verdicts"]
    assert "`/metrics`" in verdict["evidence"]
    assert "left out  words: it was not judged" in text
    # for people the codes in it are words
    assert verdict["evidence"].replace("_", " ") in text.replace("_", " ")
    assert "same engine as gateway" in plain["gptq-int4"]["verdicts"][1]["evidence"]


def test_the_page_says_the_same(blasted: Path, tmp_path: Path) -> None:
    database = blasted / "data" / "toolkit.db"
    with leaderboard(database, tmp_path) as url, chromium() as browser, tab(browser) as page:
        page.goto(f"{url}/?honest=1")
        row = page.locator("tr", has=page.locator("th", has_text="words")).first
        badge = row.locator("[data-code=not_judged]")
        expect(badge).to_be_visible()
        assert "`/metrics`" in (badge.get_attribute("title") or "")
        expect(row.locator("[title='Left out of the honest board']")).to_have_count(1)
        shared = page.locator("tr", has=page.locator("th", has_text="gateway")).first
        expect(shared.locator("[data-code=same_engine]")).to_be_visible()
