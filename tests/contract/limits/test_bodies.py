"""What one legal body may cost the proxy, and with it everybody else: CPU beside a plain body of its size, and memory while its answer
is awaited. Never wall-clock time.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Answer, Asked, Server, answer, chat, server

MIB = 2**20
SIZE = 4 * MIB
COMPLETIONS = "/v1/completions"
TIMES = 4
"""Dearer than a plain body of its size no body may be, in CPU and, while its answer is awaited, in memory."""
CPU_STEP_S = 0.06
"""The kernel counts CPU in steps of 10 ms, and the proxy's own ticks go on meanwhile."""


def full(head: str, part: str, joint: str, end: str, size: int = SIZE) -> bytes:
    """As many parts as go into a body of that size."""
    count = (size - len(head) - len(end)) // (len(part) + len(joint))
    return f"{head}{joint.join([part] * count)}{end}".encode()


CONTENT = '{"model":"tiny","messages":[{"role":"user","content":'
TALK = CONTENT + '"x"}]'
PLAIN = CONTENT + '"', "x", "", '"}]}'
TOOL = {
    "type": "function",
    "function": {
        "name": "find_orders",
        "description": "Finds the orders of a customer by the number on the customer's card, the newest first; an order that was cancelled is left out. Use it before anything is said of a delivery.",
        "parameters": {
            "type": "object",
            "properties": {
                "customer": {
                    "type": "string",
                    "description": "The number on the customer's card, twelve digits without blanks",
                },
                "first_day": {
                    "type": "string",
                    "description": "The first day on which it may have been, as YYYY-MM-DD",
                },
            },
            "required": ["customer"],
        },
    },
}
SERVED: dict[str, tuple[str, tuple[str, str, str, str]]] = {
    # what real clients send, though seldom as much of it: path, and the parts of a body
    "token ids": (COMPLETIONS, ('{"model":"tiny","prompt":[', "12345", ",", "]}")),
    "rows of ids": (COMPLETIONS, ('{"model":"tiny","prompt":[', str([12345] * 999), ", ", "]}")),
    "tools": ("", (TALK + ',"tools":[', json.dumps(TOOL), ",", "]}")),
    "long talk": (
        "",
        ('{"model":"tiny","messages":[', json.dumps({"role": "user", "content": "a" * 200}), ",", "]}"),
    ),
    "many inputs": ("/v1/embeddings", ('{"model":"tiny","input":[', '"to be put in its proper place, or near it"', ", ", "]}")),
    "commas": ("", (CONTENT + '"', ",", "", '"}]}')),
    "code": ("", (CONTENT + '"', r"f(a[0], {b: \"c\"});\n", "", '"}]}')),
    "escapes": ("", (CONTENT + '"', r"\n\u003a\\", "", '"}]}')),
}  # fmt: skip
HOSTILE: dict[str, tuple[str, str, str, str]] = {
    "lists": (TALK + ',"z":[', "[]", ",", "]}"),
    "nested lists": (TALK + ',"z":[', "[[[[[[0,[]]]]]]]", ",", "]}"),
    "deep": (TALK + ',"z":', "[", "", ""),
    "objects": (TALK + ',"z":[', '{"":{}}', ",", "]}"),
    "equal keys": (TALK + ",", '"z":0', ",", "}"),
    "messages": ('{"model":"tiny","messages":[', '{"role":"user"}', ",", "]}"),
    "parts": (CONTENT + "[", '{"type":"text","text":""}', ",", "]}]}"),
    "floats": (TALK + ',"z":[', "1.0", ",", "]}"),
    "texts": (TALK + ',"z":[', '""', ",", "]}"),
    "huge numbers": (TALK + ',"z":[', "1e300", ",", "]}"),
    "no JSON": (TALK + ',"z":[', "NaN", ",", "]}"),
    "half a pair": (CONTENT + '"' + r"\ud800", r"\n", "", '"}]}'),
}


@pytest.fixture
def engine() -> Iterator[Server]:
    with server({"*": chat()}) as running:
        yield running


def cpu_of(door: Proxy, bodies: list[tuple[str, bytes]]) -> tuple[float, list[int]]:
    """CPU seconds for these, and how each was answered."""
    before = door.program.cpu_s()
    statuses = [ask(door.url, body, **({"path": path} if path else {})).status for path, body in bodies]  # fmt: skip
    return door.program.cpu_s() - before, statuses


