"""Which of a model's layers keep every token, which look back a window, which keep a state. Fields in, one kind a layer out."""

from dataclasses import dataclass
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.plan.fields import Fields

FULL = frozenset({"full_attention", "attention", "full", "global_attention"})
SLIDING = frozenset({"sliding_attention", "sliding_window", "local_attention", "sliding"})
LINEAR = frozenset({"linear_attention", "linear"})

FULL_EVERY = 4
"""`full_attention_interval` where a hybrid does not say (Qwen3-Next, Qwen3.5)."""
PATTERNS = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "cohere2": 4}
"""Every so-manieth layer is full and those between have a window, where the config does not say; gpt-oss and gemma-2 begin
with a window, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """How one layer attends."""

    kind: Literal["full", "sliding", "linear"]
    window: int | None = None


FULL_KIND = LayerKind(kind="full")
LINEAR_KIND = LayerKind(kind="linear")


def layer_kinds(fields: Fields, family: str) -> tuple[tuple[LayerKind, ...], list[str]]:
    """One kind for each layer, and what had to be assumed. Raises ToolkitError when the config contradicts itself."""
    count, stated = fields.layers(), fields.value("layer_types", "layers_block_type")
    window = _window(fields)
    if isinstance(stated, list | tuple):
        if len(stated) != count:
            raise ToolkitError(
                f"a config names {len(stated)} `layer_types` for {count} layers",
                "It was cut, or edited in one place only",
            )
        return _named(stated, window)
    return _derived(fields, family, count, window), []


def _named(
    stated: "list[object] | tuple[object, ...]", window: int | None
) -> tuple[tuple[LayerKind, ...], list[str]]:
    """As `layer_types` says; a kind that we do not know is priced as full attention, the dearest."""
    kinds = tuple(_kind(str(one), window) for one in stated)
    unknown = sorted({str(one) for one in stated if str(one) not in FULL | SLIDING | LINEAR})
    notes = [
        f"layers of kind `{one:.40}` are not known: priced as full attention" for one in unknown
    ]
    if window is None and any(str(one) in SLIDING for one in stated):
        notes.append("layers with a window, but no `sliding_window`: priced as full attention")
    return kinds, notes


def _kind(stated: str, window: int | None) -> LayerKind:
    if stated in LINEAR:
        return LINEAR_KIND
    if stated in SLIDING and window is not None:
        return LayerKind(kind="sliding", window=window)
    return FULL_KIND


def _derived(fields: Fields, family: str, count: int, window: int | None) -> tuple[LayerKind, ...]:
    """Without `layer_types`: by the interval or pattern that the family has."""
    if fields.maybe("linear_num_value_heads") is not None:
        every = fields.maybe("full_attention_interval") or FULL_EVERY
        return _every(every, count, LINEAR_KIND)
    if window is None:
        return (FULL_KIND,) * count
    sliding = LayerKind(kind="sliding", window=window)
    pattern = fields.maybe("sliding_window_pattern") or PATTERNS.get(family)
    if pattern is not None:
        return _every(pattern, count, sliding)
    # Qwen2: the first so many layers are full even where windows are on
    first = min(count, fields.maybe("max_window_layers") or 0) if family.startswith("qwen2") else 0
    return (FULL_KIND,) * first + (sliding,) * (count - first)


def _every(step: int, count: int, between: LayerKind) -> tuple[LayerKind, ...]:
    """Full in each `step`th layer, `between` elsewhere."""
    return tuple(between if (index + 1) % step else FULL_KIND for index in range(count))


def _window(fields: Fields) -> int | None:
    """None: there is none, or `use_sliding_window: false` cancels it (Qwen2.5)."""
    if fields.value("use_sliding_window") is False:
        return None
    return fields.window()
