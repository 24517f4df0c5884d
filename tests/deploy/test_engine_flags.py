"""Flags as vLLM reads them: read off by eye."""

import pytest

from toolkit.deploy.engine_flags import copies, is_told, max_num_seqs, number, whole_paths
from toolkit.deploy.site import SiteEngine


def engine(*words: str, **env: str) -> SiteEngine:
    return SiteEngine(
        name="e",
        kind="vllm",
        model="m",
        served_name="m",
        host="h",
        port=1,
        arguments=words,
        env=tuple(env.items()),
    )


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (("--max-num-seqs", "64"), 64),
        (("--max-num-seqs=32", "--enforce-eager"), 32),
        (("--max_num_seqs", "8"), 8),
        (("--max_num_seqs=8",), 8),
        (("--max-num-seqs", "8", "--max-num-seqs", "16"), 16),
        (("--enforce-eager",), None),
        (("--max-num-seqs",), None),
        (("--max-num-seqs", "many"), None),
        (("--max-num-seqs", "0"), None),
    ],
)
def test_a_batch_is_as_long_as_the_flags_say(words: tuple[str, ...], size: int | None) -> None:
    assert max_num_seqs(engine(*words)) == size


def test_a_flag_inside_another_one_s_value_is_not_read() -> None:
    words = ("--tool=--seed=3", "--seed", "4", "--other", "--seed=5x")
    assert number(words[:3], "--seed") == 4
    assert (is_told(words, "--tool"), is_told(words, "--mood")) == (True, False)
    assert number(("--seed", "--tool=3"), "--seed") is None


@pytest.mark.parametrize(("word", "count"), [("-dp", 2), ("--data-parallel-size", 2), ("-tp", 1)])
def test_copies_are_told_by_data_parallelism_alone(word: str, count: int) -> None:
    assert copies(engine(word, "2")) == count


def test_paths_are_found_in_flags_in_json_and_in_variables() -> None:
    found = engine(
        *("--chat-template", "/srv/a b.jinja", "--lora=/srv/l", "--download-dir", "models"),
        *("--speculative-config", '{"model": "/srv/draft", "method": "a/b"}', "--seed", "1"),
        HF_HOME="/data",
        URL="http://x/y",
    )
    assert whole_paths(found) == [
        ("--chat-template", "/srv/a b.jinja"),
        ("--lora", "/srv/l"),
        ("--speculative-config", "/srv/draft"),
        ("HF_HOME", "/data"),
    ]
