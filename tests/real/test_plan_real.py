"""The planner beside a real vLLM: blocks, tokens and concurrency, computed from the config before, must equal what it reports.

Models of random weights and of unlike attention, each with 1 GiB for the cache: one served, four in the engine that a server has.
"""

import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.real_vllm import COMMON_FLAGS, START_LIMIT_S, engine_environment

from toolkit.plan.engine import NEWEST, EngineSettings
from toolkit.plan.kv_cache import Layout, layout, state_bytes
from toolkit.plan.model_config import KvHeads, Latent, Layer, Mlp, Recurrent, Shape
from toolkit.plan.model_files import read_model
from toolkit.plan.weights import weights_bytes

CACHE_BYTES = 2**30
"""VLLM_CPU_KVCACHE_SPACE=1."""
MAX_MODEL_LEN = 512
"""As the fixtures beside this file start servers; so are blocks of 32, and 64 of them in the end."""
BLOCKS = 64
COMMON = {
    "vocab_size": 2048,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "max_position_embeddings": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    # MHA; heads of 64, where hidden by heads would be 32
    "heads": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    # five layers with a window and two without: groups of two, one of which is padded
    "windows": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 64,
        "layer_types": ["sliding_attention"] * 2
        + ["full_attention"]
        + ["sliding_attention"] * 2
        + ["full_attention", "sliding_attention"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
    },
    "mla": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
        "rope_theta": 10000.0,
    },
    # two full layers and six with a state; no layer_types, as in Qwen3-Next's own config
    "hybrid": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "mamba_ssm_dtype": "float32",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000.0,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a server said of its cache."""

    block_size: int
    num_blocks: int
    """That the memory makes, before the fixture's flag overrides it."""
    tokens: int
    concurrency: float


def make_model(home: Path, folder: Path, config: dict[str, Any]) -> Path:
    """The tiny model's tokenizer with another config; vLLM draws the weights (`--load-format dummy`)."""
    shutil.copytree(
        home / "models" / "tiny", folder, ignore=shutil.ignore_patterns("*.safetensors")
    )
    (folder / "config.json").write_text(json.dumps(COMMON | config))
    return folder


