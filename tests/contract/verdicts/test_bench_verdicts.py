"""`toolkit bench --json` over the contest's cast and over servers that deceive: who is accused, of what, and who is called clean."""

import itertools
import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from contract.harness.fleets import fleet
from contract.harness.programs import rows, run, toolkit
from contract.harness.servers import Answer, Asked, answer, server

MODEL = "Qwen3.5-35B-A3B"
QUICK = {"time_scale": 0.2}
CAST: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("fp8", QUICK | {"seed": 1}),
    "awq": ("awq", QUICK | {"seed": 2}),
    "gptq-int4": ("gptq-int4", QUICK | {"seed": 3}),
    "cached": ("cached", QUICK | {"seed": 4}),
    "first-token": ("first-token", QUICK | {"seed": 5}),
    "flaky": ("flaky", QUICK | {"seed": 6}),
    "loaded": ("gptq-int4", QUICK | {"load": 4, "seed": 7}),
    # 4 s, once for each of four batch sizes: five times what all prompts of a wave take at a pace of 2.1 ms a token, which is
    # three times as long as it is built in; and of six waves two at least find their size warm
    "cold": ("cold", {"time_scale": 0.05, "cold_s": 80, "seed": 8}),
    "other": (
        "gptq-int4",
        QUICK | {"model": "Qwen3.5-4B", "root": "Qwen/Qwen3.5-4B", "seed": 9},
    ),
    "uncounted": ("gptq-int4", QUICK | {"stats": False, "seed": 10}),
}
EXPECTED = {
    "fp8": ["clean"],
    "awq": ["clean"],
    "gptq-int4": ["clean"],
    "cached": ["response_cache"],
    "first-token": ["truncated_output"],
    "flaky": ["fast_failures"],
    "loaded": ["foreign_traffic"],
    "cold": ["cold"],
    "other": ["model_mismatch"],
    "uncounted": ["not_judged"],
    "words": ["not_judged"],
}


