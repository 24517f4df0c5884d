"""What is added to a body before it goes upstream."""

import json

from toolkit.proxy.splices import spliced
from toolkit.request_key import Canonical, canonical

SCHEMA = b'{"minimum": 1.0, "maximum": 1e5, "step": 0.10, "most": 1}'
BODY = b'{"cache_salt": "mine", "tools": [%b], "temperature": 0.0, "model": "tiny"}' % SCHEMA


def fields_of(body: bytes) -> dict[str, object]:
    read = canonical(body)
    assert isinstance(read, Canonical)
    return read.fields


def test_a_clients_own_salt_is_replaced_and_no_number_of_a_schema_changes_its_spelling() -> None:
    told = spliced(BODY, fields_of(BODY), usage=False, salt="ours")
    assert json.loads(told)["cache_salt"] == "ours"
    assert b'"minimum":1.0,"maximum":100000.0,"step":0.1,"most":1}' in told


def test_a_body_without_a_salt_is_the_clients_own_behind_what_is_added() -> None:
    body = BODY.replace(b'"cache_salt": "mine", ', b"")
    told = spliced(body, fields_of(body), usage=True, salt="ours")
    added = b'"stream_options":{"include_usage":true},"cache_salt":"ours",'
    assert told == b"{" + added + body[1:]


def test_an_empty_object_gets_no_comma_too_many() -> None:
    assert spliced(b" { } ", {}, usage=False, salt="s") == b' {"cache_salt":"s" } '
