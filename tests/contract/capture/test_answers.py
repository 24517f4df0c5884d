"""Which answer stands beside which request by `toolkit capture --full --json`: in order, without a body, and beside lost ones."""

import json
from pathlib import Path

from contract.harness import packets as p
from contract.harness.packets import Conversation, post
from contract.harness.programs import rows, run

USAGE = {"usage": {"prompt_tokens": 7, "completion_tokens": 5}}


def answer(status: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    )
    return head.encode() + body


def told(talk: Conversation, folder: Path) -> list[tuple[str, int | None, int | None]]:
    """Method, status and output tokens, row by row."""
    (folder / "a.pcap").write_bytes(p.pcap(talk.frames))
    done = run("capture", "a.pcap", "--full", "--json", "--no-store", cwd=folder)
    assert done.returncode == 0, done.stderr
    *requests, _ = rows(done.stdout)
    return [(row["method"], row["status"], row["output_tokens"]) for row in requests]


def test_answers_in_one_segment_belong_to_requests_in_order_whatever_has_a_body(
    tmp_path: Path,
) -> None:
    talk = Conversation()
    talk.open()
    heads = [
        b"HEAD /health HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
    ]
    talk.client(heads[0] + post(b'{"prompt":"a"}') + heads[0] + heads[1] + post(b'{"prompt":"b"}'))
    whole = json.dumps(USAGE).encode()
    early = b"HTTP/1.1 103 X\r\nLink: </a>\r\n\r\n"
    sent = answer(200, length=70) + early + answer(201, whole) + answer(404, length=9)
    talk.server(sent + b"HTTP/1.1 204 X\r\n\r\n" + answer(503, b"{}"))
    talk.close()
    assert told(talk, tmp_path) == [
        ("HEAD", 200, None),
        ("POST", 201, 5),
        ("HEAD", 404, None),
        ("GET", 204, None),
        ("POST", 503, None),
    ]


def test_an_answer_that_was_lost_is_nobody_elses(tmp_path: Path) -> None:
    talk = Conversation()
    talk.open()
    for number, status in enumerate((200, 201, 202)):
        talk.client(post(b'{"prompt":"%d"}' % number))
        frames = talk.server(answer(status, json.dumps(USAGE).encode()))
        if status == 201:
            talk.frames = [frame for frame in talk.frames if frame not in frames]
    talk.close()
    assert told(talk, tmp_path) == [("POST", 200, 5), ("POST", None, None), ("POST", 202, 5)]
