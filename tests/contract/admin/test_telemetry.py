"""What a proxy tells of its requests: counters and times for Prometheus, a line of the log and a row of the database for each."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import BODY, Client, Reply, ask, get, request
from contract.harness.databases import select
from contract.harness.programs import rows, run, until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, answer, chat, server, vllm_pages

# metric -> its type and the names of its labels
FAMILIES = {
    "requests": ("counter", "cache code endpoint model team"),
    "rejections": ("counter", "reason team"),
    "errors": ("counter", "kind model team"),
    "clients_left": ("counter", "model team"),
    "prompt_tokens": ("counter", "cache model team"),
    "output_tokens": ("counter", "cache model team"),
    "prefix_cached_tokens": ("counter", "model"),
    "stored_answers": ("counter", "model"),
    "bypasses": ("counter", "reason"),
    "hits": ("counter", "layer"),
    "hit_bytes": ("counter", "model"),
    "refused_requests": ("counter", "reason"),
    "upstream_requests": ("counter", "upstream"),
    "upstream_errors": ("counter", "kind upstream"),
    "upstream_retries": ("counter", "upstream"),
    "events": ("counter", "kind"),
    "cache_evictions": ("counter", "layer"),
    "cache_expirations": ("counter", "layer"),
    "cache_refusals": ("counter", "layer"),
    "log_lines_dropped": ("counter", ""),
    "rows_dropped": ("counter", ""),
    "ttft_seconds": ("histogram", "cache model"),
    "tpot_seconds": ("histogram", "cache model"),
    "queue_seconds": ("histogram", "cache model"),
    "latency_seconds": ("histogram", "cache model"),
    "build_info": ("gauge", "version"),
    "start_time_seconds": ("gauge", ""),
    "workers": ("gauge", ""),
    "connections": ("gauge", ""),
    "connections_busy": ("gauge", ""),
    "flights": ("gauge", ""),
    "slots_in_use": ("gauge", ""),
    "slots_limit": ("gauge", ""),
    "queue_length": ("gauge", ""),
    "model_epoch": ("gauge", "model"),
    "cache_entries": ("gauge", "layer"),
    "cache_bytes": ("gauge", "layer"),
    "cache_limit_bytes": ("gauge", "layer"),
    "team_queue_length": ("gauge", "team"),
    "upstream_state": ("gauge", "state upstream"),
    "upstream_draining": ("gauge", "upstream"),
    "upstream_in_flight": ("gauge", "upstream"),
    "upstream_running": ("gauge", "upstream"),
    "upstream_waiting": ("gauge", "upstream"),
    "upstream_metrics_age_seconds": ("gauge", "upstream"),
    "last_minute_hit_ratio": ("gauge", ""),
    "last_minute_coalesced_ratio": ("gauge", ""),
    "last_minute_error_ratio": ("gauge", ""),
    "last_minute_requests_per_second": ("gauge", ""),
    "last_minute_rejections_per_second": ("gauge", ""),
    "last_minute_ttft_seconds": ("gauge", "quantile"),
    "last_minute_tpot_seconds": ("gauge", "quantile"),
    "last_minute_queue_seconds": ("gauge", "quantile"),
}
EDGES = (
    "5e-05 0.0001 0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5"
    " 1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 +Inf"
).split()
TEAMS = """
[[team]]
name = "red"
key_env = "RED"
[[team]]
name = "blue"
key_env = "BLUE"
max_prompt_tokens = 10
[admission]
concurrency = 2
[routing]
retries = 3
"""
KEYS = {"RED": "red-key", "BLUE": "blue-key"}
RESETS: list[bool] = []
"""What becomes of the next request with seed 501, from the end."""
FIRST_TOKEN_S, GAP_S = 0.12, 0.06
STREAM = BODY | {"stream": True, "stream_options": {"include_usage": True}}


def asks(text: str, **more: Any) -> dict[str, Any]:
    return BODY | {"messages": [{"role": "user", "content": text}]} | more


def told(page: str) -> tuple[dict[str, tuple[str, str]], dict[str, float]]:
    """Of Prometheus's text: our families with their types and labels, and the samples."""
    types = dict(re.findall(r"^# TYPE toolkit_proxy_(\w+) (\w+)$", page, re.MULTILINE))
    families, samples = {}, {}
    for line in page.splitlines():
        if not line.startswith("toolkit_proxy_"):
            continue
        sample, _, value = line.removeprefix("toolkit_proxy_").rpartition(" ")
        samples[sample] = float(value)
        name, _, labels = sample.partition("{")
        family = next(
            each for each in types if re.fullmatch(each + "(_bucket|_count|_sum|_created)?", name)
        )
        names = sorted(set(re.findall(r'(\w+)="', labels)) - {"le"})
        families[family.removesuffix("_total")] = (types[family], " ".join(names))
    return families, samples


