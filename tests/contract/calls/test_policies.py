"""Whose answers are stored and shared: by a team's policy, between teams, and those of a fallback."""

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contract.harness.clients import BODY, Client, Reply, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import proxy
from contract.harness.servers import Asked, chat, server

SETTINGS = """
[[upstream]]
name = "spare"
url = "{spare}"
fallback = true
model = "small"
key_env = "SPARE"
probes = false
[cache]
file = "none"
[[team]]
name = "all"
key_env = "ALL"
[[team]]
name = "other"
key_env = "OTHER"
[[team]]
name = "declared"
key_env = "DECLARED"
policy = "declared"
[[team]]
name = "off"
key_env = "OFF"
policy = "off"
"""
KEYS = {"ALL": "all-key another-all-key", "OTHER": "other-key", "DECLARED": "declared-key"}
KEYS |= {"OFF": "off-key", "SPARE": "spare-key"}
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    b'data: {"id":"c","model":"tiny","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","model":"tiny","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)
SAME: dict[str, tuple[dict[str, Any], bool]] = {
    # what says that one answer is as good as another
    "temperature 0": ({"temperature": 0}, True),
    "a seed": ({"seed": 7}, True),
    "nothing": ({}, False),
    "a temperature": ({"temperature": 0.7}, False),
}


def test_a_policy_says_what_is_stored_and_only_one_team_s_clients_share_a_call(
    tmp_path: Path,
) -> None:
    go_on = threading.Event()
    go_on.set()

    def slowly(asked: Asked) -> None:
        go_on.wait(60)
        asked.keep = not json.loads(asked.body).get("stream")
        asked.send(chat() if asked.keep else STREAM)

    with (
        server({"*": slowly}) as engine,
        server({"*": chat("spare", model="small")}) as spare,
        proxy(engine.url, SETTINGS.format(spare=spare.url), cwd=tmp_path, env=KEYS) as door,
        ExitStack() as stack,
    ):

        def say(text: str, team: str, *headers: str, **more: Any) -> Reply:
            said = BODY | {"messages": [{"role": "user", "content": text}]} | more
            return ask(door.url, said, key=f"{team}-key", headers=headers)

        stored = {}
        for name, (more, _) in SAME.items():
            for team in ("all", "declared", "off"):
                first, again = (say(name, team, **more) for _ in range(2))
                assert not first.is_hit
                stored[name, team] = again.is_hit
        wanted = {(name, "all"): True for name in SAME} | {(name, "off"): False for name in SAME}
        wanted |= {(name, "declared"): declared for name, (_, declared) in SAME.items()}
        assert stored == wanted

        # a form of answer that nobody knows is passed on, and neither stored nor given
        known: dict[str, Any] = {"include_usage": True}
        for options, is_hit in ((known, True), (known | {"tomorrow": 1}, False)):
            more = {"stream": True, "stream_options": options}
            assert [say("odd", "all", **more).is_hit for _ in range(2)] == [False, is_hit]
            assert json.loads(engine.asked[-1].body)["stream_options"] == options

        # two at once: one call where both may have either's answer
        for teams, calls in (
            (("all", "all"), 1),
            (("all", "another-all"), 1),
            (("all", "other"), 2),
            (("declared", "declared"), 2),
            (("off", "off"), 2),
        ):
            go_on.clear()
            before, replies = len(engine.asked), []
            text = [{"role": "user", "content": "-".join(teams)}]
            for team in teams:
                client = stack.enter_context(Client(door.url))
                client.send(request(BODY | {"messages": text}, key=f"{team}-key"))
                replies.append(client)
            until(lambda: get(door.admin, "/state").json["busy"] == 2)
            until(lambda before=before, calls=calls: len(engine.asked) >= before + calls)
            go_on.set()
            assert [client.reply().status for client in replies] == [200, 200]
            assert len(engine.asked) == before + calls, teams
            until(lambda: get(door.admin, "/state").json["busy"] == 0)

        # a body that is not said to be JSON is asked of nobody
        before = len(engine.asked)
        refused = say("as a text", "all", "content-type: text/plain")
        assert (refused.status, len(engine.asked)) == (415, before)

        # whom nobody asked for: its answer is by another model, under its own name and key, and another time perhaps the engine's
        assert ask(door.admin, {"upstream": "u0"}, path="/drain").status == 200
        told = [say("who is there", "all") for _ in range(2)]
        assert [(each.text, each.is_hit) for each in told] == [("spare", False)] * 2
        assert [json.loads(each.body)["model"] for each in spare.asked] == ["small"] * 2
        assert {each.headers["authorization"] for each in spare.asked} == {"Bearer spare-key"}
        assert ask(door.admin, {"upstream": "u0"}, path="/undrain").status == 200
        assert say("who is there", "all").text == "Hello there"
