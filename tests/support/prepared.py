"""What scout, bench and capture leave in a database before a blast; every figure that is shown of it can be worked out by hand.

`scouted`: alice, bob and carol serve one model with 0.9 of their memory, but bob with 0.46; dora had told the same settings and is down.
`benched`: alice answers 16 requests in 4.58 s (shots.py) and is judged to cut them short; bob takes a second longer: 16 in 5.58 s.
`captured`: 245 requests, of which 239 have a prompt, two different ones: the first came 120 times, the other 119 times.
"""

import json
from dataclasses import replace
from pathlib import Path

from support import shots
from support.sightings import seen

from toolkit.records import Finding, Run, Sighting, Verdict
from toolkit.store import Store

AT = 1_750_000_000.0
BENCH, CAPTURE = "bbbbbbbbbbbb", "cccccccccccc"
LOW = "gpu_memory_utilization 0.46: the rest of the GPU's memory holds no KV cache"
OPEN = "`/metrics` answers anyone: configuration and load are public"
CUT = "the engine was asked for 1 token per request where we asked for 256"


def host(name: str, number: int, at: float = AT, **more: object) -> Sighting:
    """A vLLM as the contest's: 4,096 blocks of 16 tokens."""
    usual = {
        "engine": "vllm",
        "version": "0.11.0",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "models": ("Qwen/Qwen2.5-7B-Instruct",),
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.9,
        "num_gpu_blocks": 4096,
        "kv_cache_tokens": 65_536,
        "cache_dtype": "auto",
        "prefix_caching": True,
        "config_hash": f"hash-{name}",
        "running": 3.0,
        "waiting": 1.0,
        "kv_cache_usage": 0.25,
        "findings": (Finding(code="metrics_open", text=OPEN),),
    }
    return seen(at, name, f"http://10.0.0.{number}:8000", **usual | more)


def scouted(path: Path) -> None:
    low = (Finding(code="low_gpu_memory_utilization", text=LOW),)
    bob = host("bob", 2)
    bob = replace(
        bob, gpu_memory_utilization=0.46, num_gpu_blocks=1024, findings=bob.findings + low
    )
    down = {"status": "down", "error": "connection refused"}
    with Store.open(path) as store:
        store.add_sightings(
            [
                *(host("alice", 1), bob, host("carol", 3), host("dora", 4, AT - 60)),
                seen(AT, "dora", "http://10.0.0.4:8000", **down),
            ]
        )


def benched(path: Path, *, is_over: bool = True) -> None:
    of_alice = [replace(each, run=BENCH) for each in shots.uniques(16)]
    of_bob = [
        replace(each, run=BENCH, name="bob", url="http://10.0.0.2:8000")
        for each in shots.uniques(16, first_ms=1100.0)
    ]
    with Store.open(path) as store:
        settings = json.dumps({"profile": "bench", "requests": 16})
        store.add_run(Run(id=BENCH, verb="bench", started_at=AT, settings=settings))
        store.add_shots(of_alice + of_bob)
    if is_over:
        judged(path)


def judged(path: Path) -> None:
    """The end of the bench."""
    cut = Verdict(code="truncated_output", confidence="high", evidence=CUT)
    clean = Verdict(code="clean", confidence="high", evidence="nothing speaks against it")
    with Store.open(path) as store:
        store.add_verdicts(
            BENCH, {("alice", "http://h:1"): (cut,), ("bob", "http://10.0.0.2:8000"): (clean,)}
        )
        store.end_run(BENCH, ended_at=AT + 30, client_ok=True)


def captured(path: Path) -> None:
    with Store.open(path) as store:
        store.add_run(Run(id=CAPTURE, verb="capture", started_at=AT))
        store.set_capture(
            CAPTURE,
            {
                "requests": 245,
                "unique": 2,
                "prompts": 239,
                "repeat_share": 237 / 239,
                "stream_share": 0.5,
                "top": [
                    {"prompt_key": "b4", "requests": 120, "share": 120 / 239},
                    {"prompt_key": "c5", "requests": 119, "share": 119 / 239},
                ],
                "from_ts": AT,
                "to_ts": AT + 22,
                "gaps": 1,
            },
        )