def speaker(
    say: Callable[[int], list[str]],
    *,
    wait_s: Callable[[int], float] = lambda _: 0.0,
    claim: int | None = None,
) -> dict[str, Answer]:
    """Pages of a server without an engine, which says to a limit of tokens what `say` returns and claims as many, or `claim`.

    It has no `/metrics`; `wait_s` is the time to the first token by the request's number.
    """
    numbers = itertools.count()

    def complete(asked: Asked) -> None:
        number = next(numbers)
        time.sleep(wait_s(number))
        words = say(json.loads(asked.body)["max_tokens"])
        about = {"id": f"c-{number}", "object": "chat.completion.chunk", "model": MODEL}

        def send(**more: Any) -> None:
            asked.send(b"data: " + json.dumps(about | more).encode() + b"\n\n")

        asked.keep = False
        asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for word in words:
            send(choices=[{"index": 0, "delta": {"content": word}, "finish_reason": None}])
            time.sleep(0.001)
        send(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        said = len(words) if claim is None else claim
        send(choices=[], usage={"prompt_tokens": 40, "completion_tokens": said})
        asked.send(b"data: [DONE]\n\n")

    models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
    return {
        "/health": answer(),
        "/v1/models": answer(models),
        "/v1/chat/completions": complete,
    }


def random_words(limit: int) -> list[str]:
    return ["".join(random.choices("abcdefghijklmnop", k=4)) + " " for _ in range(limit)]


def bench(folder: Path, hosts: str, *words: object) -> dict[str, dict[str, Any]]:
    (folder / "hosts.txt").write_text(hosts)
    done = run("bench", "hosts.txt", "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in rows(done.stdout)}


def codes(seen: dict[str, Any]) -> list[str]:
    return [verdict["code"] for verdict in seen["verdicts"]]


def evidence(seen: dict[str, Any], code: str) -> str:
    return next(str(each["evidence"]) for each in seen["verdicts"] if each["code"] == code)


def test_the_cast_gets_its_verdicts_and_nobody_is_called_clean_who_was_not_judged(
    tmp_path: Path,
) -> None:
    with fleet(CAST) as running, server(speaker(random_words)) as words:
        hosts = f"{running.hosts}\nwords {words.url}\n"
        # short answers: ten hosts of one process that wrote 256 tokens each kept a busy machine from answering at all
        found = bench(tmp_path, hosts, "--requests", 48, "--max-tokens", 64)
    assert {name: codes(seen) for name, seen in found.items()} == EXPECTED
    assert evidence(found["words"], "not_judged").startswith(
        "hidden_backend, foreign_traffic, and saturated: `/metrics` answered 404"
    )
    assert "no page of a known engine" in evidence(found["uncounted"], "not_judged")
    assert "`Qwen3.5-4B`" in evidence(found["other"], "model_mismatch")
    sure = {each["confidence"] for name in ("fp8", "awq") for each in found[name]["verdicts"]}
    assert sure == {"high"}


@contextmanager
def slow_gateway(url: str, delay_s: float) -> Iterator[str]:
    """Passes bytes on as they come, a client's that much later; its URL."""
    target = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def pump(source: socket.socket, sink: socket.socket, pause_s: float) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(pause_s)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                engine = socket.create_connection((target.hostname or "", target.port or 0))
                for one, other, pause_s in ((client, engine, delay_s), (engine, client, 0.0)):
                    Thread(target=pump, args=(one, other, pause_s), daemon=True).start()

    accepting = Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()


def test_two_addresses_of_one_engine_accuse_each_other_of_nothing_and_who_deceives_is_told(
    tmp_path: Path,
) -> None:
    """A claim beyond one token, and a first wave of which a part waits; an engine and a slow gateway before it, as JSON and as a table."""

    def half_of_the_first(number: int) -> float:
        return 2.0 if number < 8 and number % 2 else 0.02

    names = ("engine", "rival", "shown")
    with (
        fleet(
            {name: ("gptq-int4", QUICK | {"seed": n}) for n, name in enumerate(names)}
        ) as running,
        slow_gateway(running.urls["engine"], 0.3) as gateway,
        slow_gateway(running.urls["shown"], 0.3) as shown,
        server(speaker(lambda _: ["Once"], claim=32)) as liar,
        server(speaker(random_words, wait_s=half_of_the_first)) as half,
    ):
        hosts = "".join(f"{name} {running.urls[name]}\n" for name in ("engine", "rival"))
        hosts += f"gateway {gateway}\nliar {liar.url}\nhalf {half.url}\n"
        (tmp_path / "shown.txt").write_text(f"engine {running.urls['shown']}\ngateway {shown}\n")
        load = ("--requests", 32, "--max-tokens", 64)
        with toolkit("bench", "shown.txt", *load, "--no-store", cwd=tmp_path) as other:
            found = bench(tmp_path, hosts, *load)
            assert other.wait() == 0, other.text
    assert {name: codes(seen) for name, seen in found.items()} == {
        "engine": ["clean", "same_engine"],
        "gateway": ["clean", "same_engine"],
        "rival": ["clean"],
        "liar": ["truncated_output", "inflated_usage", "not_judged"],
        "half": ["cold", "not_judged"],
    }, json.dumps({name: seen["verdicts"] for name, seen in found.items()}, indent=1)
    assert evidence(found["engine"], "same_engine").startswith("same engine as gateway:")
    assert "it adds" not in evidence(found["engine"], "same_engine")
    said = evidence(found["gateway"], "same_engine")
    assert said.startswith("same engine as engine:")
    added = re.search(r"it adds ([\d,]+) ms to the first token of engine \(median", said)
    assert added, said
    assert 150 < float(added[1].replace(",", "")) < 3000
    assert "claim" in evidence(found["liar"], "inflated_usage")
    assert evidence(found["half"], "cold").startswith("4 of 8 requests of the first wave")
    table = "\n".join(other.out)
    assert "same engine  gateway: same engine as engine: " in table
    assert "foreign traffic" not in table
