"""What a server refused shapes no limit and no lever: a report with such requests is the report without them, and says how many there were."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.harness.packets import START, Conversation, pcap, post
from contract.harness.programs import rows, run
from contract.harness.servers import answer, chat

PATH = "/v1/chat/completions"
GOOD = [
    {"max_tokens": 64, "messages": [{"role": "user", "content": f"Tell me of the number {n % 20}"}]}
    for n in range(40)
]
HUGE = {"max_tokens": 99999, "messages": [{"role": "user", "content": "Tell me all"}]}
TOO_LONG = {"max_tokens": 50, "messages": [{"role": "user", "content": "word " * 20_000}]}
REFUSED = [(HUGE, 400), (HUGE, 400), (HUGE, 429), (TOO_LONG, 503), (TOO_LONG, 503)]
"""Of them two would be repeats, if anything had been answered."""
AS_WITHOUT = (
    "requests unique_exact unique_canonical unique_prompts top_share entropy_bits stream_share hit_curve prefix_share"
    " recommended_max_model_len levers forecast lengths mix model_length headline"
).split()


KEYS = set(
    "requests unique_exact unique_canonical unique_prompts top_share entropy_bits stream_share hit_curve prefix_share"
    " recommended_max_model_len levers".split()
)
"""That are promised."""


def exchanges(*, refused: bool) -> Iterator[tuple[float, dict[str, Any], int]]:
    """Time, body and status of each; those that are refused come in the middle."""
    for n, body in enumerate(GOOD):
        if refused and n == 20:
            for m, (bad, status) in enumerate(REFUSED):
                yield START + 19.1 + m / 10, bad, status
        yield START + n, body, 200


def captured(*, refused: bool) -> bytes:
    talk = Conversation()
    talk.open()
    for at, body, status in exchanges(refused=refused):
        talk.now = at
        talk.client(post(json.dumps({"model": "tiny"} | body).encode()))
        talk.now = at + 0.05
        good = chat("Well, it is a number.", tokens=7)
        talk.server(good if status == 200 else answer({"error": "no"}, f"{status} No"))
    talk.close()
    return pcap(talk.frames)


def nginx(*, refused: bool) -> str:
    lines = [
        {
            "msec": at + 0.05, "request_time": 0.05, "remote_addr": "10.0.0.9", "status": status,
            "request_method": "POST", "request_uri": PATH, "request_body": json.dumps(body),
        }
        for at, body, status in exchanges(refused=refused)
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def proxy(*, refused: bool) -> str:
    lines = [
        {
            "ts": at, "request_id": f"{at}", "team": "a", "cache": "miss", "status": status, "path": PATH,
            "request_key": repr(body), "prompt_key": repr(body["messages"]), "e2e_ms": 50.0,
            "max_tokens": body["max_tokens"], "prompt_chars": len(body["messages"][0]["content"]),
            "prompt_tokens": 9 if status == 200 else None, "completion_tokens": 7 if status == 200 else None,
        }
        for at, body, status in exchanges(refused=refused)
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def reported(folder: Path, *words: object) -> dict[str, Any]:
    done = run("workload", "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    [report] = rows(done.stdout)
    assert report.keys() >= KEYS
    assert report["top_share"].keys() == {"1", "2", "10", "100"}
    for each in report["hit_curve"]:
        assert {"size", "ttl_s", "hit_ratio", "coalesced_ratio"} <= each.keys()
    for each in report["levers"]:
        assert {"code", "saved_share", "caveat"} <= each.keys()
    return report


@pytest.mark.parametrize("source", ["database", "capture", "nginx", "proxy"])
def test_a_report_with_refused_requests_is_the_report_without_them(
    source: str, tmp_path: Path
) -> None:
    """A capture is read from the database with them, and from its JSON lines without them."""
    reports = []
    for refused in (True, False):
        file = tmp_path / f"{refused}.jsonl"
        words: list[object] = ["--from", file]
        if source in ("database", "capture"):
            (tmp_path / "a.pcap").write_bytes(captured(refused=refused))
            done = run("capture", "a.pcap", "--full", "--json", "--db", "t.db", cwd=tmp_path)
            file.write_text(done.stdout)
            if source == "database":
                words = ["--db", "t.db"]
        else:
            file.write_text((nginx if source == "nginx" else proxy)(refused=refused))
        reports.append(reported(tmp_path, *words))
    with_them, without = reports
    assert {key: with_them[key] for key in AS_WITHOUT} == {key: without[key] for key in AS_WITHOUT}
    assert (with_them["requests"], with_them["refused"]) == (40, 5)
    assert without["refused"] == 0
    # 64 tokens and a prompt of less than 60, with the margin: the least there is
    assert with_them["recommended_max_model_len"] == 256
    # they are not forgotten, either
    statuses = {"200": 40, "400": 2, "429": 1, "503": 2}
    assert with_them["answers"]["statuses"] == statuses
    assert with_them["answers"]["error_share"] == pytest.approx(5 / 45)
    assert any("5 requests were refused" in warning for warning in with_them["warnings"])


def test_people_are_told_and_files_hold_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(nginx(refused=True))
    words = ("--from", "log.jsonl", "--profile", "p.toml", "--html", "r.html")
    done = run("workload", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 refused and left out" in " ".join(done.stdout.split())
    assert "99" + "999" not in (tmp_path / "p.toml").read_text()
    assert "5 refused and left out" in (tmp_path / "r.html").read_text()
    exported = run("workload", "--from", "log.jsonl", "--export", "mooncake", cwd=tmp_path)
    assert len(rows(exported.stdout)) == 40
    assert "5 refused requests are left out" in exported.stderr
    # where nothing else came there is nothing to report on
    only = [line for line in nginx(refused=True).splitlines() if '"status": 200' not in line]
    (tmp_path / "log.jsonl").write_text("\n".join(only))
    done = run("workload", "--from", "log.jsonl", cwd=tmp_path)
    assert done.returncode == 1
    assert "5 refused (HTTP 400: 2, HTTP 429: 1, HTTP 503: 2)" in done.stderr
