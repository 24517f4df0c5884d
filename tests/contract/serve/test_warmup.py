"""`toolkit warmup`: what it asks in which order, what it says of cold and warm, and what it leaves in caches."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract.harness.fleets import fleet
from contract.harness.programs import free_port, rows, run, toolkit
from contract.harness.servers import Answer, Asked, Server, answer, chat, server, vllm_pages

KEYS = set(
    "name url model error measure cold_ttft_ms warm_ttft_ms cold_e2e_ms warm_e2e_ms ratio concurrency levels agreed"
    " requests errors rounds compiled late_compilations seeded took_s".split()
)
QUICK = ("--max-tokens", 2, "--tolerance", 1, "--rounds", 100, "--json")
JIT = "WARNING 11-22 10:00:00 [jit_monitor.py:137] Triton kernel JIT compilation during inference: {}. This causes a latency spike; x\n"


def events(*texts: str) -> bytes:
    """A streamed answer."""
    parts: list[dict[str, Any]] = [{"delta": {"content": text}} for text in texts]
    parts.append({"delta": {}, "finish_reason": "stop"})
    lines = [
        json.dumps({"id": "1", "model": "tiny", "choices": [{"index": 0, **each}]})
        for each in parts
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": len(texts), "total_tokens": 9}
    lines.append(json.dumps({"id": "1", "model": "tiny", "choices": [], "usage": usage}))
    text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
    return answer(text, content_type="text/event-stream")


def pages(before: Callable[[dict[str, Any]], bytes | None] = lambda _: None) -> dict[str, Answer]:
    """A vLLM that streams to who asks for it; `before` may answer in its stead."""

    def reply(asked: Asked) -> None:
        body = json.loads(asked.body)
        asked.send(before(body) or (events("Hi", "!") if body["stream"] else chat()))

    models = answer({"object": "list", "data": [{"id": "tiny", "max_model_len": 512}]})
    return vllm_pages() | {"/v1/models": models, "/v1/chat/completions": reply}


def bodies(of: Server) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in of.asked if each.path == "/v1/chat/completions"]


def warmup(*words: object, cwd: Path) -> tuple[int, list[dict[str, Any]]]:
    done = run("warmup", *words, cwd=cwd)
    return done.returncode, rows(done.stdout)


def phases(told: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["phase"], each["concurrency"]) for each in told["rounds"]]


def test_each_level_once_the_highest_until_two_rounds_agree_then_all_once_more(
    tmp_path: Path,
) -> None:
    with server(pages()) as engine:
        code, (told,) = warmup(engine.url, "--max-num-seqs", 6, *QUICK, cwd=tmp_path)
        first = len(bodies(engine))
        warmup(engine.url, "--concurrency", 1, *QUICK, cwd=tmp_path)
    assert code == 0
    assert set(told) == KEYS
    assert (told["model"], told["error"], told["errors"], told["agreed"]) == ("tiny", None, 0, True)
    levels = [1, 2, 4, 6]
    settled = sum(phase == "settle" for phase, _ in phases(told))
    assert phases(told) == [
        *(("cold", level) for level in levels),
        *[("settle", 6)] * settled,
        *(("probe", level) for level in levels),
    ]
    # a probe of a low level is of four requests at least: 4 x 1, 2 x 2, 4, 6
    assert [each["requests"] for each in told["rounds"][-4:]] == [4, 4, 4, 6]
    assert told["requests"] == sum(each["requests"] for each in told["rounds"]) == first
    # no two are alike, also of the next warm-up: no cache has known one
    asked = [json.dumps(each["messages"]) for each in bodies(engine)]
    assert len(set(asked)) == len(asked) > told["requests"]
    assert {each["max_tokens"] for each in bodies(engine)} == {2}
    assert (told["compiled"], told["late_compilations"]) == (None, None)


def test_cold_and_warm_are_of_the_same_load(tmp_path: Path) -> None:
    with fleet({"one": ("cold", {"cold_s": 50.0, "time_scale": 0.02})}) as fakes:
        words = ("--concurrency", "1,3", "--structured", "--long", *QUICK)
        code, (told,) = warmup(fakes.urls["one"], *words, cwd=tmp_path)
    assert (code, told["measure"]) == (0, "ttft")
    loads = [(each["kind"], each["concurrency"]) for each in told["levels"]]
    assert loads == [("plain", 1), ("plain", 3), ("structured", 3), ("long", 3)]
    for load in told["levels"]:
        own = [
            each["ttft_ms"]
            for each in told["rounds"]
            if (each["kind"], each["concurrency"]) == (load["kind"], load["concurrency"])
        ]
        # the first of them, and the last
        assert (load["cold_ms"], load["warm_ms"]) == (own[0], own[-1])
        assert load["ratio"] == pytest.approx(own[0] / own[-1])
    first = told["levels"][0]
    names = ("concurrency", "cold_ttft_ms", "warm_ttft_ms", "ratio")
    assert [told[name] for name in names] == [
        first[name] for name in ("concurrency", "cold_ms", "warm_ms", "ratio")
    ]
    # a second is built into the first answer
    assert told["cold_ttft_ms"] > 1000
    assert told["cold_ttft_ms"] > 2 * told["warm_ttft_ms"]


def test_without_streams_whole_answers_are_timed(tmp_path: Path) -> None:
    with server(pages()) as engine:
        words = ("--concurrency", 1, "--no-stream", "--structured", *QUICK)
        code, (told,) = warmup(engine.url, *words, cwd=tmp_path)
    assert code == 0
    assert (told["measure"], told["cold_ttft_ms"]) == ("e2e", None)
    assert told["cold_e2e_ms"] > 0
    assert not any(each["stream"] for each in bodies(engine))
    asked = [each for each in bodies(engine) if "response_format" in each]
    assert {each["response_format"]["type"] for each in asked} == {"json_schema", "json_object"}


def test_long_prompts_have_shares_of_what_fits(tmp_path: Path) -> None:
    with server(pages()) as engine:
        words = ("--concurrency", 1, "--long", *QUICK)
        code, (told,) = warmup(engine.url, *words, cwd=tmp_path)
    assert (code, told["errors"]) == (0, 0)
    # 510 tokens fit beside the answer's 2; by the server's word a prompt of these has 7, of about 80 characters
    lengths = sorted(len(each["messages"][0]["content"]) for each in bodies(engine))[-6:]
    assert lengths[-1] > 3 * 0.9 * 510
    assert lengths[0] < lengths[2] < lengths[4]


def test_the_clients_own_come_last_and_are_sent_as_clients_send_them(tmp_path: Path) -> None:
    with server(pages()) as engine:
        profile = tmp_path / "p.toml"
        profile.write_text(
            'summary = "one"\nmax_tokens = 9\n[[prompts]]\nname = "hi"\ntext = "Hi"\n'
        )
        words = ("--concurrency", "1,2", "--profile", profile, *QUICK)
        code, (told,) = warmup(engine.url, *words, cwd=tmp_path)
    assert (code, told["seeded"]) == (0, 2)
    assert phases(told)[-1][0] == "seed"
    own = [
        each for each in bodies(engine) if each["messages"] == [{"role": "user", "content": "Hi"}]
    ]
    assert own == bodies(engine)[-2:]
    # two at a time: which of them comes first is chance
    assert sorted((each["max_tokens"], each["stream"]) for each in own) == [(9, False), (9, True)]


def test_a_host_that_is_down_or_refuses_is_a_row_with_a_reason(tmp_path: Path) -> None:
    def refuse(_: dict[str, Any]) -> bytes:
        return answer({"error": {"message": "no"}}, "500 Internal Server Error")

    dead = f"127.0.0.1:{free_port()}"
    with server(pages()) as well, server(pages(refuse)) as ill:
        words = ("--concurrency", "1,2", *QUICK)
        code, told = warmup(well.url, ill.url, dead, *words, cwd=tmp_path)
        assert code == 0
        assert [each["measure"] for each in told] == ["ttft", None, None]
        assert told[1]["rounds"][0]["error_kinds"] == {"http_500": 1}
        assert phases(told[1]) == [("cold", 1)]
        assert "connection refused" in told[2]["error"]
        code, told = warmup(ill.url, dead, *words, cwd=tmp_path)
        assert code == 1
        done = run("warmup", dead, well.url, "--concurrency", "1", cwd=tmp_path)
    assert "connection refused" in done.stdout
    assert "warm after " in done.stdout


def test_a_server_that_stops_answering_is_not_called_warm(tmp_path: Path) -> None:
    asked = 0

    def gone(_: dict[str, Any]) -> bytes | None:
        nonlocal asked
        asked += 1
        return answer({"error": {"message": "gone"}}, "500 x") if asked > 3 else None

    with server(pages(gone)) as engine:
        _, (told,) = warmup(engine.url, "--concurrency", "1,2", *QUICK, cwd=tmp_path)
    assert phases(told) == [("cold", 1), ("cold", 2), ("settle", 2)]
    assert told["error"].startswith("it stopped answering: ")
    assert (told["agreed"], told["errors"]) == (False, 2)


def test_a_server_that_never_answers_takes_the_limit_and_no_more(tmp_path: Path) -> None:
    never = threading.Event()

    def hang(_: dict[str, Any]) -> None:
        never.wait(60)

    with server(pages(hang)) as engine:
        code, (told,) = warmup(engine.url, "--limit", "1s", "--json", cwd=tmp_path)
        never.set()
    assert code == 1
    assert phases(told) == [("cold", 1)]
    assert told["error"] == "no whole answer within 1 s"


def test_what_is_compiled_in_the_probe_is_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(JIT.format("before_us"))
    asked = 0

    def compiling(_: dict[str, Any]) -> None:
        nonlocal asked
        asked += 1
        # cold, one round to settle, and a probe of four
        with log.open("a") as file:
            if asked == 1:
                file.write(JIT.format("first"))
            if asked == 4:
                file.write(JIT.format("late"))

    with server(pages(compiling)) as engine:
        words = ("--concurrency", 1, "--rounds", 1, "--stream", "--log", log, "--json")
        _, (told,) = warmup(engine.url, *words, cwd=tmp_path)
    assert told["compiled"] == 1
    assert told["late_compilations"] == ["Triton kernel JIT compilation during inference: late"]


def test_a_response_cache_that_was_warmed_answers_the_clients_first_request(tmp_path: Path) -> None:
    with fleet({"bob": ("cached", {"time_scale": 0.02})}) as fakes:
        url = fakes.urls["bob"]
        words = ("--concurrency", "1,2", "--profile", "contest", *QUICK)
        _, (told,) = warmup(url, *words, cwd=tmp_path)
        # two prompts, each as a stream and whole
        assert told["seeded"] == 4


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with fleet({"slow": ("cold", {"cold_s": 30.0, "time_scale": 0.02})}) as fakes:
        words = (
            fakes.urls["slow"],
            "--json",
            "--max-tokens",
            2,
            "--rounds",
            1000,
            "--tolerance",
            0.01,
        )
        with toolkit("warmup", *words, cwd=tmp_path) as running:
            running.line(r"1 at once \(cold\)")
            assert running.end() == 130
    (told,) = rows("\n".join(running.out))
    assert told["error"] == "it was stopped"
    assert told["rounds"][0]["phase"] == "cold"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seen", "--profile", "contest"), "two sources"),
        (("--run", "x"), "goes with --seen"),
        (("--concurrency", "0,1"), "at least 1"),
        (("--limit", "9"), "no duration"),
        (("--log", "no-such-file"), "no-such-file"),
        (("--tolerance", "0"), "0.0"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_exit_2(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run("warmup", "127.0.0.1:1", *words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True)
