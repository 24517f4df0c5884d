"""Flags: the installed version's own help decides what is written; what it no longer has is translated or refused."""

import json
import tomllib
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.flags import Flags, KnownFlags, Value, arguments, known

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "toolkit/catalog/flags.toml").read_text())
HELP = (ROOT / "tests/data/startup/help-0.32.0.txt").read_text()
NEWEST = known(HELP)
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


def refused(*flags: tuple[str, Value], by: KnownFlags = NEWEST) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        written(*flags, by=by)
    return caught.value


def test_the_help_of_a_real_vllm_names_its_flags_in_all_spellings() -> None:
    assert {"--max-model-len", "--no-enable-prefix-caching", "-tp", "-cc"} <= NEWEST.names
    assert {"--device-memory-utilization", "--gpu-memory-utilization"} <= NEWEST.names
    assert "--speculative-model" not in NEWEST.names


def test_the_help_tells_who_wants_a_value() -> None:
    assert {"--port", "--model-impl", "--api-key"} <= NEWEST.valued
    assert {"--headless", "--enforce-eager", "-ep"} <= NEWEST.bare
    assert "--hf-token" not in NEWEST.valued | NEWEST.bare
    assert {"--cudagraph-capture-sizes", "--served-model-name"} <= NEWEST.many


def test_words_in_a_description_are_no_flags() -> None:
    assert "--max-num-everything" not in OLD.names


def test_a_plain_flag_is_written_with_its_value() -> None:
    assert written(("max-num-seqs", "512"), ("enforce-eager", True)).argv == (
        *("--max-num-seqs", "512"),
        "--enforce-eager",
    )


def test_underscores_dashes_and_short_names_are_one_spelling() -> None:
    assert written(("max_num_seqs", "4"), ("--dtype", "half"), ("-tp", "2"), ("pp", "1")).argv == (
        *("--max-num-seqs", "4", "--dtype", "half", "-tp", "2", "-pp", "1"),
    )


@pytest.mark.parametrize(
    ("value", "argv"),
    [
        (False, ("--no-enable-prefix-caching",)),
        ("false", ("--no-enable-prefix-caching",)),
        (True, ("--enable-prefix-caching",)),
        ("True", ("--enable-prefix-caching",)),
    ],
)
def test_a_switch_is_turned_on_or_off_by_name(value: Value, argv: tuple[str, ...]) -> None:
    assert written(("enable-prefix-caching", value)).argv == argv


def test_a_switch_that_has_no_off_is_left_out() -> None:
    assert written(("enable-prefix-caching", False), by=OLD).argv == ()
    assert written(("no-enable-prefix-caching", True), by=OLD).argv == ()
    assert written(("headless", False)).argv == ()


@pytest.mark.parametrize(
    ("given", "plain"),
    [("32k", "32000"), ("32K", "32768"), ("25.6k", "25600"), ("auto", "auto"), ("8192", "8192")],
)
def test_counts_are_written_out_as_vllm_reads_them(given: str, plain: str) -> None:
    assert written(("max-model-len", given)).argv == ("--max-model-len", plain)


def test_a_suffix_elsewhere_is_left_alone() -> None:
    assert written(("served-model-name", "8k")).argv == ("--served-model-name", "8k")


def test_a_value_with_a_dash_in_front_is_not_taken_for_a_flag() -> None:
    assert written(("max-model-len", "-1")).argv == ("--max-model-len=-1",)


def test_several_words_become_several_arguments_only_where_the_flag_takes_them() -> None:
    assert written(("cudagraph-capture-sizes", "1 2 4")).argv == (
        *("--cudagraph-capture-sizes", "1", "2", "4"),
    )
    assert written(("chat-template", "/my templates/a")).argv == (
        *("--chat-template", "/my templates/a"),
    )


def test_json_goes_through_whole() -> None:
    flag, value = written(("hf-overrides", '{"a": {"b": [1]}}')).argv
    assert (flag, json.loads(value)) == ("--hf-overrides", {"a": {"b": [1]}})


def test_json_that_is_none_is_refused_before_a_minute_is_lost() -> None:
    error = refused(("compilation-config", "{'mode': 3}"))
    # the first name stands in single quotes, the second character
    assert error.message == "the value of the flag `--compilation-config` is no JSON at character 2"


def test_a_key_of_vllms_json_keeps_its_underscores() -> None:
    assert written(("compilation-config.cudagraph_mode", "NONE")).argv == (
        *("--compilation-config.cudagraph_mode", "NONE"),
    )


def test_a_draft_model_of_old_becomes_one_speculative_configuration() -> None:
    found = written(
        ("speculative-model", "Qwen/Qwen2.5-0.5B-Instruct"), ("num-speculative-tokens", "5")
    )
    assert found.argv[0] == "--speculative-config"
    assert json.loads(found.argv[1]) == {
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "num_speculative_tokens": 5,
    }
    assert len(found.argv) == len(found.notes) == 2
    assert found.notes[0].startswith(
        "`--speculative-model Qwen/Qwen2.5-0.5B-Instruct` ended with vLLM 0.8.2"
    )


