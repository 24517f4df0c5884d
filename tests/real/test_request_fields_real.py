"""What the rules of a request take for granted, beside the installed vLLM: its fields, and what its model reads.

On a server of its own: the pages asked for here would stand in another test's `/metrics`.
"""

import json
from pathlib import Path
from typing import Any

from toolkit.request_body import asked

KNOWN = Path(__file__).parents[1] / "data" / "vllm-0.32.0-request-fields.json"


def test_the_list_of_request_fields_is_the_real_servers(fresh_server: Any) -> None:
    with fresh_server.client() as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    known = json.loads(KNOWN.read_text())["schemas"]
    assert {name: sorted(schemas[name]["properties"]) for name in known} == known


def test_texts_in_parts_are_read_as_the_text_that_they_are_folded_to(fresh_server: Any) -> None:
    parts = [{"type": "text", "text": "one two"}, {"type": "text", "text": "three"}]
    chats = [
        {"model": fresh_server.model, "messages": [{"role": "user", "content": content}]}
        for content in (parts, "one two\nthree", "one twothree")
    ]
    with fresh_server.client() as client:
        read = [client.post("/tokenize", json=chat).json()["tokens"] for chat in chats]
    bodies = [json.dumps(chat).encode() for chat in chats]
    keys = [asked(body, path="/v1/chat/completions").prompt_key for body in bodies]
    assert read[0] == read[1] != read[2]
    assert keys[0] == keys[1] != keys[2]
