"""What `deploy` writes for vLLM is read by vLLM itself: every word of every command, by the real parser."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from support.deployed import STACK, expanded, site, text_of

from toolkit.deploy import compose, kubernetes

BIG = """
[[engine]]
name = "big"
model = "org/big"
port = 8001

[engine.flags]
tensor-parallel-size = 8
pipeline-parallel-size = 2
max-model-len = "32k"
speculative-config = { method = "ngram", num_speculative_tokens = 3 }
cudagraph-capture-sizes = [1, 2, 4]
enable-prefix-caching = false
disable-log-requests = true
kv-cache-dtype = "fp8"
"""

READ = """
import json, sys
from vllm.entrypoints.cli.serve import FlexibleArgumentParser, make_arg_parser, validate_parsed_serve_args
for words in json.load(sys.stdin):
    parser = make_arg_parser(FlexibleArgumentParser())
    parsed = parser.parse_args(words)
    validate_parsed_serve_args(parsed)
    read = vars(parsed)
    names = ("model_tag host port nnodes node_rank master_addr master_port headless shutdown_timeout"
             " tensor_parallel_size max_num_seqs served_model_name").split()
    print("READ", json.dumps({name: read[name] for name in names}))
"""


def commands() -> list[list[str]]:
    """Of each engine, behind `vllm serve`."""
    (found,) = yaml.safe_load_all(text_of(compose.kit(site()), "compose.yaml"))
    # Compose itself takes two dollars for one
    engines = [
        [word.replace("$$", "$") for word in found["services"][name]["command"]]
        for name in ("qwen", "coder-7b")
    ]
    made = kubernetes.kit(site(BIG), gpus_per_node=8)
    documents = yaml.safe_load_all(text_of(made, "engine-contest-big.yaml"))
    (group,) = (each for each in documents if each["kind"] == "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    variables = {"LWS_LEADER_ADDRESS": "big-0.big", "NODE_RANK": "1"}
    for role in ("leaderTemplate", "workerTemplate"):
        (container,) = template[role]["spec"]["containers"]
        engines.append([expanded(word, variables) for word in container["args"]])
    return engines


@pytest.fixture(scope="module")
def read(vllm_home: Path) -> list[dict[str, object]]:
    """What the installed vLLM makes of them; it ends at the first word that it does not know."""
    result = subprocess.run(
        [vllm_home / "bin" / "python", "-c", READ],
        input=json.dumps(commands()),
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [line for line in result.stdout.splitlines() if line.startswith("READ ")]
    return [json.loads(line.removeprefix("READ ")) for line in lines]


def test_every_engines_command_is_read_as_it_is_meant(read: list[dict[str, object]]) -> None:
    qwen, coder, *_ = read
    assert STACK.count("[[engine]]") == 2
    assert (qwen["model_tag"], qwen["port"]) == ("Qwen/Qwen2.5-7B-Instruct", 8001)
    assert (qwen["tensor_parallel_size"], qwen["max_num_seqs"]) == (2, 64)
    assert (qwen["host"], qwen["shutdown_timeout"]) == ("0.0.0.0", 45)
    assert coder["served_model_name"] == ['a$b "} or vector(9)\\']


def test_each_node_of_several_is_read_as_it_is_meant(read: list[dict[str, object]]) -> None:
    *_, leader, worker = read
    for rank, node in enumerate((leader, worker)):
        assert (node["nnodes"], node["node_rank"]) == (2, rank)
        assert (node["master_addr"], node["master_port"]) == ("big-0.big", 29501)
    assert (leader["headless"], worker["headless"]) == (False, True)
