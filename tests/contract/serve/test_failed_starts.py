"""An engine that does not start: `toolkit serve` says the true cause in one sentence, with the way out. The logs are a real vLLM's."""

import sys
from pathlib import Path

import pytest
from contract.harness.programs import ROOT, free_port, run

LOGS = ROOT / "tests" / "data" / "startup"
# Plays an installed vLLM that says what one said and ends as it did.
VLLM = """#!{python}
import pathlib, signal, os, sys
if sys.argv[1:2] == ["serve"] and sys.argv[2].startswith("--help"):
    print("options:")
    for name in ("max-model-len", "host", "port"):
        print("  --" + name, "VALUE")
elif sys.argv[1:2] == ["--version"]:
    print("9.9.9")
else:
    sys.stdout.write(pathlib.Path({log!r}).read_text())
    sys.stdout.flush()
    {end}
"""


def failed(folder: Path, log: Path, end: str = "sys.exit(1)") -> tuple[str, str]:
    """The error and the hint of a start."""
    command = folder / "vllm"
    command.write_text(VLLM.format(python=sys.executable, log=str(log), end=end))
    command.chmod(0o755)
    words = (
        "org/model",
        "--vllm",
        command,
        "--no-preflight",
        "--port",
        free_port(),
        "--db",
        "t.db",
    )
    done = run("serve", *words, cwd=folder)
    assert done.returncode == 1
    error = next(line for line in done.stderr.splitlines() if line.startswith("Error: "))
    hint = next(line for line in done.stderr.splitlines() if line.startswith("Hint: "))
    return error, hint


@pytest.mark.parametrize(
    ("name", "sentence", "hint"),
    [
        ("unknown_flag", "this vLLM has no flag `--max-num-sequences 16`", "--help=all"),
        ("bad_value", "the flag `--kv-cache-dtype` was refused: invalid choice: 'fp9'", "--help"),
        ("model_missing", "there is no model `/models/nowhere`", "HF_TOKEN"),
        ("hub_unreachable", "Hugging Face can't be reached", "hf download"),
        ("too_long", "is more than the model's 4096 positions", "at most `max-model-len` 4096"),
        ("quantization_config", "the model was not quantized with `awq`", "Leave `quantization`"),
        ("quantization_unknown", "does not know the quantization `gguf`", "toolkit plan"),
        ("block_size", "a block of 16 tokens is not possible", "Write a multiple of 32"),
        ("kv_cache_small", "needs 2.29 GiB of KV cache, and 1.0 GiB", "`max-model-len` 43648"),
        ("heads", "4 attention heads can't be shared by 3 GPUs", "may be 1, 2, 4"),
        ("disk_full", "a disk is full", "df -h"),
        ("shared_memory", "`/dev/shm` is too small", "--shm-size"),
        ("port_taken", "its port is taken by another process", "ss -ltnp"),
        ("core_killed", "one of its processes died without a word", "dmesg"),
    ],
)
def test_a_recorded_failure_is_told_by_its_true_cause(
    tmp_path: Path, name: str, sentence: str, hint: str
) -> None:
    error, way_out = failed(tmp_path, LOGS / f"{name}.log")
    assert error.startswith("Error: `model` did not start: ")
    assert sentence in error
    assert hint in way_out


def test_the_share_of_the_gpu_that_would_fit_is_worked_out(tmp_path: Path) -> None:
    log = tmp_path / "said.log"
    log.write_text(
        "ValueError: Free memory on device cuda:0 (70.2/79.1 GiB) on startup is less than desired GPU memory"
        " utilization (0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU memory used.\n"
    )
    error, hint = failed(tmp_path, log)
    assert "only 70.2 of 79.1 GiB of the GPU's memory are free" in error
    assert "asks for 72.77 GiB" in error
    # 70.2 / 79.1 is 88.7 %
    assert "`gpu-memory-utilization` 0.88" in hint


def test_an_unknown_error_is_told_in_its_own_words_and_an_exit_code_where_nothing_was_said(
    tmp_path: Path,
) -> None:
    log = tmp_path / "said.log"
    log.write_text(
        "(Worker pid=1) ERROR 01-01 00:00:00 [w.py:1] ValueError: the moon is in the wrong house.\n"
        "WARNING 01-01 00:00:00 [w.py:1] OSError: [Errno 24] Too many open files\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    error, _ = failed(tmp_path, log)
    assert "it said: the moon is in the wrong house" in error
    log.write_text("INFO 01-01 00:00:00 [x.py:1] Starting to load model\n")
    error, hint = failed(tmp_path, log, "os.kill(os.getpid(), signal.SIGKILL)")
    assert "it was killed (SIGKILL), as Linux does when memory runs out" in error
    assert "dmesg" in hint
