"""A real `tokenizer.json` whose counts are plain by hand: a word is a token, one more stands before the text."""

from pathlib import Path

LINES = ("Read the book and tell me what it says", "of all that was said not much is true")


def word_tokenizer(file: Path) -> Path:
    """Write it as the tokenizers library does, with what models are trained with and servers leave out."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]", "[BOS]"])
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", tokenizer.token_to_id("[BOS]"))]
    )
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=24)
    file.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(file))
    return file
