"""A tokenizer's file: prompts have exactly the wanted tokens by it, and one that cannot count says why."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support.word_tokenizer import word_tokenizer

from toolkit.bench.plan import CHAT, COMPLETIONS
from toolkit.bench.random_prompts import WORDS
from toolkit.bench.tokenizer import words_by
from toolkit.errors import ToolkitError


def bpe(file: Path, texts: tuple[str, ...]) -> Any:
    """A byte-level BPE as Qwen's and Llama's: a word of these texts is one token, others are several."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(file))
    return tokenizer


def refused(file: Path, input_len: str = "40") -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        words_by(str(file), input_len, CHAT)
    return caught.value


def test_a_prompt_has_exactly_the_tokens_of_a_byte_level_bpe(tmp_path: Path) -> None:
    tokenizer = bpe(tmp_path / "tokenizer.json", (" ".join(("", *WORDS[:80])),))
    known, unknown = (len(tokenizer.encode(f" {word}").ids) for word in (WORDS[0], WORDS[-1]))
    assert (known, unknown > 1) == (1, True)
    words = words_by(str(tmp_path), "20:300", CHAT)
    for tokens in (20, 77, 300):
        assert len(tokenizer.encode(words.text(tokens, f"key {tokens}")).ids) == tokens


def test_special_tokens_count_where_no_chat_template_brings_them(tmp_path: Path) -> None:
    file = str(word_tokenizer(tmp_path / "any.json"))
    # neither cut off at 16 tokens nor filled up to 24, as its file would have it
    for input_len in ("8", "300"):
        for endpoint, words in ((CHAT, int(input_len)), (COMPLETIONS, int(input_len) - 1)):
            text = words_by(file, input_len, endpoint).text(int(input_len), "key")
            assert len(text.split(" ")) == words


def test_what_cannot_count_so_many_tokens_is_refused_with_the_way_out(tmp_path: Path) -> None:
    bpe(tmp_path / "letters.json", ())
    error = refused(tmp_path / "letters.json")
    assert error.message.endswith(
        "no random prompt has exactly 40 tokens: it does not count by words"
    )
    assert error.hint.startswith("Leave `--tokenizer` out")

    file = word_tokenizer(tmp_path / "tokenizer.json")
    # the first word, and six that tell it from others
    assert "no prompt can have 6 tokens here" in refused(file, "6").message
    assert "ask for 7 or more" in refused(file, "6").message
    # it has no token for a word that it does not know
    file.write_text(file.read_text().replace('"[UNK]":0,', "").replace('"[UNK]": 0,', ""))
    assert "is no tokenizer that works" in refused(file).message


def test_without_the_package_the_way_to_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    error = refused(tmp_path)
    assert error.message == "`--tokenizer` needs the Python package `tokenizers`"
    assert error.hint == 'Install it: `pip install "llm-serving-toolkit[tokenizer]"`'
