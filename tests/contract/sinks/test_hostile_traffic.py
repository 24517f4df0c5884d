"""Clients, servers and their pages choose words, too: whatever of it is shown does not act on a terminal or a page."""

import json
import re
from pathlib import Path

from contract.harness.clients import ask
from contract.harness.programs import rows, run
from contract.harness.proxies import proxy
from contract.harness.servers import answer, server
from contract.sinks.hostile import WORD, faults_of_csv, faults_of_text
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

HEADER = re.sub(r"[\x00-\x1f\x7f]", "", WORD).encode().decode("latin-1")
"""As a header's value may have it: bytes, but no control character of ASCII, which every parser refuses."""
REQUEST = {
    "model": WORD,
    "messages": [{"role": "user", "content": WORD, "name": WORD}],
    "stop": [WORD],
    "user": WORD,
    "seed": 1,
    "response_format": {"type": WORD},
    WORD: WORD,
}


def reply() -> bytes:
    """A chat answer, all of whose words are hostile."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": WORD},
        "finish_reason": WORD,
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = {"id": WORD, "object": "chat.completion", "created": 5, "model": WORD}
    return answer(
        body | {"choices": [choice], "usage": usage, "system_fingerprint": WORD},
        server=HEADER,
        cache_status=HEADER,
        x_request_id=HEADER,
    )


def captured(file: Path) -> None:
    """One connection as packets: a whole request, a whole answer, then a request that is refused in hostile words."""
    data = json.dumps(REQUEST).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HEADER}\r\n"
        f"user-agent: {HEADER}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    refused = answer({"error": {"message": WORD, "type": WORD, "code": WORD}}, f"400 {HEADER}")
    sides = [("10.0.0.1", 40_000, 1), ("10.0.0.2", 8000, 1)]
    packets = []

    def send(side: int, flags: str, payload: bytes = b"") -> None:
        (source, port, number), (target, to, acknowledged) = sides[side], sides[1 - side]
        ip = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src=source, dst=target)
        one = ip / TCP(sport=port, dport=to, seq=number, ack=acknowledged, flags=flags)
        one.time = 1_700_000_000 + len(packets) / 100
        packets.append(one / payload if payload else one)
        more = len(payload) or ("S" in flags)
        sides[side] = (source, port, number + more)

    send(0, "S")
    send(1, "SA")
    send(0, "A")
    for answered in (reply(), refused):
        whole = head.encode("latin-1") + data
        for start in range(0, len(whole), 1400):
            send(0, "PA", whole[start : start + 1400])
        for start in range(0, len(answered), 1400):
            send(1, "PA", answered[start : start + 1400])
    wrpcap(str(file), packets)


def test_captured_words_act_on_nothing(tmp_path: Path) -> None:
    captured(tmp_path / "hostile.pcap")
    words = ("capture", "hostile.pcap", "--full", "--store-prompts", "--show-clients")
    shown = run(*words, "--jsonl", "seen.jsonl", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "HYPERLINK(1)" in shown.stdout
    whole = run(*words, "--json", "--bodies", "--no-store", cwd=tmp_path)
    assert [row.get("model") for row in rows(whole.stdout)[:2]] == [WORD, WORD]
    assert json.loads(rows(whole.stdout)[0]["body"]) == REQUEST
    workload = run("workload", "--html", "w.html", cwd=tmp_path)
    assert "HYPERLINK(1)" in workload.stdout
    from_log = run("workload", "--from", "seen.jsonl", "--json", cwd=tmp_path)
    listed = run("runs", "--json", cwd=tmp_path)
    for ended in (shown, whole, workload, from_log, listed):
        assert ended.returncode == 0, ended.stderr
        assert faults_of_text(ended.stdout) + faults_of_text(ended.stderr) == []
    assert "<script>window.owned" not in (tmp_path / "w.html").read_text()
    sheet = run("runs", "export", rows(listed.stdout)[0]["run"], "--csv", cwd=tmp_path)
    assert "'=HYPERLINK(1)" in sheet.stdout
    assert faults_of_csv(sheet.stdout) == []


def test_a_servers_words_act_on_nothing(tmp_path: Path) -> None:
    """Of its models, version, metrics, headers, answers and errors; behind a proxy, too."""
    label = WORD.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    metrics = "".join(
        f'vllm:{name}{{model_name="{label}",engine="{label}"}} 1.0\n'
        for name in ("num_requests_running", "num_requests_waiting", "generation_tokens_total")
    )
    metrics += f'vllm:cache_config_info{{block_size="{label}",cache_dtype="{label}"}} 1.0\n{WORD}\n'
    models = {"object": "list", "data": [{"id": WORD, "root": WORD, "owned_by": WORD}]}
    pages = {
        "/health": answer(server=HEADER),
        "/version": answer({"version": WORD}, server=HEADER),
        "/v1/models": answer(models, server=HEADER),
        "/metrics": answer(metrics, content_type="text/plain; version=0.0.4"),
        "/v1/chat/completions": reply(),
        "*": answer({"error": {"message": WORD, "type": WORD}}, f"500 {WORD!r}", server=HEADER),
        "/ping": answer("", "200 OK", server=WORD.replace("\r", "")),
    }
    with server(pages) as hostile:
        scout = run("scout", hostile.url, "--db", "toolkit.db", cwd=tmp_path)
        json_of = run("scout", hostile.url, "--json", "--db", "toolkit.db", cwd=tmp_path)
        assert rows(json_of.stdout)[0]["model"] == WORD
        load = ("--requests", 4, "--no-stream", "--db", "toolkit.db")
        bench = run("bench", hostile.url, *load, cwd=tmp_path)
        diagnose = run(
            "diagnose", hostile.url, "--interval", "1s", "--db", "toolkit.db", cwd=tmp_path
        )
        warmup = run("warmup", hostile.url, "--help", cwd=tmp_path)
        for ended in (scout, json_of, bench, diagnose, warmup):
            assert ended.returncode in (0, 1)
            assert faults_of_text(ended.stdout) + faults_of_text(ended.stderr) == []
        with proxy(hostile.url, "", "--log", "-", cwd=tmp_path, probes=True) as running:
            for body in (REQUEST, REQUEST | {"model": f"x{WORD}", "stream": True}):
                ask(running.url, body, headers=[f"user-agent: {HEADER.encode('latin-1').decode()}"])
            running.program.line('"status"')
            ask(running.admin, b"", path="/metrics", method="GET")
            said = run("scout", running.url, "--db", "toolkit.db", cwd=tmp_path)
            assert faults_of_text(said.stdout) + faults_of_text(said.stderr) == []
            running.program.end()
            assert faults_of_text(running.program.text) == []
