"""Two looks make true rates, a watch is a history of what changed, and kill -9 costs it a second at most."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from contract.harness.databases import is_sound, select
from contract.harness.programs import Program, free_port, rows, run, toolkit, until
from contract.harness.servers import Answer, Asked, answer, server, vllm_pages

TEXT = "text/plain; version=0.0.4; charset=utf-8"
DATABASE = Path("data") / "toolkit.db"


def page(
    requests: float = 0,
    tokens: float = 0,
    *,
    started: float = 1e9,
    blocks: int = 64,
    ttft: str = "",
) -> bytes:
    """What a vLLM of one engine shows after so many requests."""
    engine = 'engine="0",model_name="tiny"'
    return answer(
        f"process_start_time_seconds {started}\n"
        f"vllm:num_requests_running{{{engine}}} 2\n"
        f'vllm:request_success_total{{{engine},finished_reason="stop"}} {requests}\n'
        f"vllm:generation_tokens_total{{{engine}}} {tokens}\n"
        f'vllm:cache_config_info{{engine="0",block_size="{blocks}",num_gpu_blocks="100"}} 1\n{ttft}',
        content_type=TEXT,
    )


def histogram(*counts: int) -> str:
    """TTFT: so many up to 0.1 s, 0.2 s, 0.4 s and beyond; their mean is of no interest."""
    name, engine = "vllm:time_to_first_token_seconds", 'engine="0",model_name="tiny"'
    edges = ("0.1", "0.2", "0.4", "+Inf")
    lines = [
        f'{name}_bucket{{{engine},le="{edge}"}} {count}\n'
        for edge, count in zip(edges, counts, strict=True)
    ]
    return "".join(lines) + f"{name}_count{{{engine}}} {counts[-1]}\n{name}_sum{{{engine}}} 9\n"


def one_after_the_other(*answers: bytes) -> Callable[[Asked], None]:
    left = list(answers)

    def tell(asked: Asked) -> None:
        asked.send(left.pop(0) if len(left) > 1 else left[0])

    return tell


def test_rates_are_of_the_time_between_two_looks(tmp_path: Path) -> None:
    first = page(1000, 50_000, ttft=histogram(500, 500, 500, 500))
    hosts: dict[str, dict[str, Answer]] = {
        # since its start half of the first tokens came within 0.1 s; between the looks all 40 came in 0.2 to 0.4 s
        "busy": {
            "/metrics": one_after_the_other(
                first, page(1040, 50_700, ttft=histogram(500, 500, 540, 540))
            )
        },
        "idle": {"/metrics": first},
        "restarted": {"/metrics": one_after_the_other(first, page(3, 30, started=2e9))},
        "counts-backwards": {  # and says nothing of its start
            "/metrics": one_after_the_other(page(1000, 50_000, started=0), page(3, 30, started=0))
        },
        "gone": {"/metrics": one_after_the_other(first, answer("", "503 Oh"))},
    }
    with (
        server(vllm_pages() | hosts["busy"]) as busy,
        server(vllm_pages() | hosts["idle"]) as idle,
        server(vllm_pages() | hosts["restarted"]) as restarted,
        server(vllm_pages() | hosts["counts-backwards"]) as backwards,
        server(vllm_pages() | hosts["gone"]) as gone,
    ):
        those = zip(hosts, (busy, idle, restarted, backwards, gone), strict=True)
        (tmp_path / "hosts.txt").write_text("".join(f"{n} {each.url}\n" for n, each in those))
        done = run("scout", "--interval", "1s", "--json", cwd=tmp_path)
    told = {row["name"]: row for row in rows(done.stdout)}
    assert done.returncode == 0
    row = told["busy"]
    assert row["interval_s"] > 0
    # the totals between two looks, whatever time lay between them
    assert row["requests_per_s"] * row["interval_s"] == pytest.approx(40)
    assert row["output_tokens_per_s"] * row["interval_s"] == pytest.approx(700)
    assert row["ttft_p50_ms"] == pytest.approx(300)  # rank 20 of 40 in (0.2, 0.4]
    assert told["idle"]["requests_per_s"] == told["idle"]["output_tokens_per_s"] == 0
    assert told["idle"]["ttft_p50_ms"] is None, "nothing came between the looks"
    for name in ("restarted", "counts-backwards"):
        assert told[name]["requests_per_s"] is told[name]["output_tokens_per_s"] is None
        assert "restarted" in {found["code"] for found in told[name]["findings"]}
    assert (told["gone"]["status"], told["gone"]["requests_per_s"]) == ("degraded", None)


def test_a_watch_is_a_history_of_outages_restarts_and_settings(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "hosts.txt").write_text(f"alice http://127.0.0.1:{port}\n")
    watched = ("--watch", "--interval", "100ms", "--json")

    def until_seen(watch: Program, holds: Callable[[dict[str, Any]], bool]) -> None:
        begun = len(watch.out)
        until(lambda: any(holds(json.loads(line)) for line in watch.out[begun:]))

    with (
        server(vllm_pages() | {"/metrics": page(10)}, port=port) as alice,
        toolkit("scout", *watched, cwd=tmp_path) as watch,
    ):
        until_seen(watch, lambda row: row["status"] == "ok")
        alice.pages["/metrics"] = page(11, blocks=32)
        until_seen(watch, lambda row: row["block_size"] == 32)
        alice.pages["/metrics"] = page(0, blocks=32, started=2e9)
        until_seen(watch, lambda row: row["started_at"] == 2e9)
        alice.pages["/health"] = answer("", "503 Service Unavailable")
        until_seen(watch, lambda row: row["status"] == "down")
        alice.pages["/health"] = answer()
        until_seen(watch, lambda row: row["status"] == "ok")
        assert watch.end() == 0, "Ctrl-C ends a watch in order"
        printed = rows("\n".join(watch.out))
    kept = rows(run("scout", "--history", "alice", "--json", cwd=tmp_path).stdout)
    assert [row["at"] for row in kept] == [row["at"] for row in printed], "every look is stored"
    assert [row["status"] for row in kept] == [row["status"] for row in printed]
    table = run("scout", "--history", "alice", cwd=tmp_path).stdout.splitlines()
    changes = [line.rstrip().split("  ")[-1].strip() for line in table[2:] if line.strip()]
    assert changes == [
        "first seen",
        "block_size 64 -> 32",
        "restarted",
        "ok -> down: `/health` answers 503: the engine is dead or still loading",
        "down -> ok",
    ]
    unknown = run("scout", "--history", "bob", cwd=tmp_path)
    assert (unknown.returncode, "alice" in unknown.stderr) == (1, True)


def newest(folder: Path, kept: list[float]) -> bool:
    """Note the newest look in the database, if it is another one than before."""
    at = select(folder / DATABASE, "SELECT max(at) AS at FROM sightings")[0]["at"]
    if at is not None and (not kept or at > kept[-1]):
        kept.append(at)
    return False


def test_kill_9_of_a_watch_costs_a_second_at_most(tmp_path: Path) -> None:
    with server(vllm_pages()) as one, server({"*": lambda asked: asked.reset()}) as other:
        (tmp_path / "hosts.txt").write_text(f"a {one.url}\nb {other.url}\n")
        with toolkit("scout", "--watch", "--interval", "50ms", "--json", cwd=tmp_path) as watch:
            until(lambda: watch.out)
            kept: list[float] = []

            def is_in_time() -> bool:
                """What came into the file at once: a kill just before would have cost that. On a busy machine some are late."""
                newest(tmp_path, kept)
                gaps = [later - earlier for earlier, later in pairwise(kept[1:])]
                return len(gaps) >= 4 and min(gaps) < 1.0

            until(is_in_time, step_s=0.02)
            # what was printed is in the file before anything that came later
            printed = [row["at"] for row in rows("\n".join(watch.out[:-1]))]
            until(lambda: newest(tmp_path, kept) or kept[-1] > max(printed), step_s=0.02)
            watch.destroy()
    assert is_sound(tmp_path / DATABASE)
    stored = {row["at"] for row in select(tmp_path / DATABASE, "SELECT at FROM sightings")}
    assert printed
    assert set(printed) <= stored, "no look is missing before that"
    again = run("scout", "--json", cwd=tmp_path)
    assert [row["status"] for row in rows(again.stdout)] == ["down", "down"]
