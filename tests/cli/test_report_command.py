"""`toolkit report` as a user meets it: stores made by hand, each criterion once met and once not met."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.raw_server import serving, vllm_pages
from support.shots import shot as timed
from support.tallies import ALICE, BOB, S, sketch, tally

from toolkit.cli import main
from toolkit.records import NOT_VALID, ErrorCount, Event, Run, Seen, Verdict
from toolkit.sim.app import serve_in_thread
from toolkit.store import Store

RUN, SERVE = "0123456789ab", "5e5e5e5e5e5e"
ENGINE = ("engine", "http://127.0.0.1:8001")
STACK = {
    "engines": [{"name": "engine", "host": "127.0.0.1", "flags": [["max-model-len", "512"]]}],
    "proxy": {"host": "0.0.0.0", "port": 8000, "media_hosts": []},
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("data/toolkit.db") as opened:
        yield opened


def blasted(
    store: Store, *, timeouts: int = 0, host: tuple[str, str] = ALICE, ok: int = 10
) -> None:
    """20 seconds of 10 requests each, and so many timeouts in the last."""
    if store.run(RUN) is None:
        settings = {"profile": "contest", "users": 64, "non_neutral": "`alice` is on this machine"}
        store.add_run(Run(id=RUN, verb="blast", started_at=S + 0.25, settings=json.dumps(settings)))
        store.end_run(RUN, ended_at=S + 20.0, client_ok=True)
    seconds = [
        tally(
            S + place,
            host=host,
            ok=ok,
            streamed=ok // 2,
            prompt_tokens=15 * ok,
            output_tokens=256 * ok,
            e2e=sketch(*[100.0] * ok),
            ttft=sketch(*[20.0] * (ok // 2)),
        )
        for place in range(20)
    ]
    if timeouts:
        kinds = (ErrorCount(kind="timeout", count=timeouts),)
        seconds.append(tally(S + 19, host=host, errors=timeouts, error_kinds=kinds))
    store.add_second(seconds)


def served(store: Store, *texts: tuple[float, str, str], stack: object = STACK) -> None:
    """What `toolkit serve` recorded, in the words that it uses."""
    store.add_run(Run(id=SERVE, verb="serve", started_at=S - 300.0, settings=json.dumps(stack)))
    for at, kind, text in texts:
        name, url = ENGINE
        store.add_event(
            Event(run=SERVE, at=at, kind=kind, text=text, name=name, url=url)  # type: ignore[arg-type]
        )


STARTS = (
    (S - 250.0, "mark", "ready after 41.2 s"),
    (S - 240.0, "mark", "cold TTFT 89000 ms, warm TTFT 219 ms"),
    (S + 5.0, "restart", "it refused connections"),
    (S + 9.0, "mark", "ready after 12.0 s"),
)


def log_of(*lines: dict[str, Any]) -> str:
    Path("requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return "requests.jsonl"


LINE = {
    "ts": S + 3.0,
    "request_id": "a",
    "team": "bob",
    "model": "m",
    "status": 200,
    "latency_ms": 5.0,
    "prompt_tokens": 1,
    "completion_tokens": 2,
}
REJECTED = LINE | {
    "team": "alice",
    "status": 429,
    "event": "rejection",
    "rejected": "team_queue_full",
}


def report(*words: str) -> dict[str, Any]:
    result = run(RUN, *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    found["by_code"] = {one["code"]: one for one in found["criteria"]}
    return found


def statuses(*words: str) -> dict[str, str]:
    return {code: one["status"] for code, one in report(*words)["by_code"].items()}


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["report", *words])


def test_each_criterion_is_met_by_what_the_store_and_the_log_hold(store: Store) -> None:
    blasted(store)
    served(store, *STARTS)
    words = ["--log", log_of(LINE, REJECTED), "--gpu-hour", "2", "--api-price", "0.15/0.60"]
    assert statuses(*words) == dict.fromkeys(
        (
            *("model_loading", "api_compatibility", "stability", "cost", "observability"),
            *("boundaries", "admission"),
        ),
        "met",
    )


def test_a_report_on_an_old_run_knows_the_stack_and_the_rejections_of_its_time(
    store: Store,
) -> None:
    blasted(store)
    served(store, *STARTS)
    store.end_run(SERVE, ended_at=S + 60.0, client_ok=None)
    store.add_run(Run(id="old", verb="proxy", started_at=S - 60.0, ended_at=S + 60.0))
    store.add_seen("old", [Seen(ts=S + place, status=429) for place in (1, 2, 3)])
    for place in range(60):
        began = S + 100.0 + place
        store.add_run(Run(id=f"p{place}", verb="proxy", started_at=began, ended_at=began + 1))
        store.add_run(Run(id=f"s{place}", verb="serve", started_at=began, ended_at=began + 1))
    found = report()["by_code"]
    assert "3 requests were answered 429" in found["admission"]["evidence"]
    assert found["model_loading"]["status"] == "met"


def test_each_criterion_is_not_met_where_they_hold_the_contrary(store: Store) -> None:
    blasted(store, ok=0, timeouts=200)
    open_stack = STACK | {"engines": [{"name": "engine", "host": "0.0.0.0", "flags": []}]}
    served(store, STARTS[0], stack=open_stack)
    shared = REJECTED | {"team": None, "rejected": "queue_full", "status": 503}
    nameless = {key: value for key, value in LINE.items() if key != "request_id"} | {"team": "bob"}
    words = ["--log", log_of(nameless, shared), "--gpu-hour", "2", "--api-price", "0.15/0.60"]
    assert set(statuses(*words).values()) == {"not met"}


def test_a_run_alone_leaves_open_what_it_cannot_know(store: Store) -> None:
    blasted(store)
    assert statuses() == {
        "model_loading": "unknown",
        "api_compatibility": "met",
        "stability": "met",
        "cost": "unknown",
        "observability": "unknown",
        "boundaries": "unknown",
        "admission": "unknown",
    }


@pytest.mark.parametrize(
    ("engine", "proxy", "told"),
    [
        ({"host": "0.0.0.0"}, {}, "listens to more than its own machine"),
        ({"host": "127.0.0.1", "flags": {"allowed-local-media-path": "/"}}, {}, "read its files"),
        ({"flags": [["trust_remote_code", ""]]}, {}, "runs code"),
        ({"flags": [["trust-remote-code", False]]}, {"media_hosts": ["*"]}, "fetch from anywhere"),
        ({}, None, "no proxy stands before the engines"),
    ],
)
def test_a_boundary_that_the_stack_leaves_open_is_named(
    store: Store, engine: dict[str, Any], proxy: object, told: str
) -> None:
    blasted(store)
    served(store, stack={"engines": [{"name": "e"} | engine], "proxy": proxy})
    found = report()["by_code"]["boundaries"]
    assert found["status"] == "not met"
    assert told in found["evidence"]


def test_what_serve_really_records_is_understood(store: Store) -> None:
    from toolkit.cli.serve.events import recorded
    from toolkit.proxy.config import Settings, UpstreamSetting
    from toolkit.serving.stack import EngineSetting, Stack

    blasted(store)
    upstream = UpstreamSetting(name="engine", url="http://127.0.0.1:8001")
    engine = EngineSetting(name="engine", flags=(("trust-remote-code", True),), host="0.0.0.0")
    stack = Stack(engines=(engine,), proxy=Settings(upstreams=(upstream,)))
    served(store, stack=json.loads(json.dumps(recorded(stack))))
    assert report()["by_code"]["boundaries"]["evidence"] == (
        "`engine` listens to more than its own machine; `engine` runs code that came with the weights"
    )


def test_settings_that_do_not_tell_of_media_leave_the_boundary_open(store: Store) -> None:
    blasted(store)
    served(store, stack=STACK | {"proxy": {"host": "0.0.0.0", "port": 8000}})
    found = report()["by_code"]["boundaries"]
    assert (found["status"], "not recorded" in found["evidence"]) == ("unknown", True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_stack_that_was_over_before_the_run_is_none_of_its_own(
    store: Store, is_killed: bool
) -> None:
    blasted(store)
    served(store, *STARTS[:2])
    if is_killed:  # it has no end, and another one began after it
        store.add_run(Run(id="7" * 12, verb="serve", started_at=S - 50.0))
        store.end_run("7" * 12, ended_at=S - 10.0, client_ok=None)
    else:
        store.end_run(SERVE, ended_at=S - 100.0, client_ok=None)
    assert statuses()["model_loading"] == statuses()["boundaries"] == "unknown"


def test_a_restart_that_serve_told_the_board_of_is_one_restart(store: Store) -> None:
    blasted(store, ok=4)  # 80 requests
    kinds = (ErrorCount(kind="http_500", count=20),)
    store.add_second([tally(S + 19, errors=20, error_kinds=kinds)])
    served(store, (S + 5.0, "restart", "the GPU is out of memory"))
    # as serve writes it for whatever blast is on: the clients' address, no run, the engine's name before the text
    name, url = ALICE
    text = "engine: the GPU is out of memory"
    store.add_event(Event(at=S + 5.0, kind="restart", text=text, name=name, url=url))
    # somebody else's words at another moment stay
    store.add_event(Event(at=S + 6.0, kind="restart", text=text, name=name, url=url))
    told = [(each["at"] - S, each["text"]) for each in report()["events"]]
    assert told == [(5.0, "the GPU is out of memory"), (6.0, text)]
    assert "2 out-of-memory errors of 100" in report()["by_code"]["stability"]["evidence"]


def test_figures_and_costs_are_those_of_the_run(store: Store) -> None:
    blasted(store, timeouts=2)
    found = report("--gpu-hour", "2.00", "--api-price", "0.15/0.60")
    (host,) = found["hosts"]
    # 200 ok in 20 s, 256 tokens each; 2 errors of 202
    assert (host["rps"], host["output_tokens_per_s"]) == (10, 2560)
    assert host["error_rate"] == pytest.approx(2 / 202)
    assert host["ttft_p95_ms"] == pytest.approx(20, rel=0.01)
    assert host["error_kinds"] == {"timeout": 2}
    # 10 requests a second of 271 tokens: 9,756,000 tokens an hour for 2.00
    assert found["costs"]["per_million_tokens"] == pytest.approx(2.00 / 9.756)
    # of a million tokens 15/271 at 0.15 and 256/271 at 0.60
    api = found["costs"]["api_per_million_tokens"]
    assert api == pytest.approx((15 * 0.15 + 256 * 0.60) / 271)


def test_each_host_of_a_bench_has_the_rate_that_the_bench_told_and_its_verdicts(
    store: Store,
) -> None:
    store.add_run(Run(id="r", verb="bench", started_at=S + 0.0, settings='{"concurrency": 8}'))
    fast = [timed(slot, planned_at=S + 50 + slot / 2, tokens=10) for slot in range(10)]
    bob = {"name": "bob", "url": "http://b:1"}
    slow = [timed(slot, planned_at=S + 50 + slot, tokens=10, **bob) for slot in range(10)]
    # the warm-up counts for nothing
    store.add_shots([*fast, *slow, timed(99, planned_at=S + 1.0, kind="warmup")])
    verdict = Verdict(code="response_cache", confidence="high", evidence="ids of earlier answers")
    unread = Verdict(code="not_judged", confidence="high", evidence="foreign_traffic: no counters")
    store.add_verdicts("r", {("alice", "http://h:1"): [verdict], ("bob", "http://b:1"): [unread]})
    found = json.loads(run("r", "--json").stdout)
    alice, bob = sorted(found["hosts"], key=lambda each: each["name"])
    # 4.5 s and 9 s between first and last send, and 280 ms for the last answer: 100 to its first token, 9 more of 20 each
    assert (alice["ok"], alice["rps"]) == (10, pytest.approx(10 / 4.78))
    assert (bob["duration_s"], bob["rps"]) == (pytest.approx(9.28), pytest.approx(10 / 9.28))
    assert [each["code"] for each in alice["verdicts"]] == ["response_cache"]
    told = run("r").stdout
    assert "Verdict response cache (high): ids of earlier answers" in told
    assert "Verdict not judged: foreign traffic: no counters" in told
    assert (len(alice["stretches"]), found["told"]) == (10, "8 requests at once")


def test_one_host_of_several_is_reported_on_by_its_name(store: Store) -> None:
    blasted(store, timeouts=50)
    blasted(store, host=BOB)
    assert [one["name"] for one in report()["hosts"]] == ["alice", "bob"]
    assert statuses()["stability"] == "not met"
    found = json.loads(run(f"{RUN}:bob", "--json").stdout)
    assert [one["name"] for one in found["hosts"]] == ["bob"]
    assert {one["code"]: one["status"] for one in found["criteria"]}["stability"] == "met"


def test_the_plain_text_names_every_criterion_and_what_it_rests_on(store: Store) -> None:
    blasted(store)
    result = run(RUN, "--gpu-hour", "2", "--api-price", "0.6")
    assert result.exit_code == 0
    # a page beside it is whole, and then nothing is printed; what is foreign in it, tests/contract/sinks holds
    assert run(RUN, "--html", "deep/report.html").stdout == ""
    assert Path("deep/report.html").read_text().startswith("<!doctype html>")
    for word in (
        "3 of 7 criteria met, 4 unknown",
        "met  Stability: 0 to 2 timeouts",
        "Not valid for ranking: alice is on this machine",
        "a million tokens, prompt and answer",
        "64 users",
    ):
        assert word in result.stdout


def test_a_late_workers_mark_alone_makes_a_run_not_valid(store: Store) -> None:
    blasted(store)
    store.add_event(Event(run=RUN, at=S + 9.0, kind="mark", text=f"{NOT_VALID}: `bob` is on it"))
    assert "Not valid for ranking: bob is on it; " in run(RUN).stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["feed"], 1, "Error: `data/toolkit.db` has no run `feed`"),
        ([f"{RUN}:carol"], 1, "has no host `carol` that was asked anything"),
        ([RUN, "--log", "nowhere.jsonl"], 1, "`nowhere.jsonl` cannot be read: no such file"),
        ([RUN, "--api-price", "cheap"], 2, "`cheap` is no price"),
        ([RUN, "--call-key-env", "KEY"], 2, "--call-key-env goes with --call"),
    ],
)
def test_what_cannot_be_is_refused(store: Store, words: list[str], code: int, told: str) -> None:
    blasted(store)
    result = run(*words)
    assert result.exit_code == code
    assert told in result.stderr


def test_what_cannot_be_reported_on_says_what_can(store: Store) -> None:
    store.add_run(Run(id="5" * 12, verb="sweep", started_at=S))
    result = run("5" * 12)
    assert result.exit_code == 1
    assert "holds no timed request" in result.stderr
    assert "toolkit sweep --show" in result.stderr
    with Store.open("other.db") as other:
        blasted(other)
        result = run(f"{RUN}:carol", "--db", "other.db")
    assert f"Hint: `toolkit report {RUN} --db other.db` reports on all" in result.stderr


def test_a_log_that_is_no_log_is_refused_by_its_line_and_a_torn_end_is_not(store: Store) -> None:
    blasted(store)
    Path("torn.jsonl").write_text(f'{json.dumps(LINE)}\n{{"ts": 1')
    assert statuses("--log", "torn.jsonl")["observability"] == "met"
    Path("bad.log").write_text("no JSON\n")
    assert "`bad.log` line 1 is not JSON" in run(RUN, "--log", "bad.log").stderr


@pytest.mark.slow
def test_openais_own_client_completes_a_call_or_tells_why_not(store: Store) -> None:
    blasted(store)
    with serve_in_thread("gptq-int4", time_scale=0.01) as server:
        good = report("--call", server.url)["by_code"]["api_compatibility"]
    assert good["status"] == "met"
    assert "completed a chat call with Qwen3.5-35B-A3B" in good["evidence"]
    bad = report("--call", "http://127.0.0.1:9")["by_code"]["api_compatibility"]
    assert bad["status"] == "not met"
    assert "OpenAI's client failed at http://127.0.0.1:9" in bad["evidence"]


@pytest.mark.slow
def test_a_call_to_a_listed_name_takes_its_key_from_the_list(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blasted(store)
    monkeypatch.setenv("ALICE_KEY", "alices-own")
    monkeypatch.setenv("OTHER_KEY", "another")
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)
    with serving(vllm_pages()) as server:
        Path("hosts.txt").write_text(f"alice {server.url} api_key_env=ALICE_KEY\n")
        report("--call", "alice")
        report("--call", "alice", "--call-key-env", "OTHER_KEY")
    sent = [headers["authorization"] for *_, headers in server.requests]
    assert list(dict.fromkeys(sent)) == ["Bearer alices-own", "Bearer another"]
