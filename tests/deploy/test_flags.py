"""Flags as vLLM reads them, read off by eye, and for an image that nobody can ask: the recorded version exactly, others by the table."""

import pytest
from support.deployed import HELP, TABLE

from toolkit.deploy.flags import image_arguments, number, version_of
from toolkit.errors import ToolkitError
from toolkit.serving.flags import Flags, Value, known


def written(image: str, *flags: tuple[str, Value]) -> Flags:
    return image_arguments(flags, f"vllm/vllm-openai:{image}", known(HELP), "0.32.0", TABLE)


def refused(image: str, *flags: tuple[str, Value]) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        written(image, *flags)
    return caught.value


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
        (("--max-num-seqs", "0"), 0),
    ],
)
def test_a_batch_is_as_long_as_the_flags_say(words: tuple[str, ...], size: int | None) -> None:
    assert number(words, "--max-num-seqs") == size


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("vllm/vllm-openai:v0.9.2-cu128", "0.9.2"),
        ("registry.example.com:5000/vllm:0.30.1", "0.30.1"),
        ("vllm/vllm-openai:v0.32.0@sha256:00ff", "0.32.0"),
        ("registry.example.com:5000/vllm", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly-0.33", None),
        ("vllm/vllm-openai:v1", None),
        ("", None),
    ],
)
def test_an_images_tag_tells_its_version(image: str, version: str | None) -> None:
    assert version_of(image) == version


def test_a_flag_that_is_gone_is_translated_for_the_version_of_the_image() -> None:
    found = written("v0.31.0", ("disable-log-requests", True), ("task", "embed"))
    assert found.argv == ("--no-enable-log-requests", "--runner", "pooling", "--convert", "embed")
    assert "was not asked for its flags" in found.notes[-1]


def test_a_flag_that_was_still_there_is_written_as_it_was() -> None:
    # --task ended after 0.12.0, --swap-space after 0.17.1
    assert written("v0.12.0", ("task", "embed")).argv == ("--task", "embed")
    assert written("v0.17.1", ("swap-space", "4")).argv == ("--swap-space", "4")
    assert "swap-space" in refused("v0.18.0", ("swap-space", "4")).message


def test_a_flag_that_had_not_come_yet_is_refused_with_its_version() -> None:
    error = refused("v0.15.0", ("performance-mode", "throughput"))
    assert "0.18" in error.hint
    assert written("v0.18.0", ("performance-mode", "throughput")).argv


def test_a_flag_that_nobody_knows_is_passed_on_and_said_so() -> None:
    found = written("v0.40.0", ("brand-new-thing", "7"), ("max-num-seqs", "64"))
    assert found.argv == ("--brand-new-thing", "7", "--max-num-seqs", "64")
    assert "passed on as given: `--brand-new-thing`" in found.notes[-1]
