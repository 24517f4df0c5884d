"""`toolkit plan` as a user meets it: published examples, the keys, and each refusal with its way out."""

import json
from pathlib import Path

import pytest
from support.planning import objects, refused, said, toolkit
from support.shapes import TINY

QWEN = ("qwen2.5-7b", "--gpu", "a100-80gb")
KEYS = (
    "model gpu quantization weights_gib kv_bytes_per_token state_bytes_per_request kv_budget_gib kv_cache_tokens"
    " max_concurrency requests_per_s flags notes"
).split()


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLKIT_DB", "t.db")


# --- what it says ------------------------------------------------------------------------------------


def test_the_kv_cache_alone_needs_no_gpu() -> None:
    words = ("qwen2.5-7b", "--kv-only", "--tokens", "8192", "--batch", "64")
    assert toolkit("plan", *words).stdout == (
        "Qwen2.5-7B-Instruct: 28.00 GiB for 64 requests of 8,192 tokens\n"
        "57,344 bytes a token\n"
        "before blocks round each request up: `--gpu` reckons with blocks\n"
    )
    [found] = objects(*words)
    assert set(KEYS) <= set(found)
    assert (found["kv_gib"], found["kv_bytes_per_token"]) == (28, 57_344)
    assert (found["gpu"], found["max_concurrency"]) == (None, None)
    [half] = objects(*words, "--kv-cache-dtype", "fp8")
    assert (half["kv_gib"], half["kv_bytes_per_token"]) == (14, 28_672)
    text = said("qwen3.5-35b-a3b", "--kv-only", "--tokens", "1", "--batch", "1")
    # 30 x 2,146,304; (20,480 + 64,389,120) / 2 ** 20 = 61.43
    assert "20,480 bytes a token 64,389,120 bytes a request whatever its length" in text
    assert "61.43 MiB for 1 request of 1 token " in text


def test_one_object_for_each_quantization_with_the_agreed_keys() -> None:
    found = objects(*QWEN, "--prompt-tokens", "500", "--output-tokens", "50")
    assert [one["quantization"] for one in found] == ["bf16", "fp8", "awq", "gptq-int4"]
    for one in found:
        assert set(KEYS) <= set(one)
        assert one["flags"]["max-model-len"] == "768"
        assert one["kv_bytes_per_token"] == 57_344
        assert all(advice["why"] for advice in one["advice"])
        assert (one["cost_per_million_tokens"], one["costs"], one["checkup"]) == (None,) * 3
    # 7.616 billion parameters of 2 bytes
    assert found[0]["weights_gib"] == pytest.approx(7_615_616_512 * 2 / 2**30)


def test_the_table_compares_and_the_flags_have_reasons() -> None:
    text = said(*QWEN, "--prompt-tokens", "500", "--output-tokens", "50")
    assert "Qwen2.5-7B-Instruct on a100-80gb with 79.2 GiB" in text
    assert "requests of 550 tokens (500 of prompt, 50 of answer)" in text
    assert "--max-model-len 768 the longest request is 550 tokens, prompt and answer" in text
    assert "awq holds 1.2 times the requests of bf16." in text
    # unknown columns are left out
    assert "requests/s" not in text.split("Flags")[0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            QWEN,
            (
                "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 768 --max-num-seqs 512 "
                "--max-num-batched-tokens 32768 --gpu-memory-utilization 0.95"
            ),
        ),
        # as it was named, and what the user set
        (
            (*QWEN, "--no-prefix-caching", "--max-num-seqs", "8", "-tp", "2"),
            (
                "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 768 --max-num-seqs 8 "
                "--max-num-batched-tokens 4000 --gpu-memory-utilization 0.95 "
                "--tensor-parallel-size 2 --no-enable-prefix-caching"
            ),
        ),
        # 14.2 GiB of bf16 do not fit into 12: fp8 is made while loading
        (
            ("unsloth/Qwen2.5-7B-Instruct", "--gpu", "12GiB"),
            "vllm serve unsloth/Qwen2.5-7B-Instruct --max-model-len 768 ",
        ),
        # of AWQ there is another checkpoint
        (
            (*QWEN, "--quantization", "awq"),
            "vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --max-model-len 768 ",
        ),
        (
            ("Qwen3-8B-AWQ", "--gpu", "24GiB"),
            "vllm serve Qwen/Qwen3-8B-AWQ --max-model-len 768 ",
        ),
        # and of what AWQ was made from
        (
            ("Qwen/Qwen3-8B-AWQ", "--gpu", "24GiB", "--quantization", "bf16"),
            "vllm serve Qwen/Qwen3-8B --max-model-len 768 ",
        ),
    ],
)
def test_a_plan_ends_with_a_line_that_serves_the_first_row_that_fits(
    words: tuple[str, ...], line: str
) -> None:
    lengths = ("--prompt-tokens", "500", "--output-tokens", "50")
    last = toolkit("plan", *words, *lengths).stdout.splitlines()[-1]
    assert last.startswith(line)
    told = next(one for one in objects(*words, *lengths) if one["fits"])
    assert told["serve"] == last
    assert last.split()[3::2][: len(told["flags"])] == [f"--{flag}" for flag in told["flags"]]