def told_by(page: str, log: str) -> Told:
    (line,) = (line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    found = re.search(r"Overriding num_gpu_blocks=(\d+) with", log)
    assert found, "vLLM's log does not say how many blocks the memory makes"
    return Told(
        block_size=int(labels["block_size"]),
        num_blocks=int(found[1]),
        tokens=int(labels["kv_cache_size_tokens"]),
        concurrency=float(labels["kv_cache_max_concurrency"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that was started with a model of `CONFIGS`: its flags, and where its log and its page are kept."""

    folder: Path
    flags: tuple[str, ...]

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def page(self) -> Path:
        return self.folder / "page.txt"

    def case(self) -> dict[str, object]:
        words = [str(self.folder), "--load-format", "dummy", *COMMON_FLAGS, *self.flags]
        return {"words": words, "log": str(self.log), "page": str(self.page)}


FLAGS: dict[str, tuple[str, ...]] = {
    "heads": ("--kv-cache-dtype", "fp8"),
    "windows": ("--max-num-batched-tokens", "128"),
    "mla": (),
    "hybrid": ("--mamba-ssm-cache-dtype", "float32"),
}


@pytest.fixture(scope="module")
def started(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    """Every model's engine, one after the other."""
    folder = tmp_path_factory.mktemp("engines")
    engines = {
        name: Started(folder=make_model(vllm_home, folder / name, config), flags=FLAGS[name])
        for name, config in CONFIGS.items()
    }
    lines = "\n".join(json.dumps(each.case()) for each in engines.values())
    run_beside_vllm(vllm_home, "vllm_caches.py", lines, folder)
    return engines


def run_beside_vllm(home: Path, script: str, lines: str, folder: Path) -> str:
    """What a script of this folder prints, run by the Python that has vLLM."""
    done = subprocess.run(
        [home / "bin" / "python", Path(__file__).with_name(script)],
        input=lines,
        env=engine_environment(home, folder),
        capture_output=True,
        text=True,
        # four engines, one after the other
        timeout=2 * START_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("heads", {"kv_cache_dtype": "fp8"}),
        ("windows", {"max_num_batched_tokens": 128}),
        ("mla", {}),
        ("hybrid", {}),
    ],
)
def test_blocks_tokens_and_concurrency_are_what_the_engine_reports(
    started: dict[str, Started], name: str, setting: dict[str, Any]
) -> None:
    engine = started[name]
    assert engine.page.exists(), engine.log.read_text()[-2000:]
    told = told_by(engine.page.read_text(), engine.log.read_text())
    model = read_model(engine.folder)
    # the CPU's MLA kernel takes blocks of 16 only, but for processors with AMX; one batch is in flight on a CPU, as on a GPU before 0.14
    block_size = told.block_size if name == "mla" else 32
    planned = layout(
        model.shape,
        EngineSettings(
            max_model_len=MAX_MODEL_LEN, block_size=block_size, version=(0, 13), **setting
        ),
    )
    assert planned.block_size == told.block_size
    assert planned.blocks_in(CACHE_BYTES) == told.num_blocks
    assert planned.reported_tokens(BLOCKS, NEWEST) == told.tokens
    assert planned.reported_concurrency(BLOCKS) == told.concurrency


def test_a_plain_model_on_disk_is_planned_as_it_is_served(
    vllm_home: Path, locked_server: Any
) -> None:
    with locked_server.client() as client:
        told = told_by(client.get("/metrics").text, locked_server.log.read_text())
    model = read_model(vllm_home / "models" / locked_server.model)
    planned = layout(
        model.shape, EngineSettings(max_model_len=MAX_MODEL_LEN, block_size=told.block_size)
    )
    assert planned.blocks_in(CACHE_BYTES) == told.num_blocks
    assert (planned.reported_tokens(BLOCKS, NEWEST), told.block_size) == (told.tokens, 32)
    # and its weights, counted from the config, are the bytes in its file
    assert model.on_disk == weights_bytes(model.shape)


CASES = 300
DEALER = 7
"""Of the seed; any other is as good."""


def dealt(dice: random.Random) -> tuple[Shape, EngineSettings]:
    """A made-up model: kinds of layers in any order and number, two forms of heads, and an engine's settings."""
    forms = [
        KvHeads(heads=8, kv_heads=k, head_dim=d, value_dim=d) for k, d in dice.sample(FORMS, 2)
    ]
    if dice.random() < 0.6:
        forms = forms[:1] * 2
    kinds: list[KvHeads | Latent | Recurrent] = [
        forms[0],
        *(replace(forms[1], window=dice.choice((32, 100, 1024))) for _ in range(2)),
    ]
    if dice.random() < 0.3:
        state = Recurrent(
            key_heads=4, value_heads=8, key_dim=64, value_dim=64, kernel=4, state_bytes=4
        )
        kinds = [forms[0], state]
    if dice.random() < 0.1:
        kinds = [Latent(heads=8, rank=512, rope_dim=64, nope_dim=128, value_dim=128)]
    counts = [dice.randint(0, 13) for _ in kinds]
    picked = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    dice.shuffle(picked)
    layers = tuple(
        Layer(attention=one, mlp=Mlp(width=1), norms=0) for one in [forms[0], *picked][:40]
    )
    if isinstance(kinds[0], Latent):
        layers = layers[1:] or (Layer(attention=kinds[0], mlp=Mlp(width=1), norms=0),)
    setting = EngineSettings(
        max_model_len=dice.choice((100, 512, 8192)),
        block_size=dice.choice((16, 32, 64)),
        prefix_caching=dice.random() < 0.5,
        max_num_batched_tokens=dice.choice((64, 700, 2048)),
    )
    return Shape(
        name="dealt", hidden=8, vocab=8, max_positions=None, layers=layers, tied=True
    ), setting


FORMS = [(2, 64), (2, 128), (4, 32), (1, 128), (3, 64), (8, 64)]


def as_vllm_reads_it(shape: Shape, setting: EngineSettings, planned: Layout) -> dict[str, object]:
    """The case in words of the script beside this file; a state's page is padded by the platform before, as a server shows."""
    pages = [group.page_bytes for group in planned.groups]
    return {
        "max_model_len": setting.max_model_len,
        "block_size": planned.block_size,
        "mode": "align" if setting.prefix_caching else "none",
        "in_flight": 2 * setting.batched_tokens,
        "memory": CACHE_BYTES,
        "state_page": max(pages),
        "layers": [_layer(layer.attention, shape) for layer in shape.layers],
    }


def _layer(one: KvHeads | Latent | Recurrent, shape: Shape) -> dict[str, object]:
    if isinstance(one, Recurrent):
        return {"kind": "linear", "state_bytes": state_bytes(one, shape, EngineSettings())}
    if isinstance(one, Latent):
        return {"kind": "mla", "kv_heads": 1, "head_dim": one.rank + one.rope_dim}
    kind = "full" if one.window is None else "sliding"
    return {"kind": kind, "kv_heads": one.kv_heads, "head_dim": one.head_dim, "window": one.window}


def test_groups_blocks_and_concurrency_are_what_vllms_own_functions_say(
    vllm_home: Path, tmp_path: Path
) -> None:
    dice = random.Random(DEALER)
    cases = [dealt(dice) for _ in range(CASES)]
    planned = [layout(shape, setting) for shape, setting in cases]
    asked = [
        as_vllm_reads_it(shape, setting, one)
        for (shape, setting), one in zip(cases, planned, strict=True)
    ]
    lines = "\n".join(map(json.dumps, asked))
    printed = run_beside_vllm(vllm_home, "vllm_groups.py", lines, tmp_path)
    told = [json.loads(line[1:]) for line in printed.splitlines() if line.startswith("@")]
    assert len(told) == CASES
    for case, one, answer in zip(asked, planned, told, strict=True):
        blocks = one.blocks_in(CACHE_BYTES)
        mine = {
            "groups": sorted(list(group.layers) for group in one.groups),
            "num_blocks": blocks,
            "concurrency": one.reported_concurrency(blocks),
        }
        assert mine == answer, case


PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import FlexibleArgumentParser, make_arg_parser
read = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.stdin.read()))
print(json.dumps([read.model_tag, read.max_model_len, read.enable_prefix_caching]))
"""


def test_vllm_takes_the_line_that_a_plan_ends_with(vllm_home: Path, tmp_path: Path) -> None:
    asked = ("plan", "qwen2.5-7b", "--gpu", "24GiB", "--prompt-tokens", "500", "--output-tokens")
    planned = subprocess.run(
        [Path(sys.executable).with_name("toolkit"), *asked, "50", "--no-prefix-caching"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    program, verb, *words = shlex.split(planned.stdout.splitlines()[-1])
    assert (program, verb) == ("vllm", "serve")
    read = subprocess.run(
        [vllm_home / "bin" / "python", "-c", PARSE],
        input=json.dumps(words),
        env=engine_environment(vllm_home, tmp_path),
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout.splitlines()[-1]) == ["Qwen/Qwen2.5-7B-Instruct", 768, False]
