"""Starts vLLM's engine with the words of `vllm serve`, for each line of stdin, and keeps what it says of its KV cache.

Runs inside the environment that install_vllm.sh makes. It is the engine that a server has, with its model and its cache, but without
the server: four servers import vLLM twelve times, 12 s of a core each; here it is imported once, and each engine gets a process
forked from there. A line of stdin is `{"words": [...], "log": PATH, "page": PATH}`: what the engine logs goes to the one file, its
`/metrics` to the other.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

# vLLM looks at it when it makes its configuration: the engine computes in the process that made it
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from prometheus_client import REGISTRY, generate_latest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import FlexibleArgumentParser, make_arg_parser
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.metrics.loggers import PrometheusStatLogger


def start(case: dict[str, Any]) -> None:
    """Start one engine and write its page; the process is good for no other."""
    log = os.open(case["log"], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    read = make_arg_parser(FlexibleArgumentParser()).parse_args(case["words"])
    read.model = read.model_tag
    arguments = AsyncEngineArgs.from_cli_args(read)
    config = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    EngineCore(config, Executor.get_class(config), log_stats=True)
    PrometheusStatLogger(config).log_engine_initialized()
    Path(case["page"]).write_bytes(generate_latest(REGISTRY))


for line in sys.stdin:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    try:
        start(json.loads(line))
    except Exception:  # noqa: BLE001 - the log says why there is no page
        traceback.print_exc()
    # nothing of Python's own end: the engine has threads, and its page is written
    os._exit(0)
