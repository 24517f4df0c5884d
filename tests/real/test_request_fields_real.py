"""What the rules of a request take for granted, beside the installed vLLM: its fields, and what its model reads."""

import json
from pathlib import Path
from typing import Any

from toolkit.request_body import asked

KNOWN = Path(__file__).parents[1] / "data" / "vllm-0.32.0-request-fields.json"


def test_the_list_of_request_fields_is_the_real_servers(roomy_server: Any) -> None:
    with roomy_server.client() as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    known = json.loads(KNOWN.read_text())["schemas"]
    assert {name: sorted(schemas[name]["properties"]) for name in known} == known


def test_texts_in_parts_are_read_as_the_text_that_they_are_folded_to(roomy_server: Any) -> None:
    parts = [{"type": "text", "text": "one two"}, {"type": "text", "text": "three"}]
    chats = [
        {"model": roomy_server.model, "messages": [{"role": "user", "content": content}]}
        for content in (parts, "one two\nthree", "one twothree")
    ]
    with roomy_server.client() as client:
        read = [client.post("/tokenize", json=chat).json()["tokens"] for chat in chats]
    bodies = [json.dumps(chat).encode() for chat in chats]
    keys = [asked(body, path="/v1/chat/completions").prompt_key for body in bodies]
    assert read[0] == read[1] != read[2]
    assert keys[0] == keys[1] != keys[2]