def test_an_n_gram_draft_names_a_method_and_no_model() -> None:
    found = written(
        ("speculative-model", "[ngram]"),
        ("ngram-prompt-lookup-max", "4"),
        ("speculative-config", '{"num_speculative_tokens": 3}'),
    )
    assert json.loads(found.argv[1]) == {
        "method": "ngram",
        "prompt_lookup_max": 4,
        "num_speculative_tokens": 3,
    }


@pytest.mark.parametrize(
    ("flag", "value", "argv"),
    [
        ("task", "embed", ("--runner", "pooling", "--convert", "embed")),
        ("task", "generate", ("--runner", "generate")),
        ("task", "auto", ()),
        ("worker-use-ray", True, ("--distributed-executor-backend", "ray")),
        ("cuda-graph-sizes", "1 2", ("--cudagraph-capture-sizes", "1", "2")),
        (
            "guided-decoding-backend",
            "xgrammar:no-fallback",
            ("--structured-outputs-config", '{"backend": "xgrammar"}'),
        ),
        (
            "rope-scaling",
            '{"rope_type": "yarn", "factor": 4.0}',
            ("--hf-overrides", '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'),
        ),
        ("disable-log-requests", True, ("--no-enable-log-requests",)),
        ("use-v2-block-manager", True, ()),
        ("swap-space", "0", ()),
        ("num-scheduler-steps", "1", ()),
    ],
)
def test_a_flag_that_is_gone_is_written_as_what_it_became_and_told(
    flag: str, value: Value, argv: tuple[str, ...]
) -> None:
    found = written((flag, value))
    assert found.argv == argv
    assert len(found.notes) == 1
    assert f"--{flag}" in found.notes[0]


def test_a_version_that_still_has_a_flag_is_given_it_as_it_stands() -> None:
    found = written(
        *(("speculative-model", "x"), ("swap-space", "4"), ("task", "embed")),
        by=OLD,
        version="0.8.2",
    )
    assert found.argv == (*("--speculative-model", "x"), *("--swap-space", "4"), "--task", "embed")
    assert found.notes == ()


def test_a_version_that_logs_requests_by_itself_is_told_the_other_way_round() -> None:
    assert written(("enable-log-requests", False), by=OLD).argv == ("--disable-log-requests",)
    assert written(("enable-log-requests", True), by=OLD).argv == ()


def test_what_was_taken_away_is_refused_with_the_reason() -> None:
    error = refused(("swap-space", "4"))
    assert error.message == (
        "vLLM 0.32.0 has no flag `--swap-space`, which ended with 0.17.1:"
        " preempted requests are recomputed, never swapped to the host's memory"
    )
    assert "kv-offloading-size" in error.hint


def test_a_flag_that_came_later_says_when() -> None:
    error = refused(("async-scheduling", True), by=OLD)
    assert error.hint == "It came with vLLM 0.10.2; leave it out, or install that"


def test_a_typing_error_is_told_the_nearest_name() -> None:
    assert refused(("max-num-sequences", "4")).hint == "Did you mean `max-num-seqs`?"


def test_a_name_cut_short_is_written_in_full() -> None:
    # vLLM's own log suggests `--kv-cache-memory=`
    assert written(("kv-cache-memory", "1G")).argv == ("--kv-cache-memory-bytes", "1073741824")
    assert refused(("max", "1")).message == "vLLM 0.32.0 has no flag `--max`"


def test_a_successor_that_this_version_lacks_as_well_is_refused() -> None:
    lacks = known("  --max-model-len MAX_MODEL_LEN\n")
    assert refused(("task", "embed"), by=lacks).message == "vLLM 0.32.0 has no flag `--task`"


def test_a_value_too_many_or_too_few_is_refused() -> None:
    assert refused(("port", True)).message == "the flag `--port` wants a value"
    assert refused(("headless", "yes")).message == "the flag `--headless` takes no value"
    assert refused(("task", "translate")).hint.startswith("It had: auto, generate")


def test_every_entry_of_the_catalog_says_what_to_do() -> None:
    for name, entry in TABLE["gone"].items():
        assert entry["last"], name
        assert "use" in entry or "needless" in entry or {"reason", "hint"} <= entry.keys(), name
        if "needless_values" in entry:
            assert {"reason", "hint"} <= entry.keys(), name
        # what it became is there in the newest vLLM that was read
        assert "use" not in entry or f"--{entry['use']}" in NEWEST.names, name
        # and none of them is still there
        assert f"--{name}" not in NEWEST.names, name
