"""Answers that a real vLLM gave, read as a person reads them."""

from pathlib import Path

import pytest

from toolkit.completion import Answer, Completion

RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0-cpu"
STREAM = "text/event-stream; charset=utf-8"


def recorded(name: str, content_type: str = STREAM) -> Answer:
    reader = Completion(status=200, content_type=content_type)
    reader.feed((RECORDED / name).read_bytes(), 1.0)
    return reader.end(2.0)


@pytest.mark.parametrize(
    ("name", "chunks", "known", "said", "prompt", "cached"),
    [
        ("chat_stream.txt", 16, True, ":exceptionmptyways", 21, None),
        ("chat_stream_contusage.body", 4, True, 'ke dest """ le', 21, None),
        ("chat_stream_nousage.body", 4, False, 'ke dest """ le', None, None),
        ("completions_stream.body", 4, True, 'ke dest """own', 4, None),
        ("v3/chat_stream_details.txt", 2, True, " laip", 153, 128),
    ],
)
def test_a_recorded_stream_reads_as_a_person_counts_it(name, chunks, known, said, prompt, cached):
    answer = recorded(name)
    assert (answer.ok, answer.finish_reason, answer.model) == (True, "length", "tiny")
    assert (answer.token_chunks, answer.output_tokens) == (chunks, chunks)
    assert answer.gaps == ((0.0, 1),) * (chunks - 1)
    assert (answer.gap_tokens_known, answer.output_tokens_estimated) == (
        known,
        not known and prompt is None,
    )
    assert answer.text.startswith(said)
    assert (answer.prompt_tokens, answer.cached_tokens) == (prompt, cached)


def test_a_recorded_stream_whose_engine_died_is_an_error_with_its_message():
    # 40 chunks with a choice: one role, 3 empty ones, 36 with text; then the error; then `[DONE]`
    answer = recorded("slow/stream_during_engine_death.txt")
    assert (answer.ok, answer.error_kind, answer.token_chunks) == (False, "stream_error", 36)
    assert answer.error.startswith("EngineCore encountered an issue.")


def test_a_recorded_stream_that_was_aborted_has_no_finish():
    # 39 chunks with a choice: one role, 3 - 1 empty ones, 36 with text
    answer = recorded("slow/aborted_stream.txt")
    assert (answer.ok, answer.error_kind, answer.token_chunks) == (False, "no_finish", 36)


@pytest.mark.parametrize(
    ("name", "said", "tokens", "prompt"),
    [
        ("chat.json", ":exceptionmptyways", 16, 21),
        ("completions.body", 'ke dest """own nonignped', 8, 4),
        ("v3/chat_prompt_details_2.json", " extra�ally", 4, 153),
    ],
)
def test_a_recorded_whole_answer_reads_as_a_person_reads_it(name, said, tokens, prompt):
    answer = recorded(name, "application/json")
    assert answer.ok
    assert answer.text.startswith(said)
    assert (answer.output_tokens, answer.prompt_tokens, answer.finish_reason) == (
        tokens,
        prompt,
        "length",
    )


def test_the_same_answer_has_the_same_hash_streamed_or_not():
    assert (
        recorded("chat.json", "application/json").text_hash == recorded("chat_stream.txt").text_hash
    )
