"""One request as one line of JSON, read back with another parser than the one that wrote it."""

import base64
import json

from toolkit.capture.jsonl import NumberedRequest, line
from toolkit.records import Asked, Seen

PROMISED = (
    "ts client method path model stream max_tokens temperature prompt_key exact_key new"
    " unique_so_far prompt_chars prompt_preview damaged"
).split()

ASKED = Asked(
    exact_key="e" * 32,
    request_key="f" * 32,
    prompt_key="a" * 32,
    body_bytes=99,
    model="tiny",
    stream=True,
    max_tokens=64,
    temperature=0.7,
    options=("tools", "user"),
    prompt_chars=200,
)
SEEN = Seen(ts=1_700_000_000.123456, client="c0ffee", method="POST", path="/v1/x", asked=ASKED)


def told(arrived: NumberedRequest, *, with_body: bool = False) -> dict:
    text = line(arrived, with_body=with_body)
    assert text.count(b"\n") == 1
    assert text.endswith(b"}\n")
    return json.loads(text)


def test_the_promised_keys_come_first_and_in_their_order() -> None:
    found = told(NumberedRequest(SEEN, new=True, unique_so_far=3))
    assert list(found)[:15] == PROMISED
    assert found["ts"] == 1_700_000_000.123456
    assert (found["client"], found["path"], found["model"]) == ("c0ffee", "/v1/x", "tiny")
    assert (found["stream"], found["max_tokens"], found["temperature"]) == (True, 64, 0.7)
    assert (found["new"], found["unique_so_far"], found["prompt_chars"]) == (True, 3, 200)
    assert (found["damaged"], found["options"]) == (False, ["tools", "user"])
    assert found["prompt_preview"] is None
    asked = Asked(exact_key="e" * 32, body_bytes=9, prompt_text="ä" * 79 + "bcd")
    assert (
        told(NumberedRequest(Seen(ts=1.0, asked=asked), True, 1))["prompt_preview"]
        == "ä" * 79 + "b"
    )


def test_a_request_without_a_body_is_told_with_nulls() -> None:
    found = told(NumberedRequest(Seen(ts=1.0, method="GET", path="/metrics"), None, 0))
    known = {key for key, value in found.items() if value is not None}
    assert known == {"ts", "method", "path", "unique_so_far", "damaged"}
    assert "body" not in found


def test_why_a_body_could_not_be_read_is_told_but_what_was_lost_goes_first() -> None:
    asked = Asked(exact_key="e" * 32, body_bytes=9, problem="not JSON")
    assert told(NumberedRequest(Seen(ts=1.0, asked=asked), None, 0))["problem"] == "not JSON"
    both = Seen(ts=1.0, asked=asked, damaged=True, problem="7 bytes lost")
    assert told(NumberedRequest(both, None, 0))["problem"] == "7 bytes lost"


def test_a_body_that_is_no_text_stands_there_in_full_all_the_same() -> None:
    text = '{"a": "ä\\n"}\r\n'
    assert told(NumberedRequest(SEEN, True, 1, text.encode()), with_body=True)["body"] == text
    assert told(NumberedRequest(SEEN, None, 1), with_body=True)["body"] is None
    body = b"\xff\xfe{}"
    found = told(NumberedRequest(SEEN, True, 1, body), with_body=True)
    assert base64.b64decode(found["body_base64"]) == body
    assert found["body"].endswith("{}")


def test_what_json_has_and_the_fast_writer_has_not_is_written() -> None:
    asked = Asked(exact_key="e" * 32, body_bytes=9, seed=2**70, model="\ud800", max_tokens=-1)
    found = told(NumberedRequest(Seen(ts=1.0, asked=asked), new=True, unique_so_far=1))
    assert (found["seed"], found["model"], found["max_tokens"]) == (2**70, "\ud800", -1)


def test_an_answer_s_usage_goes_before_what_the_request_tells() -> None:
    asked = Asked(exact_key="e" * 32, body_bytes=9, prompt_tokens=12)
    assert told(NumberedRequest(Seen(ts=1.0, asked=asked), None, 0))["prompt_tokens"] == 12
    answered = Seen(ts=1.0, asked=asked, prompt_tokens=15, output_tokens=3, status=200)
    found = told(NumberedRequest(answered, None, 0))
    assert (found["prompt_tokens"], found["output_tokens"], found["status"]) == (15, 3, 200)
