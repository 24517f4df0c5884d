"""How weights are stored: bytes of one weight with its scales, by name or by a config's `quantization_config`.

What is quantized are the projections of the layers. Embeddings, the output's matrix, norms, biases, routers, image encoders and
the layers for multi-token prediction stay in 16 bit in what is published; weights.py counts them so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.errors import ToolkitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """One way to store the layers' projections."""

    name: str
    bits: float
    """Of one weight, without its scale."""
    group: int | None = None
    """So many weights share a scale; None: so many that the scales don't count."""
    scale_bytes: float = 0.0
    """Of the scale, and of the zero point where there is one."""
    attention_kept: bool = False
    """Attention stays in 16 bit, and shared experts where there are others."""

    @property
    def weight_bytes(self) -> float:
        """Of one quantized weight and its part of a scale."""
        return self.bits / 8 + (self.scale_bytes / self.group if self.group else 0.0)


def _int4(name: str, group: int = 128) -> Quantization:
    """A 16-bit scale and a 4-bit zero point for each group: AutoAWQ's and GPTQ's files have both."""
    return Quantization(name=name, bits=4, group=group, scale_bytes=2.5)


KNOWN = {
    one.name: one
    for one in (
        Quantization(name="fp32", bits=32),
        Quantization(name="bf16", bits=16),
        Quantization(name="fp16", bits=16),
        # one float32 for each 128 x 128 weights (DeepSeek, Qwen), or one a row: 0.02 % either way
        Quantization(name="fp8", bits=8),
        Quantization(name="int8", bits=8),
        Quantization(name="gptq-int8", bits=8, group=128, scale_bytes=3.0),
        _int4("awq"),
        _int4("gptq-int4"),
        Quantization(name="nvfp4", bits=4, group=16, scale_bytes=1.0),
        # gpt-oss
        Quantization(name="mxfp4", bits=4, group=32, scale_bytes=1.0, attention_kept=True),
        Quantization(name="bitsandbytes", bits=4, group=64, scale_bytes=4.0),
    )
}
QUANTIZATIONS = tuple(sorted(KNOWN, key=lambda name: (-KNOWN[name].weight_bytes, name)))
"""Names, the largest first."""
OTHER_NAMES = {
    "none": "bf16",
    "auto": "bf16",
    "bfloat16": "bf16",
    "half": "fp16",
    "float16": "fp16",
    "float32": "fp32",
    "fbgemm_fp8": "fp8",
    "modelopt": "fp8",
    "fp8_per_tensor": "fp8",
    "fp8_per_block": "fp8",
    "fp8_per_channel": "fp8",
    "w8a8": "int8",
    "experts_int8": "int8",
    "auto_awq": "awq",
    "awq_marlin": "awq",
    "auto_gptq": "gptq-int4",
    "gptq": "gptq-int4",
    "gptq_marlin": "gptq-int4",
    "int4": "gptq-int4",
    "w4a16": "gptq-int4",
    "modelopt_fp4": "nvfp4",
    "gpt_oss_mxfp4": "mxfp4",
    "bnb": "bitsandbytes",
}
"""What vLLM's `--quantization`, and people, call the same."""


def quantization(word: str) -> Quantization:
    """The one of this name. Raises ToolkitError."""
    name = word.strip().lower()
    found = KNOWN.get(OTHER_NAMES.get(name, name))
    if found is None:
        raise ToolkitError(f"no quantization is called `{word}`", f"Known: {', '.join(KNOWN)}")
    return found


def stored_as(config: object) -> Quantization | None:
    """Read a config.json's `quantization_config`; None: there is none, or one that we can't read."""
    if not isinstance(config, Mapping):
        return None
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    # `dynamic` are GPTQModel's rules for what is left out
    ignored = [
        one
        for key in ("dynamic", "modules_to_not_convert", "ignore")
        if isinstance(config.get(key), list | tuple | Mapping)
        for one in config[key]
        if isinstance(one, str) and (key != "dynamic" or method.startswith(("gptq", "awq")))
    ]
    attention_kept = any("attn" in one for one in ignored)

    if method.startswith(("gptq", "awq")):
        bits = 8 if config.get("bits", config.get("w_bit")) == 8 else 4
        group = _group(config.get("group_size", config.get("q_group_size", 128)))
        return Quantization(
            name="awq" if method.startswith("awq") else f"gptq-int{bits}",
            bits=bits,
            group=group,
            scale_bytes=2 + bits / 8 if group else 0.0,
            attention_kept=attention_kept,
        )
    if method == "compressed-tensors":
        # llm-compressor's files: the weights' bits and groups of the first of its groups of layers
        groups = config.get("config_groups")
        first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = first.get("weights") if isinstance(first, Mapping) else None
        if not isinstance(weights, Mapping):
            return None
        width, group = weights.get("num_bits"), _group(weights.get("group_size"))
        is_float = weights.get("type") == "float"
        if width == 8:
            return KNOWN["fp8" if is_float else "int8"]
        if width != 4:
            return None
        if is_float:
            group, scale_bytes = group or 16, 1.0
        else:
            scale_bytes = 2.5 if group else 0.0
        return Quantization(
            name="nvfp4" if is_float else "int4",
            bits=4,
            group=group,
            scale_bytes=scale_bytes,
            attention_kept=attention_kept,
        )
    if method == "bitsandbytes":
        return KNOWN["int8" if config.get("load_in_8bit") else "bitsandbytes"]
    if method == "modelopt":
        return KNOWN["nvfp4" if "FP4" in str(config.get("quant_algo")).upper() else "fp8"]
    return KNOWN.get(OTHER_NAMES.get(method, method))


def _group(value: object) -> int | None:
    """-1 means one scale for a whole row."""
    return value if isinstance(value, int) and value > 0 else None
