"""A plain FastHttpUser that reads whole bodies and nothing more: what bench_blast.py holds the blast against."""

from itertools import cycle

import orjson
from locust import FastHttpUser, constant, task

TEXTS = (
    "Write a 50-word story about a robot exploring a garden.",
    "What is the capital of Singapore?",
)
BODIES = [
    orjson.dumps(
        {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 256}
    )
    for text in TEXTS
]
HEADERS = {"Content-Type": "application/json"}


class Bare(FastHttpUser):
    """One user."""

    wait_time = constant(0)

    def on_start(self) -> None:
        self._bodies = cycle(BODIES)

    @task
    def ask(self) -> None:
        self.client.post("/v1/chat/completions", data=next(self._bodies), headers=HEADERS)