def test_a_folders_line_names_the_folder_and_what_does_not_fit_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    for word in (folder, folder / "config.json"):
        assert (
            toolkit("plan", str(word), "--gpu", "80GiB")
            .stdout.splitlines()[-1]
            .startswith(f"vllm serve '{folder}' --max-model-len ")
        )
    assert "vllm serve" not in said("qwen2.5-72b", "--gpu", "24GiB")


@pytest.mark.parametrize(
    ("model", "quantization"),
    [
        ("{folder}", "awq"),
        ("meta-llama/Llama-3.1-8B-Instruct", "gptq-int4"),
        ("unsloth/Qwen2.5-7B-Instruct", "awq"),  # its owner's is not unsloth's
        ("somebody/Qwen3-8B-AWQ", "bf16"),
        ("Qwen2.5-Coder-7B-Instruct", "awq"),
    ],
)
def test_a_checkpoint_that_the_catalog_does_not_know_is_to_be_looked_for(
    model: str, quantization: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    words = (model.format(folder=tmp_path), "--gpu", "80GiB", "--quantization", quantization)
    (told,) = objects(*words)
    assert (told["fits"], told["serve"]) == (True, None)
    assert told["notes"][-1] == (
        f"to serve it, look for a checkpoint of {told['model']} that is stored in {quantization}:"
        " the catalog knows of none"
    )
    text = said(*words)
    assert "vllm serve" not in text
    assert told["notes"][-1] in text


EXAMPLE = (
    *("example-27b", "--gpu", "80GB", "--overhead", "6GB", "--gpu-memory-utilization", "1.0"),
    *("--seconds-per-request", "5s", "--target-rps", "10", "--quantization", "bf16"),
)


def test_the_27b_example_whole() -> None:
    text = said(
        *(*EXAMPLE, "--prompt-tokens", "500", "--output-tokens", "50", "--gpu-hour", "2"),
        *("--api-price", "0.5/1.5", "--calls", "300ms,300ms,300ms,100ms", "--idle", "429ms"),
    )
    for words in (
        "bytes alone would hold 52 requests (10.4 a second): blocks of 16 tokens",
        "the 58 that it is published with belongs to 500 tokens, and its 59 is a slip",
        # 6e9 bytes, and no estimates
        "50.3 weights, 5.6 beside, as set, 18.6 KV cache",
        # 51 of 5 s
        "One such server does 1.02 times the target: 2 to 3 of them leave peaks their room",
        "try it with 20.0 to 30.0, two to three times the peak",
        # 1000 / 1429
        "one user keeps the GPU busy for 70.0 % of the time",
        "3 users at once keep it busy for 97.3 %",
        # 51 / 0.69979 = 72.9
        "73 users fill its memory with calls",
        # 3600 x 10.2 x 550 = 20.196 million tokens; 2 / 20.196
        "0.099 for a million tokens",
        # 500 x 0.5 + 50 x 1.5 = 325 millionths a request: 2 / 0.000325 / 3600 = 1.709 a second, of 10.2
        "The GPU is cheaper from 1.71 requests a second on, around the clock: 16.8 %",
    ):
        assert text.count(words) == 1, words
    assert "estimates" not in text


def test_the_same_as_one_object() -> None:
    words = ("--tokens", "550", "--gpu-hour", "2", "--calls", "1s,1s", "--idle", "2s")
    [found] = objects(*EXAMPLE, *words)
    assert (found["max_concurrency"], found["requests_per_s"]) == (51, 10.2)
    assert found["headroom"]["engines"] == [2, 3]
    # 1 - 0.5 ** 4 = 0.9375 is under 0.95
    assert (found["chain"]["busy_share"], found["chain"]["users_busy"]) == (0.5, 5)
    # 2 / (3600 x 10.2 x 550 / 1e6)
    assert found["costs"]["per_million_tokens"] == pytest.approx(2 / 20.196)
    assert found["cost_per_million_tokens"] == found["costs"]["per_million_tokens"]


def test_no_more_calls_run_than_the_engine_admits() -> None:
    words = (*QWEN, "--quantization", "bf16", "--tokens", "550", "--calls", "1s", "--idle", "1s")
    [found] = objects(*words, "--max-num-seqs", "64")
    # memory holds over a thousand; 64 calls under way, each user in one for half of the time
    assert found["max_concurrency"] > 1000
    assert found["chain"]["users_full"] == 128


def test_a_target_that_16_bit_cannot_meet_names_the_first_that_does() -> None:
    words = ("qwen3.5-35b-a3b", "--gpu", "a100-80gb", "--tokens", "271", "--target-rps", "10")
    # 16 bit holds about 60 requests of 5 s: 12 a second; fp8 is given 3 x 50, and no more are asked for
    hint = "fp8 on the same machine does 3.00 times the target: --quantization fp8 shows its flags"
    assert hint in said(*words, "--seconds-per-request", "5s")
    # of 1 s: 16 bit itself does, and without a time nobody knows
    for more in (("--seconds-per-request", "1s"), ()):
        assert "on the same machine" not in said(*words, *more)


def test_a_model_that_does_not_fit_is_an_answer_with_ways_out() -> None:
    text = said("llama-3.3-70b-instruct", "--gpu", "l4", "--tokens", "550")
    assert "Flags for bf16 (for another: --quantization NAME) None: it does not fit" in text
    assert "- awq: it would fit with 4 GPUs (--tensor-parallel-size 4)" in text
    # a slice of a GPU is not joined with others
    text = said("qwen3.5-35b-a3b", "--gpu", "1g.10gb", "--tokens", "271")
    assert "GPUs (--tensor-parallel-size" not in text
    assert "a100-80gb-mig-1g.10gb" in text


def test_graphs_are_a_matter_of_the_version() -> None:
    old, new = (said(*QWEN, "--tokens", "550", "--vllm", one) for one in ("0.17.1", "0.33.0"))
    assert "for graphs come on top" in old
    assert "for graphs come on top" not in new


# --- where a model, a GPU and lengths come from -------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name"),
    [
        *((word, "a100-80gb") for word in ("A100", "NVIDIA A100-SXM4-80GB", "a100_80gb")),
        ("80GiB", "80GiB"),
    ],
)
def test_a_gpu_goes_by_many_names_or_is_an_amount_of_memory(word: str, name: str) -> None:
    [found] = objects("qwen2.5-7b", "--gpu", word, "--quantization", "bf16", "--tokens", "550")
    assert (found["gpu"], round(found["memory_gib"], -1)) == (name, 80)