class Story:
    """Two teams' requests, one of each kind, through a proxy that logs and stores them."""

    def __init__(self, door: Proxy, upstream: Server, folder: Path) -> None:
        self.door, self.upstream, self.folder = door, upstream, folder

    def ask(self, body: object, team: str = "red", **more: Any) -> Reply:
        return ask(self.door.url, body, key=KEYS[team.upper()], **more)

    def lines(self, count: int) -> list[dict[str, Any]]:
        """The log's, once there are so many of requests."""
        log = self.folder / "requests.jsonl"

        def whole() -> list[dict[str, Any]]:
            found = rows(log.read_text()) if log.exists() else []
            return [each for each in found if "request_id" in each]

        return until(lambda: len(whole()) >= count and whole())


def engine(asked: Asked) -> None:
    """Answers by seed: a failure, a reset once, a stream with known gaps; else `Hello there`."""
    body = json.loads(asked.body)
    seed = body.get("seed")
    if body.get("model") != "tiny":
        asked.send(answer({"error": "no such model"}, "404 Not Found"))
    elif seed == 500:
        asked.send(answer({"error": "out of memory"}, "500 Oh"))
    elif seed == 501 and RESETS.pop():
        asked.reset()
    elif seed == 502:
        asked.is_gone(60)
    elif not body.get("stream"):
        asked.send(chat())
    else:
        asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        asked.send(b"connection: close\r\n\r\n")
        asked.keep = False
        head = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "tiny"}
        time.sleep(FIRST_TOKEN_S)
        for number, (delta, end) in enumerate(
            (({"role": "assistant", "content": "Hello"}, None), ({"content": " there"}, "stop"))
        ):
            time.sleep(GAP_S * number)
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            asked.send(f"data: {json.dumps(head | {'choices': [choice]})}\n\n".encode())
        usage = {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        asked.send(f"data: {json.dumps(head | {'choices': [], 'usage': usage})}\n\n".encode())
        asked.send(b"data: [DONE]\n\n")
        asked.connection.shutdown(1)


@contextmanager
def story(folder: Path) -> Iterator[Story]:
    words = ("--log", "requests.jsonl", "--db", "requests.db")
    # one for a connection that was kept, one for a new one
    RESETS[:] = [False, True, True]
    with (
        server({"/v1/chat/completions": engine}) as one,
        server({"/v1/chat/completions": engine}) as two,
        proxy([one.url, two.url], TEAMS, *words, cwd=folder, env=KEYS) as door,
    ):
        # its last minute begins with a first look
        until(lambda: get(door.admin, "/state").json["lately"]["window_s"] > 0)
        yield Story(door, one, folder)


def test_one_request_of_each_kind_is_counted_timed_logged_and_stored(tmp_path: Path) -> None:
    with story(tmp_path) as of:
        assert not of.ask(BODY).is_hit
        with Client(of.door.url) as client:
            # the second by its key, the third by its very bytes
            hits = [client.ask(BODY, key="red-key") for _ in range(2)]
        of.ask(STREAM | {"seed": 1})
        with Client(of.door.url) as client:
            hits += [client.ask(STREAM | {"seed": 1}, key="red-key") for _ in range(2)]
        assert [each.is_hit for each in hits] == [True] * 4
        assert of.ask(asks("x" * 40), "blue").status == 200
        long = of.ask(asks("x" * 44), "blue")
        assert (long.status, "about 11 tokens" in long.body.decode()) == (413, True)
        assert of.ask(BODY | {"seed": 500}).status == 500
        assert of.ask(BODY | {"seed": 501}).status == 200
        assert of.ask(b"{").status == 400
        assert ask(of.door.url, BODY).status == 401
        nothing_kept = of.ask(BODY | {"seed": 2}, headers=["cache-control: no-store, no-cache"])
        assert nothing_kept.status == 200
        with Client(of.door.url) as client:
            client.send(request(BODY | {"seed": 502}, key="red-key"))
            until(lambda: get(of.door.admin, "/state").json["flights"])
        with Client(of.door.url) as client:
            client.send(b"GET / HTTP/9.9\r\n\r\n")
            assert client.reply().status in (400, 505)
        for number in range(70):
            assert of.ask(BODY | {"model": f"made-up-{number}"}).status == 404
        served = 14 + 70
        until(lambda: of.door.total("toolkit_proxy_requests_total") == served)

        # the last minute, once it was looked at again
        lately = until(
            lambda: (
                (found := get(of.door.admin, "/state").json["lately"])["requests_per_s"]
                and round(found["requests_per_s"] * found["window_s"]) == served
                and found
            )
        )

        families, samples = told(get(of.door.admin, "/metrics").body.decode())
        missing = {
            "upstream_running",
            "upstream_waiting",
            "upstream_metrics_age_seconds",
            "model_epoch",
        }
        assert families == {name: FAMILIES[name] for name in FAMILIES if name in families}
        assert FAMILIES.keys() - families.keys() <= missing | {"cache_expirations"}, families
        chats = 'endpoint="chat/completions"'
        requests = {
            sample.removeprefix("requests_total"): value
            for sample, value in samples.items()
            if sample.startswith("requests_total")
        }
        red, blue, tiny = 'team="red"', 'team="blue"', 'model="tiny"'

        def row(
            cache: str, code: str, model: str = tiny, team: str = red, place: str = chats
        ) -> str:
            return f'{{cache="{cache}",code="{code}",{place},{model},{team}}}'

        assert requests == {
            row("miss", "2xx"): 3,
            row("hit", "2xx"): 4,
            row("miss", "5xx"): 1,
            row("miss", "none"): 1,
            row("miss", "2xx", team=blue): 1,
            row("miss", "4xx", team=blue): 1,
            row("miss", "4xx", 'model="other"'): 70,
            row("bypass", "2xx"): 1,
            row("bypass", "4xx", 'model="none"'): 1,
            row("bypass", "4xx", 'model="none"', 'team=""', 'endpoint=""'): 1,
        }
        counted = {
            'rejections_total{reason="prompt_too_long",team="blue"}': 1,
            'errors_total{kind="http_500",model="tiny",team="red"}': 1,
            'clients_left_total{model="tiny",team="red"}': 1,
            'prompt_tokens_total{cache="miss",model="tiny",team="red"}': 21,
            'prompt_tokens_total{cache="hit",model="tiny",team="red"}': 28,
            'output_tokens_total{cache="hit",model="tiny",team="red"}': 8,
            'output_tokens_total{cache="bypass",model="tiny",team="red"}': 2,
            'output_tokens_total{cache="miss",model="tiny",team="blue"}': 2,
            'prefix_cached_tokens_total{model="tiny"}': 4,
            'stored_answers_total{model="tiny"}': 4,
            'bypasses_total{reason="wish"}': 1,
            'hits_total{layer="memory"}': 4,
            'events_total{kind="refused"}': 1,
        }
        assert {name: samples.get(name) for name in counted} == counted
        # those by their very bytes at least
        by_bytes = len(hits[1].body) + len(hits[3].body)
        assert by_bytes <= samples['hit_bytes_total{model="tiny"}'] <= 2 * by_bytes
        assert sum(v for n, v in samples.items() if n.startswith("errors_total")) == 1
        assert sum(v for n, v in samples.items() if n.startswith("refused_requests_total")) == 1
        retries = of.door.total("toolkit_proxy_upstream_retries_total")
        assert of.door.total("toolkit_proxy_upstream_requests_total") == 77 + retries
        assert 1 <= retries == samples['events_total{kind="retry"}']
        assert of.door.total("toolkit_proxy_upstream_errors_total") >= 1

        # times: what failed, was refused or left is in none of them
        labels = 'cache="miss",model="tiny"'
        assert [
            re.search(r'le="([^"]*)"', each)[1]  # type: ignore[index]
            for each in samples
            if each.startswith(f"ttft_seconds_bucket{{{labels}") or f"ttft_seconds_bucket{{{labels[:12]},le" in each
        ] == EDGES  # fmt: skip
        assert samples[f"latency_seconds_count{{{labels}}}"] == 4
        assert samples['latency_seconds_count{cache="hit",model="tiny"}'] == 4
        assert samples['ttft_seconds_count{cache="hit",model="tiny"}'] == 2
        assert samples[f"ttft_seconds_count{{{labels}}}"] == 1
        assert FIRST_TOKEN_S <= samples[f"ttft_seconds_sum{{{labels}}}"] < 60
        # a busy proxy may read both tokens at once
        assert 0 <= samples[f"tpot_seconds_sum{{{labels}}}"] < 20
        assert samples[f"tpot_seconds_count{{{labels}}}"] == 1
        under = [n for n in samples if n.startswith("ttft_seconds_bucket") and 'le="0.1"' in n]
        assert sum(samples[n] for n in under if 'cache="miss"' in n) == 0
        last = [n for n in samples if n.startswith("ttft_seconds_bucket") and "+Inf" in n]
        assert sum(samples[n] for n in last) == 3
        assert 0 < samples['latency_seconds_sum{cache="hit",model="tiny"}'] < 60

        # 3 requests were none for the cache; one was rejected and one left
        assert lately["hit_ratio"] == pytest.approx(4 / 81)
        assert lately["coalesced_ratio"] == 0
        assert lately["error_rate"] == pytest.approx(1 / 82)
        assert lately["rejections_per_s"] * lately["window_s"] == pytest.approx(1)
        assert FIRST_TOKEN_S < lately["ttft_p95_s"] < 60
        assert 0 <= lately["tpot_p50_s"] < 20

        lines = of.lines(served)
        of.door.program.end()
    assert re.search(
        r"^84 requests in .*, 4 hits \(.*, 1 rejected$", of.door.program.text, re.MULTILINE
    )

    # a line each, in the order of their ends
    shown = [
        (each.get("team"), each["cache"], each["status"], each.get("layer"), each.get("new"))
        for each in lines[:14]
    ]
    assert shown[:6] == [
        ("red", "miss", 200, None, True),
        ("red", "hit", 200, "memory", False),
        ("red", "hit", 200, "memory", False),
        ("red", "miss", 200, None, True),
        ("red", "hit", 200, "memory", False),
        ("red", "hit", 200, "memory", False),
    ]
    first, stream, byte_hit = lines[0], lines[3], lines[5]
    assert first.keys() == {
        *("ts", "request_id", "latency_ms", "team", "method", "path", "endpoint", "model", "stream"),
        *("status", "cache", "new", "stored", "prompt_tokens", "completion_tokens", "queue_ms"),
        *("finish_reason", "upstream", "body_bytes", "exact_key", "request_key", "prompt_key"),
    }  # fmt: skip
    assert (first["path"], first["method"], first["finish_reason"], first["completion_tokens"]) == (
        *("/v1/chat/completions", "POST", "stop", 2),
    )
    assert stream.keys() == first.keys() | {"ttft_ms", "tpot_ms", "cached_tokens"}
    assert FIRST_TOKEN_S * 1000 <= stream["ttft_ms"] <= stream["latency_ms"] < 60_000
    assert byte_hit.keys() == lines[4].keys() == lines[2].keys() | {"ttft_ms"}
    assert lines[1].keys() == lines[2].keys()
    assert 0 < byte_hit["latency_ms"] == byte_hit["ttft_ms"] < 60_000
    assert stream["exact_key"] == byte_hit["exact_key"] != first["exact_key"]
    assert hits[3].headers["x-request-id"] == byte_hit["request_id"]
    assert abs(time.time() - first["ts"]) < 300
    (rejected,) = [each for each in lines if each.get("rejected")]
    assert (rejected["event"], rejected["rejected"]) == ("rejection", "prompt_too_long")
    assert "error_kind" not in rejected
    assert [each["status"] for each in lines if "error_kind" in each] == [500]
    (left,) = [each for each in lines if each.get("left")]
    assert left["status"] is None
    (retried,) = [each for each in lines if each.get("retries")]
    assert retried["status"] == 200
    (bypassed,) = [each for each in lines if each.get("bypass")]
    assert (bypassed["bypass"], bypassed.get("stored")) == ("wish", None)
    text = (tmp_path / "requests.jsonl").read_text()
    assert "red-key" not in text
    assert "Hi" not in [value for each in lines for value in each.values()]
    assert '"event":"retry"' in text

    # and a row each
    stored = select(
        tmp_path / "requests.db",
        "SELECT status, cache, ttft_ms, latency_ms, prompt_tokens, output_tokens, finish_reason,"
        " body_id FROM seen ORDER BY ts, number",
    )
    assert len(stored) == served
    found = [(each["status"], each["cache"], each["output_tokens"]) for each in stored[:6]]
    assert found == [(200, cache, 2) for cache in ("miss", "hit", "hit", "miss", "hit", "hit")]
    (body,) = {each["body_id"] for each in stored[:3]}
    assert body is not None
    assert FIRST_TOKEN_S * 1000 <= stored[3]["ttft_ms"] <= stored[3]["latency_ms"]
    assert stored[5]["ttft_ms"] == stored[5]["latency_ms"] > 0
    listed = rows(run("runs", "--json", "--db", "requests.db", cwd=tmp_path).stdout)
    assert [each["verb"] for each in listed] == ["proxy"]


def test_clients_see_sums_and_no_teams_upstreams_or_events_and_the_engines_own_page(
    tmp_path: Path,
) -> None:
    pages = vllm_pages() | {"/v1/chat/completions": chat()}
    recorded = pages["/metrics"]
    assert isinstance(recorded, bytes)
    # one of vLLM's front ends ends its page so
    text = recorded.partition(b"\r\n\r\n")[2] + b"# EOF\n"
    pages["/metrics"] = answer(text, content_type="text/plain; version=0.0.4")
    with server(pages) as one, proxy(one.url, cwd=tmp_path, probes=True) as door:
        for _ in range(3):
            ask(door.url)
        page = get(door.url, "/metrics").body.decode()
        families, samples = told(page)
        hidden = {"refused_requests", "events", "team_queue_length", "log_lines_dropped"}
        hidden |= {name for name in FAMILIES if name.startswith("upstream_")}
        assert families.keys() & hidden == {"upstream_metrics_age_seconds"}
        assert {"requests", "hits", "latency_seconds", "cache_bytes", "workers"} <= families.keys()
        assert families["requests"] == ("counter", "cache code endpoint model")
        labels = 'cache="hit",code="2xx",endpoint="chat/completions",model="tiny"'
        assert samples[f"requests_total{{{labels}}}"] == 2
        assert samples['upstream_metrics_age_seconds{upstream="0"}'] < 60
        assert "vllm:generation_tokens_total" in page
        assert (page.count("# EOF"), page.endswith("\n# EOF\n")) == (1, True)
        assert "127.0.0.1" not in page
        whole = told(get(door.admin, "/metrics").body.decode())[1]
        assert whole['upstream_state{state="up",upstream="u0"}'] == 1
        assert whole['upstream_state{state="left",upstream="u0"}'] == 0
        assert whole['upstream_running{upstream="u0"}'] == 0
        assert whole['cache_entries{layer="memory"}'] == 1
        assert whole['cache_limit_bytes{layer="memory"}'] == 256 * 2**20


def test_why_a_request_is_a_hit_or_none(tmp_path: Path) -> None:
    settings = TEAMS + "[cache]\nttl = 3600\n"
    with (
        server({"/v1/chat/completions": engine}) as one,
        proxy(one.url, settings, cwd=tmp_path, env=KEYS) as door,
    ):

        def why(body: object, team: str = "red", **more: Any) -> dict[str, Any]:
            question = {"body": body, "team": team, **more}
            return dict(ask(door.admin, question, path="/explain").json)

        never = why(BODY)
        assert (never["reason"], never["differences"], never["nearest_age_s"]) == ("never seen", [], None)  # fmt: skip
        first = asks("Hi there", temperature=0, stop=["a", "b"])
        assert ask(door.url, first, key="red-key").status == 200
        assert why(first)["reason"] == "hit"
        for other, path, kind, at in [
            (asks("Hi here", temperature=0, stop=["a", "b"]), "messages[0].content", "value", 3),
            (asks("Hi there", temperature=0.5, stop=["a", "b"]), "temperature", "value", None),
            (asks("Hi there", temperature=False, stop=["a", "b"]), "temperature", "type", None),
            (asks("Hi there", temperature=0, stop=["a"]), "stop", "length", None),
            (asks("Hi there", temperature=0, stop=["c"]), "stop[0]", "value", 0),
            (asks("Hi there", temperature=0), "stop", "missing", None),
            (asks("Hi there", temperature=0, stop=["a", "b"], seed=4711, zz=1), "seed", "extra", None),
        ]:  # fmt: skip
            told = why(other)
            (found,) = told["differences"]
            assert (told["reason"], found["path"], found["kind"], found["at"]) == ("never seen", path, kind, at)  # fmt: skip
            assert (found["here"], found["there"]) == (None, None)
            assert 0 <= told["nearest_age_s"] < 60
        (found,) = why(asks("Hi there", temperature=0.5, stop=["a", "b"]), values=True)[
            "differences"
        ]
        assert (found["here"], found["there"]) == ("0.5", "0")
        # another team's requests are nobody's business, nor another model's or path's
        assert why(asks("Hi here"), "blue")["differences"] == []
        assert why(asks("Hi here", model="big"))["differences"] == []
        assert why(asks("Hi here"), path="/v1/completions")["differences"] == []
        assert ask(door.url, BODY | {"seed": 500}, key="red-key").status == 500
        assert (why(BODY | {"seed": 500})["reason"], why(BODY | {"seed": 500})["detail"]) == (
            *("not stored", "status 500"),
        )
        with Client(door.url) as client:
            client.send(request(BODY | {"seed": 502}, key="red-key"))
            until(lambda: why(BODY | {"seed": 502})["reason"] == "under way")
        # the newest is what it is compared with
        assert why(BODY | {"seed": 503})["differences"][0]["path"] == "seed"
        acts = why(asks("Hi there", tools=[{"type": "mcp"}]))
        assert (acts["reason"], acts["detail"], acts["differences"]) == ("policy", "server-tools", [])  # fmt: skip
        short, soon = asks("Soon gone"), ["x-toolkit-cache: ttl=1s"]
        assert ask(door.url, short, key="red-key", headers=soon).status == 200
        until(lambda: why(short)["reason"] != "hit")
        assert why(short)["reason"] == "expired"
        assert ask(door.admin, {"request": {"body": first, "team": "red"}}, path="/purge").json == {"purged": 1}  # fmt: skip
        assert why(first)["reason"] == "evicted"


def test_the_log_goes_on_after_a_rotation_a_torn_line_and_a_full_disk(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    log.write_text('{"ts": 1}\n{"half')
    with (
        server({"*": chat()}) as one,
        proxy(one.url, "", "--log", "requests.jsonl", cwd=tmp_path) as door,
    ):
        ask(door.url)
        until(lambda: '"miss"' in log.read_text())
        assert log.read_text().splitlines()[1] == '{"half'
        log.rename(tmp_path / "old.jsonl")
        os.kill(door.program.process.pid, signal.SIGHUP)
        until(log.exists)
        ask(door.url)
        until(lambda: '"hit"' in log.read_text())
        ask(door.url, BODY | {"seed": 1})
        door.program.end()
    assert [json.loads(each)["cache"] for each in log.read_text().splitlines()] == ["hit", "miss"]
    with (
        server({"*": chat()}) as one,
        proxy(one.url, "", "--log", "/dev/full", cwd=tmp_path) as door,
    ):
        for _ in range(3):
            assert ask(door.url).status == 200
        door.program.line(
            r"^Cannot write the log `/dev/full`: No space left on device; lines are lost"
        )
        until(lambda: door.total("toolkit_proxy_log_lines_dropped_total") == 3)
        assert ask(door.url).status == 200
    ended = run(
        "proxy", "--upstream", "http://127.0.0.1:9", "--port", 0, "--log", "none/x", cwd=tmp_path
    )
    assert ended.returncode == 1
    assert "cannot write the log `none/x`" in ended.stderr
