"""Answers with what vLLM's own functions make of some layers' KV cache: its groups, blocks and concurrency.

Runs inside the environment that install_vllm.sh makes. Each line of stdin is a case, each line of stdout beginning with `@` its
answer; no model and no server is made.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout


def spec_of(layer: dict[str, Any], case: dict[str, Any]) -> KVCacheSpec:
    if layer["kind"] == "linear":
        return MambaSpec(
            block_size=case["max_model_len"],
            shapes=((layer["state_bytes"],),),
            dtypes=(torch.int8,),
            page_size_padded=case["state_page"],
            mamba_cache_mode=case["mode"],
        )
    heads = {
        "block_size": case["block_size"],
        "num_kv_heads": layer["kv_heads"],
        "head_size": layer["head_dim"],
        "dtype": torch.bfloat16,
    }
    if layer["kind"] == "sliding":
        return SlidingWindowSpec(**heads, sliding_window=layer["window"])
    return (MLAAttentionSpec if layer["kind"] == "mla" else FullAttentionSpec)(**heads)


def engine_of(case: dict[str, Any]) -> SimpleNamespace:
    """What those functions read of vLLM's configuration, and nothing else of it."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC,
            mamba_cache_mode=case["mode"],
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
        ),
        model_config=SimpleNamespace(max_model_len=case["max_model_len"]),
        max_in_flight_tokens=case["in_flight"],
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        speculative_config=None,
    )


def answer(case: dict[str, Any]) -> dict[str, Any]:
    engine = engine_of(case)
    specs = {str(index): spec_of(layer, case) for index, layer in enumerate(case["layers"])}
    groups = kv_cache_utils.get_kv_cache_groups(engine, specs)
    made = kv_cache_utils.get_kv_cache_config_from_groups(engine, groups, case["memory"])
    return {
        "groups": sorted(sorted(map(int, group.layer_names)) for group in groups),
        "num_blocks": made.num_blocks,
        "concurrency": kv_cache_utils.get_max_concurrency_for_kv_cache_config(engine, made),
    }


for line in sys.stdin:
    print("@" + json.dumps(answer(json.loads(line))))