def test_a_checkpoints_name_says_how_its_weights_are_stored() -> None:
    named = ("Qwen/Qwen2.5-7B-Instruct-AWQ", "--gpu", "l4", "--tokens", "271")
    found = objects(*named)
    assert [one["quantization"] for one in found] == ["awq", "bf16", "fp8", "gptq-int4"]
    assert "Flags for awq" in said(*named)


def test_a_folder_or_a_config_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    for word in ("mine", "mine/config.json"):
        [found] = objects(word, "--gpu", "l4", "--tokens", "550", "--quantization", "bf16")
        # 4 layers x 2 x 2 heads x 32 x 2 bytes
        assert (found["model"], found["kv_bytes_per_token"]) == ("mine", 1024)


WORKLOAD = json.dumps(
    {
        "recommended_max_model_len": 1024,
        "model_length": {"longest": 700},
        "lengths": {"prompt_tokens": {"mean": 500.0}, "output_tokens": {"mean": 50.0}},
    }
)


def test_a_workloads_report_has_the_lengths(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(WORKLOAD)
    from_file = objects(*QWEN, "--workload", "w.json", "--quantization", "bf16")
    from_pipe = objects(*QWEN, "--workload", "-", "--quantization", "bf16", stdin=WORKLOAD)
    assert from_file == from_pipe
    assert from_file[0]["request_tokens"] == 550
    assert from_file[0]["flags"]["max-model-len"] == "1024"


def test_the_longest_request_decides_the_limit_and_not_how_many_fit() -> None:
    usual, long = (
        objects(*QWEN, "--tokens", "550", "--quantization", "bf16", *more)[0]
        for more in ((), ("--longest", "4000"))
    )
    # 4000 x 1.15 = 4600, up to 18 x 256
    assert long["flags"]["max-model-len"] == "4608"
    assert long["max_concurrency"] == usual["max_concurrency"]


def test_the_files_size_is_of_the_quantization_that_is_asked_for() -> None:
    words = ("qwen3.5-35b-a3b", "--gpu", "a100-80gb", "--tokens", "271", "--weights", "24.5GB")
    [found] = objects(*words, "--quantization", "gptq-int4")
    assert found["weights_gib"] * 2**30 == pytest.approx(24.5e9)
    # of several the model's own
    bf16, awq = objects(*words, "--quantization", "bf16", "--quantization", "awq")
    assert bf16["weights_gib"] * 2**30 == pytest.approx(24.5e9)
    assert awq["weights_gib"] * 2**30 < 24e9


# --- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gpu", "message", "hint"),
    [
        ("qwen2.5-7b-chat", "l4", "no model is called `qwen2.5-7b-chat`, and no file either", "Nearest: Qwen2.5-7B-Instruct"),
        ("zzzz", "l4", "no model is called `zzzz`", "Known: Qwen2.5-7B-Instruct, "),
        ("qwen2.5-7b", "l40", "no GPU is called `l40`", "Nearest: l40s"),
        ("qwen2.5-7b", "none-such", "no GPU is called", "or give its memory, e.g., `--gpu 80GiB`"),
        *(
            ("qwen2.5-7b", word, f"no GPU is called `{word}`", "No amount of memory either: write, e.g., `--gpu 80GiB`")
            for word in ("80", "0", "-5GiB", "1e30GiB", "")
        ),
    ],
)  # fmt: skip
def test_an_unknown_name_gets_the_nearest_ones(
    model: str, gpu: str, message: str, hint: str
) -> None:
    code, text = refused(model, "--gpu", gpu)
    assert code == 1
    assert f"Error: {message}" in text
    assert hint in text.partition("Hint: ")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a MODEL, or a server with --host"),
        (("qwen2.5-7b",), "say which GPU: --gpu a100-80gb"),
        (("qwen2.5-7b", "--kv-only"), "--kv-only goes with --tokens and --batch"),
        ((*QWEN, "--batch", "3"), "--batch goes with --kv-only"),
        (
            (*QWEN, "--tokens", "5", "--prompt-tokens", "5"),
            "--tokens is prompt and answer together",
        ),
        ((*QWEN, "--prompt-tokens", "5"), "--prompt-tokens and --output-tokens go together"),
        ((*QWEN, "--tokens", "5", "--workload", "w"), "--workload has the lengths"),
        ((*QWEN, "--idle", "5s"), "--idle goes with --calls"),
        ((*QWEN, "--tokens", "nan"), "--tokens takes a number up to"),
        ((*QWEN, "--tokens", "1e30"), "--tokens takes a number up to"),
        ((*QWEN, "--target-rps", "nan"), "--target-rps takes a number up to"),
        ((*QWEN, "--gpu-hour", "inf"), "--gpu-hour takes a number up to"),
        ((*QWEN, "--api-price", "cheap"), "is no price"),
        ((*QWEN, "--api-price", "nan"), "is no price"),
        ((*QWEN, "--api-price", "1/2/3"), "is no price"),
        ((*QWEN, "--calls", "1s,later"), "is no list of durations"),
    ],
)
def test_a_wrong_command_line_says_what_is_missing(words: tuple[str, ...], message: str) -> None:
    code, text = refused(*words)
    assert code == 2
    assert message in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--vllm", "x"), "`x` is no version of vLLM", "--vllm 0.17.1"),
        (("--quantization", "q5"), "no quantization is called `q5`", "Known: "),
        (
            ("--kv-cache-dtype", "fp9"),
            "no KV cache dtype that can be priced is called `fp9`",
            "Known",
        ),
        (
            ("-tp", "3"),
            "28 heads of `Qwen2.5-7B-Instruct` cannot be divided among 3 GPUs",
            "divide",
        ),
        (("-pp", "99"), "has 28 layers, too few for 99 stages", "--pipeline-parallel-size"),
        (("--workload", "none.json"), "`none.json` cannot be read", "toolkit workload --json"),
        (("--run", "0123456789ab"), "`t.db` does not exist", ""),
    ],
)
def test_what_cannot_be_is_refused_with_its_way_out(
    words: tuple[str, ...], message: str, hint: str
) -> None:
    code, text = refused(*QWEN, *words)
    assert code == 1
    assert message in text
    assert hint in text.partition("Hint: ")[2]


