"""The fields of a config.json that say a model's sizes, by all the names they go by.

It reads and refuses; it guesses nothing but what transformers itself would.
"""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import ToolkitError

Config = Mapping[str, Any]

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep what says their text model's sizes."""
LARGEST = 2**32
"""No size in a config is larger; beyond it somebody wrote nonsense."""
MOST_LAYERS = 10_000
FETCH_AGAIN = "Its config was edited or damaged: fetch it again"
GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
"""gemma-3's published configs leave out what equals transformers' defaults (5.19): the 4B has no head counts."""


def text_part(config: Config) -> Config:
    """The part that says the text model's sizes: the config itself, or what a multimodal one nests in it."""
    for key in TEXT_PARTS:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            return inner
    return config


def family_of(config: Config) -> str:
    """`model_type` of the text model, without the `_text` of nested ones."""
    stated = text_part(config).get("model_type") or config.get("model_type") or ""
    return str(stated).removesuffix("_text")


class Fields:
    """One config's sizes; `notes` says what was taken for what it leaves out."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name
        self._defaults = GEMMA3 if family_of(config) == "gemma3" else {}
        self.notes: list[str] = []

    def value(self, *keys: str) -> Any:
        """The first of these fields that is there and not null."""
        found = (self._config.get(key) for key in keys)
        return next((one for one in found if one is not None), None)

    def maybe(self, *keys: str) -> int | None:
        """A whole number that may be missing; null and 0 count as missing. Raises ToolkitError for anything else."""
        value = self.value(*keys)
        if value is None or value is False or value == 0:
            return None
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not 0 < value <= LARGEST:
            raise ToolkitError(
                f"`{keys[0]}` of `{self._name}` is {value!r:.60}, which is no size", FETCH_AGAIN
            )
        return int(value)

    def count(self, *keys: str) -> int:
        """A whole number that must be there. Raises ToolkitError."""
        found = self.maybe(*keys)
        if found is not None:
            return found
        for key in keys:
            if key in self._defaults:
                self._note(
                    f"its config has no `{key}`: {self._defaults[key]:,} is what transformers takes"
                )
                return self._defaults[key]
        raise ToolkitError(
            f"the config of `{self._name}` has no `{keys[0]}`",
            "Name a model's config.json, or the directory that holds it and its weights",
        )

    def layers(self) -> int:
        """How many layers."""
        found = self.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if found > MOST_LAYERS:
            raise ToolkitError(
                f"`{self._name}` would have {found:,} layers, more than any model has", FETCH_AGAIN
            )
        return found

    def hidden(self) -> int:
        """Width of what goes from layer to layer."""
        return self.count("hidden_size", "n_embd", "d_model")

    def vocab(self) -> int:
        """How many tokens it knows."""
        return self.count("vocab_size")

    def heads(self) -> int:
        """Query heads."""
        return self.count("num_attention_heads", "n_head", "n_heads")

    def kv_heads(self) -> int:
        """KV heads: as many as query heads where the config does not say; one where it says `multi_query`."""
        stated = self.maybe("num_key_value_heads", "n_head_kv", "num_kv_heads")
        if stated is not None:
            return stated
        if self.value("multi_query") is True:
            return 1
        default = self._defaults.get("num_key_value_heads")
        return default if default is not None else self.heads()

    def head_dim(self) -> int:
        """Of one head; hidden / heads where the field is absent, null or 0."""
        stated = self.maybe("head_dim", "kv_channels", "attention_head_dim")
        if stated is not None:
            return stated
        if "head_dim" in self._defaults:
            return self._defaults["head_dim"]
        heads = self.heads()
        if self.hidden() % heads:
            raise ToolkitError(
                f"`{self._name}` has {heads} heads, which do not divide its hidden size {self.hidden()}",
                "Give `head_dim` in its config",
            )
        return self.hidden() // heads

    def width(self) -> int:
        """Of the MLP; four times hidden where the config does not say (GPT-2)."""
        stated = self.maybe("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
        return 4 * self.hidden() if stated is None else stated

    def experts(self) -> int:
        """Experts that the router picks from; 0: there is none."""
        return self.maybe("num_experts", "n_routed_experts", "num_local_experts") or 0

    def window(self) -> int | None:
        """Tokens that a layer with a window looks back."""
        return self.maybe("sliding_window") or self._defaults.get("sliding_window")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
