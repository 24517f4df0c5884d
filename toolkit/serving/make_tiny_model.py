"""Make a tiny random Qwen2 model with its own tokenizer and chat template, for a real vLLM to serve.

Runs inside the environment that install_vllm.sh makes. It needs no network and downloads nothing.
"""

import argparse
import os
from pathlib import Path

# before the import: the libraries look at it once
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LONGEST = 4096
"""Positions; a server narrows them with --max-model-len."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the standard library's sources: English that is on every disk."""
    corpus = sorted(Path(os.__file__).parent.glob("*.py"))[:80]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in corpus], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(
    tokenizer: PreTrainedTokenizerFast, hidden_size: int, layers: int
) -> Qwen2ForCausalLM:
    """Draw the weights; the same sizes give the same model on every run."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        # wide enough that sampled text varies; the default 0.02 gives near-uniform logits
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = config.eos_token_id
    return model


def main() -> None:
    """Write tokenizer, configuration and weights into one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, arguments.hidden_size, arguments.layers)
    tokenizer.save_pretrained(arguments.folder)
    model.save_pretrained(arguments.folder)
    print(
        f"{arguments.folder}: {sum(weight.numel() for weight in model.parameters()):,} parameters"
    )


if __name__ == "__main__":
    main()