@pytest.mark.parametrize("text", ["", "[]", "{", "1", "null", "{}"])
def test_a_report_that_is_none_is_refused(text: str) -> None:
    code, message = refused(*QWEN, "--workload", "-", stdin=text)
    assert code == 1
    expected = (
        "the workload does not say how long prompts are"
        if text == "{}"
        else "`standard input` is not one JSON object"
    )
    assert expected in message


# --- what there is ------------------------------------------------------------------------------------


def test_the_catalog_names_its_models_and_gpus() -> None:
    text = said("--list")
    # 40 / 4 x 2 x 2 x 256 x 2 bytes, and 30 x 2,146,304
    assert "Qwen3.5-35B-A3B" in text
    assert "20,480 64,389,120" in text
    assert "a100-80gb 79.25 2,039" in text
    found = objects("--list")
    tokens = {one["model"]: one["kv_bytes_per_token"] for one in found if "model" in one}
    assert tokens["Qwen2.5-7B-Instruct"] == 57_344
    assert tokens["Qwen3-30B-A3B"] == 98_304
    assert tokens["DeepSeek-Coder-V2-Lite-Instruct"] == 31_104
    assert tokens["gemma-3-27b-it"] == 81_920
    assert {one["gpu"] for one in found if "gpu" in one} >= {"h200", "mi300x", "rtx-4090", "b200"}


@pytest.mark.parametrize(
    ("name", "shown_mib"),
    [
        # nvidia-smi counts what the driver keeps for itself, MiB
        ("a100-80gb", 81_920),
        ("h100-80gb", 81_559),
        ("h200", 143_771),
        ("l4", 23_034),
        ("l40s", 46_068),
        ("rtx-4090", 24_564),
        ("b200", 183_359),
    ],
)
def test_programs_are_offered_a_little_less_than_nvidia_smi_shows(
    name: str, shown_mib: int
) -> None:
    [found] = [one for one in objects("--list") if one.get("gpu") == name]
    assert 0.95 < found["memory_gib"] * 1024 / shown_mib < 1
