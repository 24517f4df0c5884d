"""`toolkit plan --host`: a server's blocks as requests, and how far the plan was from them; `--run`: measured times."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import sim_fleet
from support.planning import objects, refused, said
from support.shots import shot
from support.tallies import ALICE, BOB, sketch, tally

from toolkit.records import Run, Sighting
from toolkit.store import Store

URL = "http://10.0.0.4:8000"
QWEN = ("qwen2.5-7b", "--gpu", "a100-80gb", "--quantization", "bf16")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLKIT_DB", "t.db")


@pytest.fixture(scope="module")
def winner() -> Iterator[str]:
    """The winner of "What I Learned from a Live LLM Serving Gauntlet", simulated."""
    with sim_fleet.running({"winner": ("cached", {})}) as hosts:
        yield hosts.split()[1]


def saw(**reported: object) -> None:
    values = {"name": "alice", "url": URL, "at": 1_750_000_000.0, "status": "ok"} | reported
    with Store.open(Path("t.db")) as store:
        store.add_sightings([Sighting(**values)])  # type: ignore[arg-type]


def test_a_server_is_looked_at_once_and_counted_in_its_own_blocks(winner: str) -> None:
    text = said("--host", winner, "--tokens", "271")
    assert (
        "661 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 38 sequences"
        in text
    )
    assert "name its GPU" in text
    # a plan keeps nothing
    assert not Path("t.db").exists()


def test_a_server_shows_which_quantization_it_may_run(winner: str) -> None:
    words = ("qwen3.5-35b-a3b", "--gpu", "a100-80gb", "--tokens", "271", "--host", winner)
    text = said(*words)
    assert "bf16: would not even start with what the server reports of itself" in text
    assert "Nearest: awq and gptq-int4" in text
    assert "the server reports 661" in text
    found = {one["quantization"]: one for one in objects(*words)}
    # by 0.46 of an A100 in blocks of 2,096 tokens
    assert abs(found["gptq-int4"]["deviation"]["share"]) < 0.1
    assert found["fp8"]["deviation"]["share"] < -0.9
    assert found["gptq-int4"]["checkup"]["at_once"] == 38
    assert "and 94 are in memory at once" in found["gptq-int4"]["checkup"]["notes"][0]


def test_a_name_is_what_scout_last_saw() -> None:
    saw(num_gpu_blocks=500, block_size=16, at=1.0)
    saw(num_gpu_blocks=661, block_size=16, at=2.0)
    # 550 / 16 = 34.4; 660 / 35 = 18.9
    assert "35 blocks each, that is 18 sequences" in said("--host", "alice", "--tokens", "550")


def test_lengths_that_were_not_given_are_the_servers_limit() -> None:
    saw(num_gpu_blocks=661, block_size=16, max_model_len=512)
    [found] = objects("--host", "alice")
    # 512 / 16 = 32; 660 / 32 = 20.6
    assert (found["request_tokens"], found["max_concurrency"]) == (512, 20)
    assert "request lengths were not given" in found["notes"][0]


def test_a_plan_of_one_engine_is_compared_with_one_of_several() -> None:
    saw(num_gpu_blocks=2 * 60_000, block_size=16, engines=2)
    [found] = objects(*QWEN, "--tokens", "271", "--host", "alice")
    assert found["deviation"]["reported"] == 60_000


def test_a_model_of_the_catalog_is_known_by_what_the_server_calls_it() -> None:
    saw(num_gpu_blocks=661, block_size=1056, model="/models/Qwen3.5-35B-A3B-GPTQ-Int4")
    [found] = objects("--host", "alice", "--tokens", "271")
    assert (found["blocks_per_request"], found["max_concurrency"]) == (7, 94)
    saw(num_gpu_blocks=661, block_size=1056, model="mine", at=2e9)
    [found] = objects("--host", "alice", "--tokens", "271")
    assert (found["blocks_per_request"], found["max_concurrency"]) == (1, 660)
    assert "the catalog does not know its model, `mine`" in found["notes"][0]


def test_the_plan_of_what_runs_there_uses_what_the_server_reports() -> None:
    # 0.5 x 79.25 GiB less 14.2 of weights and a little beside them
    saw(num_gpu_blocks=20_000, block_size=16, gpu_memory_utilization=0.5, max_model_len=2048)
    [half] = objects(*QWEN, "--tokens", "550", "--host", "alice")
    assert 20_000 < half["deviation"]["planned"] < 30_000
    # what is recommended stays as it was
    assert half["gpu_memory_utilization"] == 0.95


def test_an_unknown_name_and_a_dead_server_are_refused() -> None:
    saw()
    code, text = refused("--host", "bob", "--tokens", "5")
    assert code == 1
    assert "has no sighting of `bob`" in text
    assert "Known hosts: alice; or give the server's URL" in text
    code, text = refused("--host", "127.0.0.1:1", "--tokens", "5")
    assert code == 1
    assert "`http://127.0.0.1:1` cannot be scraped: connection refused" in text


def test_a_server_that_reports_nothing_leaves_nothing_to_count() -> None:
    saw()
    assert "the host reports neither its blocks nor" in said("--host", "alice", "--tokens", "5")
    code, text = refused("--host", "alice")
    assert code == 1
    assert "does not report its max_model_len" in text


def test_a_server_that_reports_nonsense_is_planned_as_if_it_reported_nothing() -> None:
    saw(
        num_gpu_blocks=-5,
        block_size=-16,
        gpu_memory_utilization=7.0,
        max_model_len=-1,
        cache_dtype="x",
        version="newest",
        engines=0,
    )
    [found] = objects(*QWEN, "--tokens", "550", "--host", "alice")
    assert found["deviation"] is None
    assert found["checkup"]["at_once"] is None
    assert found["fits"]


# --- runs ---------------------------------------------------------------------------------------------


def bench(*shots: object) -> None:
    with Store.open(Path("t.db")) as store:
        store.add_run(Run(id="0123456789ab", verb="bench", started_at=1.75e9))
        store.add_shots(list(shots))  # type: ignore[arg-type]


def test_a_bench_has_lengths_and_times_at_its_highest_step() -> None:
    bench(
        *(shot(i, run="0123456789ab", concurrency=1, e2e_ms=100.0) for i in range(3)),
        *(shot(i, run="0123456789ab", concurrency=8, e2e_ms=ms) for i, ms in ((3, 1e3), (4, 3e3))),
        # neither a warm-up nor a repeated prompt is the engine's usual request
        shot(5, run="0123456789ab", concurrency=8, kind="warmup", e2e_ms=9e5),
        shot(6, run="0123456789ab", concurrency=8, kind="twin", pair=3, e2e_ms=1.0),
    )
    [found] = objects(*QWEN, "--run", "0123456789ab")
    assert found["seconds_per_request"] == pytest.approx(2.0)
    # 30 of prompt, 100 of answer
    assert found["request_tokens"] == 130
    assert any("was measured with 8 at once" in note for note in found["notes"])


def test_a_blast_has_lengths_and_times_and_notes_that_a_cache_answered() -> None:
    with Store.open(Path("t.db")) as store:
        store.add_run(Run(id="0123456789ab", verb="blast", started_at=1.75e9))
        store.add_second(
            [
                tally(
                    ok=4,
                    prompt_tokens=120,
                    output_tokens=400,
                    cache_told=4,
                    cache_hits=2,
                    e2e=sketch(1000.0, 1000.0, 3000.0, 3000.0),
                ),
                tally(host=BOB, errors=3),
                tally(kind="canary", ok=1, e2e=sketch(90_000.0)),
            ]
        )
    [found] = objects(*QWEN, "--run", "0123456789ab")
    # within the sketch's 1 %
    assert found["seconds_per_request"] == pytest.approx(2.0, rel=0.01)
    assert found["request_tokens"] == 130
    assert any(
        "50% of that blast's answers came from a response cache" in n for n in found["notes"]
    )
    assert ALICE[0] in said(*QWEN, "--run", "0123456789ab")


def test_what_is_given_goes_before_what_was_measured() -> None:
    bench(shot(0, run="0123456789ab", e2e_ms=1000.0))
    [found] = objects(
        *QWEN, "--run", "0123456789ab", "--tokens", "550", "--seconds-per-request", "5s"
    )
    assert (found["seconds_per_request"], found["request_tokens"]) == (5, 550)


def test_a_run_that_is_none_gets_the_newest() -> None:
    bench(shot(0, run="0123456789ab"))
    code, text = refused(*QWEN, "--run", "ffffffffffff")
    assert code == 1
    assert "`t.db` has no run `ffffffffffff`" in text
    assert "The newest: 0123456789ab (bench)" in text
    with Store.open(Path("t.db")) as store:
        store.add_run(Run(id="aaaaaaaaaaaa", verb="serve", started_at=1.75e9))
        store.add_run(Run(id="bbbbbbbbbbbb", verb="bench", started_at=1.75e9))
    _, text = refused(*QWEN, "--run", "aaaaaaaaaaaa")
    assert "is of `toolkit serve`, not of `capture` or `bench` or `blast`" in text
    _, text = refused(*QWEN, "--run", "bbbbbbbbbbbb")
    assert "run `bbbbbbbbbbbb` has no request that was answered" in text


def test_the_host_that_a_run_of_several_wants_named_need_not_have_been_scouted() -> None:
    run = "0123456789ab"
    bench(
        *(shot(n, run=run, name=name, e2e_ms=1000.0 * n) for n, name in ((1, "alice"), (2, "bob")))
    )
    code, text = refused(*QWEN, "--run", run)
    assert (code, "Hint: Say which one: `--host alice`" in text) == (1, True)
    [found] = objects(*QWEN, "--run", run, "--host", "bob")
    assert found["seconds_per_request"] == 2
    code, text = refused(*QWEN, "--run", run, "--host", "alicia")
    assert (code, "has no sighting of `alicia`" in text) == (1, True)
