"""Which requests are equal by `toolkit capture --json`: a table worked out by hand from README and what engines read.

`exact_key` goes by the bytes, `request_key` by what a response cache may answer alike, `prompt_key` by what the model reads. Every
row is a mutation of one body; all go through one capture.
"""

from pathlib import Path

from contract.harness.packets import Conversation, ok, pcap, post
from contract.harness.programs import rows, run

TOOL = '{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{},"b":{}}}}}'
SCHEMA = '{"type":"json_schema","json_schema":{"name":"s","schema":{"properties":{"x":{},"y":{}}}}}'
BASE = (
    '{"model":"m","messages":[{"role":"user","content":"café: 1"}],"temperature":0,"seed":7,'
    f'"tools":[{TOOL}],"response_format":{SCHEMA},"logit_bias":{{"5":1,"6":-2}},"stop":["a","b"]}}'
)


def changed(old: str, new: str) -> str:
    assert BASE.count(old) == 1, old
    return BASE.replace(old, new)


def more(field: str) -> str:
    """With a field more at the end."""
    return BASE[:-1] + "," + field + "}"


SAME_REQUEST = {
    "order of fields": '{"seed":7,' + changed('"seed":7,', "")[1:],
    "whitespace": BASE.replace(",", " ,\n\t").replace(":{", " : {"),
    "an escaped letter": changed("café", "caf\\u00e9"),
    "an escaped key": changed('"seed"', '"s\\u0065ed"'),
    "an escaped solidus is none": changed('"stop":["a","b"]', '"stop":["\\u0061","b"]'),
    "0.0": changed('"temperature":0', '"temperature":0.0'),
    "0e0": changed('"temperature":0', '"temperature":0e0'),
    "a seed with a fraction of nothing": changed('"seed":7', '"seed":7.0'),
    "order of a message's fields": changed(
        '{"role":"user","content":"café: 1"}', '{"content":"café: 1","role":"user"}'
    ),
    "order of biases": changed('{"5":1,"6":-2}', '{"6":-2,"5":1}'),
    "stream": more('"stream":true'),
    "stream, and usage with it": more('"stream":true,"stream_options":{"include_usage":true}'),
    "no stream, as is the default": more('"stream":false'),
}
"""As `BASE` for a response cache, and for the model."""

SAME_PROMPT = {
    "a default that is written out": more('"top_p":1'),
    "null": more('"top_p":null'),
    "another seed": changed('"seed":7', '"seed":8'),
    "no seed": changed('"seed":7,', ""),
    "temperature": changed('"temperature":0', '"temperature":0.1'),
    "max_tokens": more('"max_tokens":5'),
    "order of stops": changed('["a","b"]', '["b","a"]'),
    "a stop that is no list": changed('["a","b"]', '"a"'),
    "another bias": changed('"6":-2', '"6":-3'),
    "order in an answer's schema": changed('{"x":{},"y":{}}', '{"y":{},"x":{}}'),
    "an engine's own field": more('"min_p":0.05'),
    "a field of a later version": more('"of_a_later_version":{"a":1}'),
    "a user": more('"user":"u"'),
    "a number as text": changed('"seed":7', '"seed":"7"'),
    "true for 1": changed('"seed":7', '"seed":true'),
    "several answers": more('"n":2'),
    "log probabilities": more('"logprobs":true'),
}
"""Another request, which reads the same."""

OTHER = {
    "text": changed("café: 1", "café: 2"),
    "a blank at its end": changed("café: 1", "café: 1 "),
    "case": changed("café: 1", "Café: 1"),
    "another normal form of Unicode": changed("é", "e\u0301"),
    "role": changed('"role":"user"', '"role":"system"'),
    "a message more": changed(
        '"content":"café: 1"}', '"content":"café: 1"},{"role":"user","content":""}'
    ),
    "order in a tool's schema": changed('{"a":{},"b":{}}', '{"b":{},"a":{}}'),
    "a tool's description": changed('"name":"f"', '"name":"f","description":"d"'),
    "no tools": changed(f'"tools":[{TOOL}],', ""),
    "a template's setting": more('"chat_template_kwargs":{"enable_thinking":false}'),
    "a name of the speaker": changed('"role":"user"', '"role":"user","name":"n"'),
}
"""Another request, which reads otherwise."""

NO_KEY = {
    "duplicate keys": more('"seed":8'),
    "duplicate keys within": changed('"role":"user"', '"role":"user","role":"user"'),
    "NaN": changed('"temperature":0', '"temperature":NaN'),
    "an integer beyond 64 bits": changed('"seed":7', '"seed":99999999999999999999'),
    "half of a surrogate pair": changed("café: 1", "caf\\ud800"),
    "too deep": more(f'"x":{"[" * 70}{"]" * 70}'),
}
"""What two readers may take for two requests is like none but its own copies."""


def test_requests_are_equal_where_they_ask_the_same_and_only_there(tmp_path: Path) -> None:
    told = {"base": BASE, "again": BASE}
    for table in (SAME_REQUEST, SAME_PROMPT, OTHER, NO_KEY):
        assert not told.keys() & table.keys()
        told |= table
    talk = Conversation()
    talk.open()
    for text in told.values():
        talk.client(post(text.encode()))
        talk.server(ok())
    # the same body elsewhere: what is asked there is another request
    talk.client(post(BASE.encode(), "/v1/completions"))
    talk.client(post(BASE.encode(), "/proxy/v1/chat/completions"))
    (tmp_path / "a.pcap").write_bytes(pcap(talk.frames))
    done = run("capture", "a.pcap", "--json", "--no-store", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *requests, _ = rows(done.stdout)
    assert len(requests) == len(told) + 2
    found = dict(zip([*told, "elsewhere", "behind a prefix"], requests, strict=True))
    base = found["base"]

    def equal(key: str) -> set[str]:
        return {name for name, row in found.items() if row[key] == base[key]}

    same = {"base", "again", "elsewhere", "behind a prefix"}
    assert equal("exact_key") == same
    assert equal("request_key") == same - {"elsewhere"} | SAME_REQUEST.keys()
    assert equal("prompt_key") - NO_KEY.keys() == same | SAME_REQUEST.keys() | SAME_PROMPT.keys()
    # nor is one of the others equal to another
    others = [*SAME_PROMPT, *OTHER]
    keys = [found[name]["request_key"] for name in others]
    assert None not in keys
    assert len(set(keys)) == len(others)
    prompts = [found[name]["prompt_key"] for name in OTHER]
    assert len(set(prompts)) == len(OTHER)
    assert {name: found[name]["request_key"] for name in NO_KEY} == dict.fromkeys(NO_KEY)
    assert all(found[name]["problem"] for name in NO_KEY)
