"""A start's log: how far it is, and what vLLM found out about itself, in the words of all its versions."""

from pathlib import Path

import pytest

from toolkit.serving.startup_log import Startup, StartupFacts, StartupStep

DATA = Path(__file__).parents[1] / "data" / "startup"


def read(*lines: str) -> StartupFacts:
    startup = Startup()
    for line in lines:
        startup.feed(line)
    return startup.facts


def steps(*lines: str) -> list[tuple[str, float | None]]:
    startup = Startup()
    return [(step.code, step.share) for line in lines if (step := startup.feed(line))]


def recorded(name: str) -> list[str]:
    return (DATA / name).read_text().replace("\r", "\n").split("\n")


def test_a_real_start_is_followed_to_its_end() -> None:
    assert steps(*recorded("served.log")) == [
        ("config", None),
        ("load", None),
        ("load", 1.0),
        ("cache", None),
        ("warm", None),
        ("serve", None),
    ]


def test_a_real_start_tells_its_facts() -> None:
    # the lines themselves, read by eye: `CPU KV cache size: 2,048 tokens`, `Using max model len 512`
    facts = read(*recorded("served.log"))
    assert (facts.max_model_len, facts.kv_tokens) == (512, 2048)


def test_newer_and_older_versions_tell_the_same_in_other_words() -> None:
    newer = read(
        "(EngineCore pid=7) INFO 11-20 18:57:26 [kv_cache_utils.py:2327] GPU KV cache size: 1,234,567 tokens,"
        " Maximum concurrency for 8,192 tokens per request: 150.70x",
        "(APIServer pid=5) INFO 11-20 18:57:36 [entry.py:140] Starting vLLM server on http://0.0.0.0:8000",
    )
    older = read(
        "INFO 04-01 10:00:00 [kv_cache_utils.py:634] GPU KV cache size: 1,234,567 tokens",
        "INFO 04-01 10:00:00 [kv_cache_utils.py:637] Maximum concurrency for 8,192 tokens per request: 150.70x",
        "INFO 04-01 10:00:10 [api_server.py:1081] Starting vLLM API server on http://0.0.0.0:8000",
    )
    assert newer == older
    assert newer.kv_tokens == 1_234_567


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("INFO 01-01 00:00:00 [a.py:1] vLLM API server version 0.10.2rc1", "config"),
        ("INFO 01-01 00:00:00 [c.py:1] Initializing a V1 LLM engine (v0.9.2) with", "config"),
        ("INFO 01-01 00:00:00 [b.py:1] torch.compile takes 31.04 s in total", "compile"),
        ("INFO 01-01 00:00:00 [w.py:1] Memory profiling takes 0.58 seconds", "profile"),
        ("INFO 01-01 00:00:00 [g.py:1] Available KV cache memory: 38.90 GiB", "cache"),
        ("INFO 01-01 00:00:00 [g.py:1] Graph capturing finished in 21 secs, took 0.55", "capture"),
        ("INFO 01-01 00:00:00 [g.py:1] CUDA graph pool memory: 1.10 GiB (actual)", "capture"),
        (
            "INFO 01-01 00:00:00 [c.py:1] init engine (profile, create kv cache) took 61.20 s",
            "warm",
        ),
        ("INFO 01-01 00:00:00 [e.py:1] Starting vLLM server on http://0.0.0.0:8000", "serve"),
        ("INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", "serve"),
    ],
)
def test_every_step_is_known_in_the_words_of_all_versions(line: str, code: str) -> None:
    assert steps(line) == [(code, None)]


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ("[m.py:1] Model loading took 33.78 GiB memory and 41.25 seconds", "weights_gib", 33.78),
        ("model_runner.py:1099] Loading model weights took 14.2487 GB", "weights_gib", 14.2487),
        (
            "[k.py:1] Auto-fit max_model_len: reduced from 262144 to 98304 to fit in available",
            "max_model_len",
            98304,
        ),
        (
            "[k.py:1] Auto-fit max_model_len: full model context length 262144 fits in available",
            "max_model_len",
            262144,
        ),
    ],
)
def test_a_fact_is_read(line: str, fact: str, value: float) -> None:
    assert getattr(read(f"INFO 01-01 00:00:00 {line}"), fact) == value


def test_what_the_gpu_was_divided_into_is_read_from_one_line() -> None:
    facts = read(
        "(Worker pid=9) INFO 01-01 00:00:00 [gpu_worker.py:1029] Free memory on device (78.69/79.11 GiB) on startup."
        " Desired GPU memory utilization is (0.92, 72.78 GiB). Actual usage is 33.9 GiB for consumed memory (weights +"
        " non-torch), 1.53 GiB for peak activation, and 0.55 GiB for CUDAGraph memory. Replace gpu_memory_utilization"
        " config with `--kv-cache-memory=38654705664` (36.0 GiB) to fit into requested memory"
    )
    assert (facts.gpu_total_gib, facts.utilization) == (79.11, 0.92)


def test_progress_bars_are_steps_with_a_share() -> None:
    assert steps(
        "Loading safetensors checkpoint shards:   0% Completed | 0/14 [00:00<?, ?it/s]",
        "Loading safetensors checkpoint shards:  50% Completed | 7/14 [00:09<00:09,  1.3s/it]",
        "Loading safetensors checkpoint shards:  50% Completed | 7/14 [00:09<00:09,  1.3s/it]",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|#   | 5/51 [00:01<00:10]",
    ) == [("load", 0.0), ("load", 0.5), ("capture", 0.1)]


def test_a_worker_that_lags_does_not_turn_progress_back() -> None:
    assert steps(
        "Loading safetensors checkpoint shards:  75% Completed | 3/4 [00:00<?, ?it/s]",
        "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:00<?, ?it/s]",
        "(Worker_TP0 pid=1) INFO 01-01 00:00:00 [g.py:1] Available KV cache memory: 38.90 GiB",
        "(Worker_TP3 pid=1) INFO 01-01 00:00:00 [g.py:1] Model loading took 33.78 GiB memory and 41.25 seconds",
    ) == [("load", 0.75), ("cache", None)]


def test_lines_that_mean_nothing_are_no_step() -> None:
    assert (
        steps("", "Triton is installed, but doesn't include CPU backend.", "INFO", "\x1b[31m(((")
        == []
    )


def test_a_step_is_in_words_for_the_screen() -> None:
    assert Startup().feed(
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [0"
    ) == StartupStep(code="load", text="loads the weights", share=0.5)