def test_no_body_costs_four_times_a_plain_one_of_its_size(tmp_path: Path, engine: Server) -> None:
    with proxy(engine.url, "[cache]\nfile = 'none'\n", cwd=tmp_path) as door:
        plain = full(*PLAIN)
        # the first one warms up; three, that a single slow one sets no low bar for the others
        cpu_of(door, [("", plain)])
        spent, statuses = cpu_of(door, [("", plain[:-4] + f'{n}"}}]}}'.encode()) for n in range(3)])
        assert statuses == [200] * 3
        most = TIMES * spent / 3 + CPU_STEP_S
        dear = {}
        for name, (path, parts) in SERVED.items():
            body = full(*parts)
            spent, (status,) = cpu_of(door, [(path, body)])
            assert status == 200, name
            # what the engine got is what the client wrote
            assert engine.asked[-1].body == body, name
            if spent > most:
                dear[name] = spent
        for name, parts in HOSTILE.items():
            spent, (status,) = cpu_of(door, [("", full(*parts))])
            assert status == 400, name
            if spent > most:
                dear[name] = spent
        assert not dear, f"over {most:.2f} s"


def test_below_the_limit_of_values_no_body_costs_much_either(
    tmp_path: Path, engine: Server
) -> None:
    """Those that are refused for how much they hold, cut to what is taken."""
    with proxy(engine.url, "[cache]\nfile = 'none'\n", cwd=tmp_path) as door:
        plain = full(*PLAIN)
        cpu_of(door, [("", plain)])
        spent, _ = cpu_of(door, [("", plain[:-4] + f'{n}"}}]}}'.encode()) for n in range(3)])
        most = TIMES * spent / 3 + CPU_STEP_S
        dear = {}
        for name in ("lists", "objects", "messages", "parts", "floats", "texts"):
            head, part, joint, end = HOSTILE[name]
            # a text beside them fills it up to the size
            few = full(head, part, joint, "", 40_000 * len(part + joint)).decode()
            few += end[:-1] + ',"y":"'
            body = f'{few}{"x" * (SIZE - len(few) - 2)}"}}'.encode()
            spent, (status,) = cpu_of(door, [("", body)])
            assert status == 200, name
            if spent > most:
                dear[name] = spent
        assert not dear, f"over {most:.2f} s"


def test_a_body_whose_answer_is_awaited_takes_no_four_times_its_bytes(tmp_path: Path) -> None:
    """Four of 6 MiB at a time took 967 MiB."""
    waiting: list[Asked] = []
    may_answer = threading.Event()

    def late(request: Asked) -> None:
        waiting.append(request)
        may_answer.wait(60)
        request.send(chat())

    with (
        server({"*": late}) as engine,
        proxy(engine.url, "[cache]\nfile = 'none'\n", cwd=tmp_path) as door,
        ExitStack() as clients,
    ):
        before = door.program.rss_bytes()
        size = 6 * MIB
        names = ["token ids", "many inputs", "long talk", "code"]
        bodies = [(SERVED[name][0], full(*SERVED[name][1], size)) for name in names]
        bodies.append(("", full(*SERVED["tools"][1])))
        asking = []
        for path, body in bodies:
            client = clients.enter_context(Client(door.url))
            client.send(request(body, **({"path": path} if path else {})))
            asking.append(client)
        until(lambda: len(waiting) == len(bodies))
        most = TIMES * sum(len(body) for _, body in bodies)
        until(lambda: door.program.rss_bytes() - before < most)
        may_answer.set()
        assert [each.reply().status for each in asking] == [200] * len(bodies)


def test_bodies_under_way_count_against_the_limit_of_memory(tmp_path: Path) -> None:
    waiting: list[Asked] = []
    may_answer = threading.Event()

    def late(request: Asked) -> None:
        if len(request.body) > MIB:
            waiting.append(request)
            may_answer.wait(60)
        request.send(chat())

    pages: dict[str, Answer] = {"*": late, "/v1/models": answer({"data": []})}
    settings = "[cache]\nfile = 'none'\n[front]\nheld = '16MiB'\nbody_size = '8MiB'\n"
    with server(pages) as engine, proxy(engine.url, settings, cwd=tmp_path) as door:
        bodies = [full(*PLAIN, 6 * MIB)[:-4] + f'{n}"}}]}}'.encode() for n in range(3)]
        assert ask(door.url).status == 200
        with Client(door.url) as one, Client(door.url) as two:
            one.send(request(bodies[0]))
            two.send(request(bodies[1]))
            until(lambda: len(waiting) == 2)
            refused = ask(door.url, bodies[2])
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            # a hit, a page and a small question go on
            assert ask(door.url).is_hit
            assert get(door.url, "/v1/models").status == 200
            small: dict[str, Any] = {
                "model": "tiny",
                "messages": [{"role": "user", "content": "?"}],
            }
            assert ask(door.url, small).status == 200
            may_answer.set()
            assert [one.reply().status, two.reply().status] == [200, 200]
        assert ask(door.url, bodies[2]).status == 200
