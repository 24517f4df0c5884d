"""What `toolkit serve`, `plan` and `preflight` say before anything is started."""

import json
import math
import sys
from pathlib import Path

import pytest
from contract.harness.programs import rows, run

GIB = 2**30

# Plays an installed vLLM, and notes each call.
VLLM = """#!{python}
import sys
open({calls!r}, "a").write(" ".join(sys.argv[1:3]) + "\\n")
if sys.argv[1] == "serve" and sys.argv[2].startswith("--help"):
    print("options:")
    for name in ("max-model-len", "host", "port"):
        print("  --" + name, "VALUE")
elif sys.argv[1] == "--version":
    print("9.9.9")
else:
    sys.exit("RuntimeError: this one never starts")
"""

# A dense Llama: 10 layers, 16 heads of 64 for queries and 4 for keys and values, 32,000 words, nothing shared.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_a_stack_is_checked_where_vllm_is_not_installed(tmp_path: Path) -> None:
    file = tmp_path / "stack.toml"
    file.write_text('[[engine]]\nmodel = "org/one"\n[[engine]]\nmodel = "org/two"\nport = 9001\n')
    done = run("serve", file, "--check", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    findings = [line for line in done.stderr.splitlines() if line.startswith("Finding: ")]
    assert len(findings) == 1
    assert "there is no vLLM at `vllm`" in findings[0]
    assert "pip install vllm" in findings[0]
    # and all that it says of a stack elsewhere it says here, too
    assert "Engine two: org/two" in done.stderr
    assert "http://127.0.0.1:9001" in done.stderr
    # what cannot start is not started
    started = run("serve", file, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert (started.returncode, started.stdout) == (1, "")
    assert "Error: there is no vLLM at `vllm`" in started.stderr


def test_the_version_of_vllm_is_read_from_its_package_and_its_command_not_started_for_it(
    tmp_path: Path,
) -> None:
    package = tmp_path / "packages" / "vllm-0.9.9.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.9\n")
    calls, command = tmp_path / "calls.txt", tmp_path / "vllm"
    command.write_text(VLLM.format(python=sys.executable, calls=str(calls)))
    command.chmod(0o755)
    words = ("org/model", "--vllm", command, "--no-preflight", "--port", 0, "--db", "t.db")
    done = run("serve", *words, cwd=tmp_path, env={"PYTHONPATH": str(package.parent)})
    assert done.returncode == 1
    assert "this one never starts" in done.stderr
    assert calls.read_text().splitlines() == ["serve --help=all", "serve org/model"]


def test_the_plan_of_a_model_holds_what_can_be_worked_out_by_hand(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))

    def plan(*words: object) -> dict[str, object]:
        done = run("plan", "./llama", *words, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (told,) = rows(done.stdout)
        return told

    # a token: keys and values, of 4 heads of 64, in 10 layers, in 2 bytes each
    token = 2 * 4 * 64 * 10 * 2
    # a layer: queries and output 1,024 x 1,024, keys and values 1,024 x 256, three matrices of the MLP, two norms;
    # beside them the words in and out, and a last norm
    layer = 2 * 1024 * 1024 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2 * 1024
    parameters = 10 * layer + 2 * 32_000 * 1024 + 1024
    weights_gib = 2 * parameters / GIB

    alone = plan("--kv-only", "--tokens", 8192, "--batch", 64)
    assert (alone["kv_bytes_per_token"], alone["kv_gib"]) == (token, 5)
    assert alone["weights_gib"] == pytest.approx(weights_gib)

    # 90 % of 24 GiB, less the weights and 1 GiB for all else, in blocks of 16 tokens
    budget_gib = 0.9 * 24 - 1 - weights_gib
    blocks = math.floor(budget_gib * GIB / (16 * token))
    common = ("--gpu", "24GiB", "--overhead", "1GiB", "--gpu-memory-utilization", 0.9)
    more = ("--quantization", "bf16", "--tokens", 8192, "--seconds-per-request", "5s")
    told = plan(*common, *more)
    assert told["kv_budget_gib"] == pytest.approx(budget_gib)
    assert {name: told[name] for name in ("parameters", "num_gpu_blocks", "kv_cache_tokens")} == {
        "parameters": parameters,
        "num_gpu_blocks": blocks,
        "kv_cache_tokens": 16 * blocks,
    }
    # 258 requests of 512 blocks, each done in 5 s
    assert (blocks // 512, told["max_concurrency"], told["requests_per_s"]) == (258, 258, 51.6)
    assert told["flags"] == {
        "max-model-len": "8192",
        "max-num-seqs": "258",
        "max-num-batched-tokens": "2048",
        "gpu-memory-utilization": "0.9",
    }
    assert isinstance(told["notes"], list)


def test_preflight_says_of_each_thing_what_is_wrong_why_and_what_mends_it(tmp_path: Path) -> None:
    done = run("preflight", "--json", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    found = rows(done.stdout)
    assert {tuple(each) for each in found} == {("check", "status", "why", "fix")}
    assert {each["status"] for each in found} <= {"ok", "warn", "fail"}
    by_name = {each["check"]: each for each in found}
    assert by_name.keys() >= {"open_files", "disk", "memory", "shm", "port_8000", "gpu", "vllm"}
    assert by_name["vllm"]["status"] == "fail"
    assert "pip install vllm" in by_name["vllm"]["fix"]
    # exit 1: it fails, and only then
    assert done.returncode == 1
    practice = run("preflight", "--sim", "--json", cwd=tmp_path)
    failed = [each["check"] for each in rows(practice.stdout) if each["status"] == "fail"]
    assert practice.returncode == int(bool(failed))
    assert not {"gpu", "vllm"} & set(failed)
