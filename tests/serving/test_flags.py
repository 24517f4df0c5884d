"""Flags: the installed version's own help decides what is written; what it no longer has is translated or refused. Presets give way to them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.flags import Flags, KnownFlags, Value, arguments, known
from toolkit.serving.presets import over, preset

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "toolkit/catalog"
TABLE = tomllib.loads((CATALOG / "flags.toml").read_text())
PRESETS = tomllib.loads((CATALOG / "presets.toml").read_text())
NEWEST = known((ROOT / "tests/data/startup/help-0.32.0.txt").read_text())
OLD = known(
    """usage: vllm serve <model_tag> [options]

options:
  --model MODEL         Name or path; see --max-num-everything for more.
  --speculative-model SPECULATIVE_MODEL
  --task {auto,generate,embedding,embed}
  --disable-log-requests
                        Disable logging requests.
  --enable-prefix-caching
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
  --max-model-len MAX_MODEL_LEN
  --swap-space SWAP_SPACE
"""
)


def written(*flags: tuple[str, Value], by: KnownFlags = NEWEST, version: str = "0.32.0") -> Flags:
    return arguments(flags, by, version, TABLE)


def test_a_help_names_its_flags_in_all_spellings_and_who_wants_a_value() -> None:
    assert {"--max-model-len", "--no-enable-prefix-caching", "-tp", "-cc"} <= NEWEST.names
    assert {"--device-memory-utilization", "--gpu-memory-utilization"} <= NEWEST.names
    assert "--speculative-model" not in NEWEST.names
    assert {"--port", "--model-impl", "--api-key"} <= NEWEST.valued
    assert {"--headless", "--enforce-eager", "-ep"} <= NEWEST.bare
    assert "--hf-token" not in NEWEST.valued | NEWEST.bare
    assert {"--cudagraph-capture-sizes", "--served-model-name"} <= NEWEST.many
    # a description's words are none
    assert "--max-num-everything" not in OLD.names


@pytest.mark.parametrize(
    ("flag", "value", "argv"),
    [
        ("max-num-seqs", "512", "--max-num-seqs 512"),
        # underscores, dashes, short names and a name cut short are one spelling; vLLM's own log suggests `--kv-cache-memory=`
        ("max_num_seqs", "4", "--max-num-seqs 4"),
        ("--dtype", "half", "--dtype half"),
        ("-tp", "2", "-tp 2"),
        ("pp", "1", "-pp 1"),
        ("kv-cache-memory", "1G", "--kv-cache-memory-bytes 1073741824"),
        ("compilation-config.cudagraph_mode", "NONE", "--compilation-config.cudagraph_mode NONE"),
        # a switch is turned on or off by name, and left out where it has no off
        ("enforce-eager", True, "--enforce-eager"),
        ("enable-prefix-caching", False, "--no-enable-prefix-caching"),
        ("enable-prefix-caching", "false", "--no-enable-prefix-caching"),
        ("enable-prefix-caching", "True", "--enable-prefix-caching"),
        ("headless", False, ""),
        # counts as vLLM reads them, and a suffix elsewhere as it is
        ("max-model-len", "32k", "--max-model-len 32000"),
        ("max-model-len", "32K", "--max-model-len 32768"),
        ("max-model-len", "25.6k", "--max-model-len 25600"),
        ("max-model-len", "auto", "--max-model-len auto"),
        ("served-model-name", "8k", "--served-model-name 8k"),
        # a dash in front is no flag
        ("max-model-len", "-1", "--max-model-len=-1"),
        ("cudagraph-capture-sizes", "1 2 4", "--cudagraph-capture-sizes 1 2 4"),
    ],
)
def test_a_flag_is_written_as_vllm_reads_it(flag: str, value: Value, argv: str) -> None:
    assert written((flag, value)).argv == tuple(argv.split())


def test_what_holds_spaces_goes_through_whole() -> None:
    assert written(("chat-template", "/my templates/a")).argv[1] == "/my templates/a"
    flag, value = written(("hf-overrides", '{"a": {"b": [1]}}')).argv
    assert (flag, json.loads(value)) == ("--hf-overrides", {"a": {"b": [1]}})


@pytest.mark.parametrize(
    ("flags", "argv"),
    [
        ({"task": "embed"}, ["--runner", "pooling", "--convert", "embed"]),
        ({"task": "auto"}, []),
        ({"worker-use-ray": True}, ["--distributed-executor-backend", "ray"]),
        ({"cuda-graph-sizes": "1 2"}, ["--cudagraph-capture-sizes", "1", "2"]),
        (
            {"guided-decoding-backend": "xgrammar:no-fallback"},
            ["--structured-outputs-config", {"backend": "xgrammar"}],
        ),
        (
            {"rope-scaling": '{"rope_type": "yarn", "factor": 4.0}'},
            ["--hf-overrides", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}],
        ),
        ({"disable-log-requests": True}, ["--no-enable-log-requests"]),
        ({"use-v2-block-manager": True}, []),
        ({"swap-space": "0"}, []),
        # several become one; an n-gram draft names a method and no model
        (
            {"speculative-model": "Qwen/Qwen2.5-0.5B", "num-speculative-tokens": "5"},
            ["--speculative-config", {"model": "Qwen/Qwen2.5-0.5B", "num_speculative_tokens": 5}],
        ),
        (
            {"speculative-model": "[ngram]", "ngram-prompt-lookup-max": "4"},
            ["--speculative-config", {"method": "ngram", "prompt_lookup_max": 4}],
        ),
    ],
)
def test_a_flag_that_is_gone_is_written_as_what_it_became_and_told(
    flags: dict[str, Value], argv: list[Any]
) -> None:
    found = written(*flags.items())
    assert [json.loads(word) if word[0] == "{" else word for word in found.argv] == argv
    assert len(found.notes) == len(flags)
    for flag, note in zip(flags, found.notes, strict=True):
        assert f"--{flag}" in note


def test_a_version_that_still_has_a_flag_is_given_it_as_it_stands() -> None:
    had = ("speculative-model", "x"), ("swap-space", "4"), ("task", "embed")
    told = tuple("--speculative-model x --swap-space 4 --task embed".split())
    assert written(*had, by=OLD, version="0.8.2") == Flags(argv=told)
    # and where requests are logged by itself, it is told the other way round
    assert written(("enable-log-requests", False), by=OLD).argv == ("--disable-log-requests",)
    assert written(("enable-log-requests", True), by=OLD).argv == ()


@pytest.mark.parametrize(
    ("flag", "value", "by", "message", "hint"),
    [
        ("swap-space", "4", NEWEST, "vLLM 0.32.0 has no flag `--swap-space`, which ended with 0.17.1", "kv-offloading-size"),
        ("async-scheduling", True, OLD, "no flag `--async-scheduling`", "It came with vLLM 0.10.2"),
        ("max-num-sequences", "4", NEWEST, "no flag", "Did you mean `max-num-seqs`?"),
        ("max", "1", NEWEST, "vLLM 0.32.0 has no flag `--max`", ""),
        ("task", "embed", known("  --max-model-len MAX_MODEL_LEN\n"), "vLLM 0.32.0 has no flag `--task`", ""),
        ("port", True, NEWEST, "the flag `--port` wants a value", ""),
        ("headless", "yes", NEWEST, "the flag `--headless` takes no value", ""),
        ("task", "translate", NEWEST, "", "It had: auto, generate"),
        # the first name stands in single quotes, the second character
        ("compilation-config", "{'mode': 3}", NEWEST, "the flag `--compilation-config` is no JSON at character 2", ""),
    ],
)  # fmt: skip
def test_what_no_version_would_take_is_refused_before_a_minute_is_lost(
    flag: str, value: Value, by: KnownFlags, message: str, hint: str
) -> None:
    with pytest.raises(ToolkitError) as caught:
        written((flag, value), by=by)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_every_entry_of_the_catalog_says_what_to_do() -> None:
    for name, entry in TABLE["gone"].items():
        assert entry["last"], name
        assert "use" in entry or "needless" in entry or {"reason", "hint"} <= entry.keys(), name
        if "needless_values" in entry:
            assert {"reason", "hint"} <= entry.keys(), name
        # what it became is there in the newest vLLM that was read, and none of them is
        assert "use" not in entry or f"--{entry['use']}" in NEWEST.names, name
        assert f"--{name}" not in NEWEST.names, name


# --- presets ----------------------------------------------------------------------------------------


def test_the_contests_winner_is_as_the_seed_tells_it() -> None:
    assert dict(preset("contest-gptq-int4", PRESETS).flags) == {
        "gpu-memory-utilization": "0.98",
        "max-num-seqs": "512",
        "max-model-len": "512",
        "kv-cache-dtype": "fp8_e4m3",
    }


@pytest.mark.parametrize("name", PRESETS)
def test_every_flag_of_a_preset_is_one_of_a_real_vllm(name: str) -> None:
    found = preset(name, PRESETS)
    for flags in (found.flags, *(engine["flags"] for engine in found.engines)):
        assert written(*flags.items()).notes == ()
    assert PRESETS[name]["why"]


@pytest.mark.parametrize(
    "own",
    [
        ("enable-prefix-caching", False),
        ("--enable_prefix_caching", False),
        ("no-enable-prefix-caching", True),
    ],
)
def test_the_users_own_flag_takes_the_presets_place_however_it_is_spelled(
    own: tuple[str, bool],
) -> None:
    merged = over({"enable-prefix-caching": True, "max-num-seqs": "64"}, [own])
    assert merged == {own[0].lstrip("-").replace("_", "-"): own[1], "max-num-seqs": "64"}
