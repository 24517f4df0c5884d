"""Models of the catalog, as the planner sees them."""

import functools
from typing import Any

from toolkit.plan.catalog import table
from toolkit.plan.model_config import Shape, shape_of

GIB = 2**30


@functools.cache
def shape(name: str) -> Shape:
    return shape_of(config(name), name)


def config(name: str) -> dict[str, Any]:
    """A copy, for a test that changes it."""
    return dict(table("models")[name]["config"])


TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
}
"""The least that a config says: 128 / 4 = 32 a head."""


def tiny(**fields: Any) -> Shape:
    """A small model; None takes a field out."""
    merged = {key: value for key, value in (TINY | fields).items() if value is not None}
    return shape_of(merged, "tiny")
