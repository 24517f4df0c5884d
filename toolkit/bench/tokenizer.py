"""A tokenizer's file in place of a host's own count: what prompts of exactly so many tokens are made of. It reads that file.

What is counted is a prompt's text, as `vllm bench serve --random-input-len` means it: a file says nothing of the chat
template that a server puts around it.
"""

from pathlib import Path

from toolkit.bench.plan import CHAT
from toolkit.bench.random_prompts import Words, calibration, read_lengths
from toolkit.errors import ToolkitError, reason_of

FILE = "tokenizer.json"
HINT = (
    f"Name a Hugging Face `{FILE}`, or the folder of a model that holds one; nothing is downloaded"
)


def words_by(tokenizer: str, input_len: str, endpoint: str) -> Words:
    """Find what prompts of the wanted lengths are made of; `tokenizer`: a file, or a folder with one.

    Raises ToolkitError where it cannot be read, or no such prompt can be made.
    """
    try:
        # late: nobody else pays for it, and it may be missing
        from tokenizers import Tokenizer  # noqa: PLC0415
    except ImportError as error:
        raise ToolkitError(
            "`--tokenizer` needs the Python package `tokenizers`",
            'Install it: `pip install "llm-serving-toolkit[tokenizer]"`',
        ) from error
    file = Path(tokenizer)
    if file.is_dir():
        file /= FILE
    lengths = read_lengths(input_len)
    assert lengths is not None, "the command line was checked"
    steps = calibration(lengths)
    try:
        counter = Tokenizer.from_buffer(file.read_bytes())
        # a file may hold what it was trained with, which servers do not use
        counter.no_truncation()
        counter.no_padding()
        text = next(steps)
        while True:
            # as vLLM does: around a chat its template says which special tokens there are
            encoding = counter.encode(text, add_special_tokens=endpoint != CHAT)
            text = steps.send(len(encoding.ids))
    except StopIteration as end:
        words: Words = end.value
    except OSError as error:
        raise ToolkitError(f"`{file}` cannot be read: {reason_of(error)}", HINT) from error
    except Exception as error:  # what the library raises has no class of its own
        raise ToolkitError(f"`{file}` is no tokenizer that works: {error}", HINT) from error
    if refusal := words.refusal(lengths):
        raise ToolkitError(f"by `{file}` {refusal}")
    if not words.is_exact:
        raise ToolkitError(
            f"by `{file}` no random prompt has exactly {lengths}: it does not count by words",
            "Leave `--tokenizer` out; each host is asked for its own count then",
        )
    return words
