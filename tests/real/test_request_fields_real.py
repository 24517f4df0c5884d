"""What the rules of a request take for granted, beside the installed vLLM: its fields, and what its model reads."""

import json
import subprocess
from pathlib import Path
from typing import Any

from toolkit.protocol.request import asked

DATA = Path(__file__).parents[1] / "data"
KNOWN = DATA / "vllm-0.32.0-request-fields.json"
NAMES = DATA / "vllm-0.32.0-request-names.json"
READ = """
import importlib, json, pkgutil
from pydantic import BaseModel
import vllm.entrypoints as root

def holds_text(schema):
    if schema is True or "$ref" in schema or "const" in schema or "enum" in schema:
        return schema is True
    for each in ("anyOf", "oneOf", "allOf"):
        if each in schema:
            return any(map(holds_text, schema[each]))
    kind = schema.get("type", "string")
    if kind == "array":
        return any(map(holds_text, [schema.get("items", True), *schema.get("prefixItems", [])]))
    if kind == "object":
        return "properties" not in schema and holds_text(schema.get("additionalProperties", True))
    return kind == "string"

def walk(schema):
    if isinstance(schema, dict):
        named = schema.get("properties")
        if isinstance(named, dict):
            names.update(name for name, held in named.items() if holds_text(held))
        for held in schema.values():
            walk(held)
    elif isinstance(schema, list):
        for held in schema:
            walk(held)

names, classes = set(), set()
for info in pkgutil.walk_packages(root.__path__, "vllm.entrypoints."):
    if info.name.rpartition(".")[2] in ("protocol", "api_router"):
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            # Cohere's own chat, whose library is not there
            assert info.name.startswith("vllm.entrypoints.cohere"), info.name
            continue
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, BaseModel) and "Request" in one.__name__:
                classes.add(one.__name__)
                walk(one.model_json_schema())
print(json.dumps([sorted(classes), sorted(names)]))
"""


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


def test_every_name_that_a_request_may_hold_a_text_by_is_known_as_an_address_or_not(
    vllm_home: Path,
) -> None:
    # a new name in vLLM's schemas has to be judged: would it fetch what stands there? `addresses` is what the filter must refuse
    done = subprocess.run(
        [vllm_home / "bin" / "python", "-c", READ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    classes, names = json.loads(done.stdout.splitlines()[-1])
    known = json.loads(NAMES.read_text())
    judged = [*known["addresses"], *known["by_another_name"], *known["others"]]
    assert len(set(judged)) == len(judged)
    assert sorted(judged) == names
    asked_here = {"ChatCompletionRequest", "ResponsesRequest", "CohereEmbedRequest"}
    assert asked_here | {"AnthropicMessagesRequest", "StructuredDecisionRequest"} <= set(classes)
