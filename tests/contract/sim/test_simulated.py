"""A simulated vLLM as its clients meet it: the recorded server's bytes and pages, its counters, and each preset's own fault."""

import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import CHAT, Client, Reply, ask, get, request
from contract.harness.fleets import fleet
from contract.harness.programs import ROOT, rows, run, toolkit, until

RECORDED = ROOT / "tests" / "data" / "vllm-0.32.0-cpu"
TEXT = "/v1/completions"
QUESTION = [{"role": "user", "content": "a b c d e f g h i j k l m"}]
"""13 tokens, 21 with the chat template's: as the recorded prompt."""
TINY = {"model": "tiny", "max_model_len": 512, "time_scale": 0.01}
HOSTS: dict[str, tuple[str, dict[str, Any]]] = {
    "idle": ("gptq-int4", TINY),
    "plain": ("gptq-int4", TINY),
    "counted": ("gptq-int4", TINY),
    "twin": ("gptq-int4", TINY),
    "other": ("gptq-int4", TINY | {"seed": 1}),
    "prefix": ("gptq-int4", TINY),
    "left": ("gptq-int4", TINY | {"time_scale": 1}),
    "keyed": ("gptq-int4", TINY | {"api_key": "secret"}),
    "v0": ("gptq-int4", TINY | {"dialect": "v0"}),
    "rust": ("gptq-int4", TINY | {"dialect": "rust"}),
    "without": ("gptq-int4", TINY | {"stats": False}),
    "pair": (
        "gptq-int4",
        TINY | {"engines": 2, "num_gpu_blocks": 100, "load": 4, "time_scale": 0.1},
    ),
    "small": ("gptq-int4", TINY | {"num_gpu_blocks": 32, "prefix_caching": False}),
    "chunks": ("gptq-int4", TINY | {"max_num_batched_tokens": 16, "step_overhead_s": 5.0}),
    "one": ("seq_limited", TINY | {"max_num_seqs": 1, "load": 3, "time_scale": 1}),
    "cached": ("cached", TINY | {"cache_header": True}),
    "first-token": ("first-token", TINY),
    "cut": ("flaky", TINY | {"cut_share": 1.0, "error_share": 0.0, "stream_error_share": 0.0}),
    "refusing": (
        "flaky",
        TINY | {"cut_share": 0.0, "error_share": 1.0, "stream_error_share": 0.0},
    ),
    "failing": ("flaky", TINY | {"cut_share": 0.0, "error_share": 0.0, "stream_error_share": 1.0}),
    "busy": ("cpu_bound", TINY | {"cpu_s_per_request": 100.0}),
}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with fleet(HOSTS) as running:
        yield running.urls


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def chat(url: str, **fields: Any) -> Reply:
    return ask(url, {"messages": QUESTION, "max_tokens": 4} | fields)


def text(url: str, prompt: object, **fields: Any) -> Reply:
    return ask(url, {"prompt": prompt} | fields, path=TEXT)


def numbers(url: str) -> dict[str, float]:
    """The page; what every series of one engine has in common is left out of its name."""
    lines = [each for each in get(url, "/metrics").body.decode().splitlines() if each[0] != "#"]
    common = r'engine="0",|,?model_name="tiny"(?=\})|model_name="tiny",'
    named = ((line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines)
    return {re.sub(r"\{\}", "", re.sub(common, "", name)): value for name, value in named}


def masked(body: bytes) -> bytes:
    """Without ids, times and the model's own words."""
    for pattern, mask in (
        (rb'"id":"([a-z]+)-[0-9a-f]{16}"', rb'"\1"'),
        (rb'"created":\d{10}', b'"created"'),
        (rb'"(content|text)":"(?:[^"\\]|\\.)+"', rb'"\1":"words"'),
        (rb'"root":"[^"]+"', b'"root"'),
        (rb'"vllm-0\.32\.0-[0-9a-f]{8}"', b'"fingerprint"'),
    ):
        body = re.sub(pattern, mask, body)
    return body


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize(
    ("path", "fields", "recording"),
    [
        (CHAT, {"messages": QUESTION, "max_tokens": 16}, "chat.json"),
        (CHAT, {"messages": QUESTION, "max_tokens": 16} | USAGE, "chat_stream.txt"),
        (CHAT, {"messages": QUESTION, "stream": True}, "chat_stream_nousage.body"),
        (CHAT, {"messages": QUESTION} | EACH, "chat_stream_contusage.body"),
        (TEXT, {"prompt": "a b c d", "max_tokens": 8}, "completions.body"),
        (TEXT, {"prompt": "a b c d"} | USAGE, "completions_stream.body"),
    ],
)
def test_an_answer_has_the_recorded_bytes(
    urls: dict[str, str], path: str, fields: dict[str, Any], recording: str
) -> None:
    said = recorded(recording)
    tokens = said.count(b'"delta":{"content"') or said.count(b'"text"')
    reply = ask(urls["plain"], {"ignore_eos": True, "max_tokens": tokens} | fields, path=path)
    assert masked(reply.body) == masked(said)
    assert reply.headers["server"] == "uvicorn"


@pytest.mark.parametrize(
    ("recording", "fields"),
    [
        ("err_malformed", b'{"model": "tiny", "messages":       }'),
        ("err_missing_messages", {"model": "tiny"}),
        ("err_empty_messages", {"messages": []}),
        ("err_bad_temp", {"messages": QUESTION, "temperature": -1}),
        ("err_maxtokens", {"messages": QUESTION, "max_tokens": 5000}),
        ("err_overlong", {"messages": [{"role": "user", "content": "word " * 600}]}),
        ("err_unknown_model", {"model": "nope", "messages": QUESTION}),
    ],
)
def test_a_request_is_refused_in_the_recorded_words(
    urls: dict[str, str], recording: str, fields: object
) -> None:
    reply = ask(urls["plain"], fields)
    assert reply.body == recorded(f"{recording}.body")
    assert reply.status == int(recorded(f"{recording}.status"))


def test_limits_are_vllms(urls: dict[str, str]) -> None:
    """21 tokens of a model of 512 leave 491; a text gets 16 when nobody says more."""
    url = urls["plain"]
    assert chat(url, max_tokens=491).status == 200
    assert "total of at least 513 tokens" in chat(url, max_tokens=492).json["error"]["message"]
    wishes = {"max_tokens": 9, "max_completion_tokens": 7, "ignore_eos": True}
    assert chat(url, **wishes).json["usage"]["completion_tokens"] == 7
    assert text(url, "hi", ignore_eos=True).json["usage"]["completion_tokens"] == 16
    assert [chat(url, max_tokens=each).status for each in (0, "many")] == [400, 400]
    ended = [chat(url, max_tokens=490, seed=each).json for each in range(8)]
    for each in ended:
        stopped = each["usage"]["completion_tokens"] < 490
        assert stopped == (each["choices"][0]["finish_reason"] == "stop")
    assert len({each["choices"][0]["finish_reason"] for each in ended}) == 2
    asked = chat(url, min_tokens=480, max_tokens=490, temperature=0).json["usage"]
    assert asked["completion_tokens"] >= 480


def test_a_key_guards_v1_and_nothing_else(urls: dict[str, str]) -> None:
    url = urls["keyed"]
    assert chat(url).body == recorded("v2/nokey_chat.body")
    assert [get(url, "/v1/models", key=key).status for key in ("wrong", "secret")] == [401, 200]
    assert [get(url, each).status for each in ("/metrics", "/version", "/health")] == [200] * 3
    assert text(url, "hi").status == 401
    assert ask(url, {"prompt": "hi"}, path="/invocations").status == 200


def test_small_pages_answer_as_recorded(urls: dict[str, str]) -> None:
    url = urls["plain"]
    assert get(url, "/version").body == recorded("version.json")
    assert get(url, "/load").body == recorded("load.body")
    assert masked(get(url, "/v1/models").body) == masked(recorded("v1_models.json"))
    counted = ask(url, {"messages": QUESTION}, path="/tokenize").json
    assert (counted["count"], counted["max_model_len"]) == (21, 512)
    assert (get(url, "/nowhere").status, get(url, CHAT).status) == (404, 405)
    assert get(urls["v0"], "/version").json == {"version": "0.7.3"}


def test_equal_servers_say_the_same_at_temperature_zero(urls: dict[str, str]) -> None:
    said = {
        name: chat(urls[name], max_tokens=490, temperature=0).text
        for name in ("plain", "twin", "other")
    }
    assert said["plain"] == said["twin"] != said["other"]
    url = urls["plain"]
    assert chat(url, max_tokens=16, seed=7).text == chat(url, max_tokens=16, seed=7).text
    assert chat(url, max_tokens=16).text != chat(url, max_tokens=16).text


def series(page: bytes) -> list[str]:
    """Every line without its number; the configuration's values are this machine's."""
    lines = page.decode().partition("# HELP vllm:")[2].splitlines()
    names = [line if line.startswith("#") else line.rpartition(" ")[0] for line in lines]
    return [
        re.sub(r'="[^"]*"', "", line) if "cache_config_info{" in line else line for line in names
    ]


def test_an_idle_page_has_every_recorded_line_in_its_order(urls: dict[str, str]) -> None:
    assert series(get(urls["idle"], "/metrics").body) == series(recorded("metrics_idle.txt"))
    page = get(urls["without"], "/metrics").body
    assert b"vllm:" not in page
    assert b"\nhttp_request_duration_highr_seconds_count 0.0\n" in page


def test_older_and_newer_servers_spell_their_pages_in_their_own_way(urls: dict[str, str]) -> None:
    old = get(urls["v0"], "/metrics").body.decode()
    assert '\nvllm:gpu_cache_usage_perc{model_name="tiny"} 0.0\n' in old
    assert '\nvllm:time_in_queue_requests_bucket{le="60.0",model_name="tiny"} 0.0\n' in old
    assert '\nvllm:request_prompt_tokens_bucket{le="500.0",model_name="tiny"} 0.0\n' in old
    assert "_created" not in old
    assert "engine=" not in old
    reply = get(urls["rust"], "/metrics")
    new = reply.body.decode()
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert "\n# TYPE vllm:prompt_tokens counter\n" in new
    assert '\nvllm:prompt_tokens_total{model_name="tiny",engine="0"} 0.0\n' in new
    assert not re.search("_created|mm_cache|process_|cache_config", new)
    assert new.endswith("\n# EOF\n")
    assert new.count("# EOF") == 1


def test_the_counters_are_what_was_asked(urls: dict[str, str]) -> None:
    url = urls["counted"]
    chat(url, ignore_eos=True)
    chat(url, max_tokens=6, ignore_eos=True, stream=True)
    text(url, list(range(20, 60)), max_tokens=1)
    assert chat(url, temperature=-1).status == 400
    get(url, "/health")
    found = numbers(url)
    wanted = {
        "vllm:prompt_tokens_total": 82,  # 21, 21 and 40
        "vllm:prompt_tokens_cached_total": 16,  # the second chat's first block
        'vllm:prompt_tokens_by_source_total{source="local_compute"}': 66,
        "vllm:generation_tokens_total": 11,  # 4, 6 and 1
        "vllm:iteration_tokens_total_sum": 77,  # 66 and 11
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:inter_token_latency_seconds_count": 8,  # 3 and 5
        "vllm:request_prompt_tokens_sum": 82,
        'vllm:request_prompt_tokens_bucket{le="20.0"}': 0,
        'vllm:request_prompt_tokens_bucket{le="50.0"}': 3,
        "vllm:request_generation_tokens_sum": 11,
        "vllm:e2e_request_latency_seconds_count": 3,
        'vllm:request_success_total{finished_reason="length"}': 3,
        "vllm:num_requests_running": 0,
        "vllm:kv_cache_usage_perc": 0,
        f'http_requests_total{{handler="{CHAT}",method="POST",status="2xx"}}': 2,
        f'http_requests_total{{handler="{CHAT}",method="POST",status="4xx"}}': 1,
        "http_request_duration_highr_seconds_count": 4,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert not [name for name in found if "/metrics" in name or "/health" in name]


def test_the_prefix_cache_shares_whole_blocks_by_all_that_stands_before_them(
    urls: dict[str, str],
) -> None:
    """The last token is always computed: of 32 known ones 16 are found."""
    url = urls["prefix"]
    hits = []
    one, two = list(range(100, 116)), list(range(200, 216))
    for prompt in (one + two, one + two, two + one, one + two + [7]):
        text(url, prompt, max_tokens=1)
        hits.append(numbers(url)["vllm:prefix_cache_hits_total"])
    assert hits == [0, 16, 16, 48]
    assert numbers(url)["vllm:prefix_cache_queries_total"] == 129


def test_a_small_kv_cache_preempts_and_loses_no_token(urls: dict[str, str]) -> None:
    """496 tokens fit; four answers of 200 need 836."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: ask(urls["small"], body), range(4)))
    assert [each.json["usage"]["completion_tokens"] for each in replies] == [200] * 4
    found = numbers(urls["small"])
    assert found["vllm:generation_tokens_total"] == 800
    assert found["vllm:num_preemptions_total"] == found["vllm:request_num_preemptions_sum"] > 0
    assert found["vllm:prefix_cache_queries_total"] == found["vllm:kv_cache_usage_perc"] == 0
    never = text(urls["small"], list(range(500)), max_tokens=1)
    assert (never.status, "do not fit" in never.json["error"]["message"]) == (500, True)


def test_a_prompt_is_read_in_as_many_steps_as_the_budget_wants(urls: dict[str, str]) -> None:
    """160 tokens, 16 at a time, 5 s each at a hundredth: no sleep is shorter than asked for."""
    text(urls["chunks"], list(range(160)), max_tokens=1)
    assert numbers(urls["chunks"])["vllm:time_to_first_token_seconds_sum"] > 0.44


def test_no_more_requests_run_than_there_is_room_for(urls: dict[str, str]) -> None:
    until(lambda: numbers(urls["one"])["vllm:num_requests_waiting"] == 2)
    assert numbers(urls["one"])["vllm:num_requests_running"] == 1


def test_engines_share_the_work_and_the_page_adds_up_their_blocks(urls: dict[str, str]) -> None:
    def spoke(engine: int) -> float:
        name = f'vllm:generation_tokens_total{{engine="{engine}",model_name="tiny"}} '
        return float(get(urls["pair"], "/metrics").body.decode().partition(name)[2].split()[0])

    until(lambda: spoke(0) > 0 and spoke(1) > 0)
    page = get(urls["pair"], "/metrics").body.decode()
    assert page.count('num_gpu_blocks="200"') == 2
    assert page.count('kv_cache_size_tokens="1600"') == 2
    assert page.count("vllm:admission_rejections_total{") == 2


def test_a_client_that_leaves_frees_its_place_and_is_counted_nowhere(urls: dict[str, str]) -> None:
    url = urls["left"]
    with Client(url) as client:
        body = {"messages": QUESTION, "stream": True, "ignore_eos": True}
        client.send(request(body))
        until(lambda: numbers(url)["vllm:kv_cache_usage_perc"] > 0)
    until(lambda: numbers(url)["vllm:num_requests_running"] == 0)
    found = numbers(url)
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert sum(value for name, value in found.items() if "request_success_total" in name) == 0


def test_a_response_cache_repeats_an_answer_without_the_engine(urls: dict[str, str]) -> None:
    url = urls["cached"]
    first, again = chat(url), chat(url)
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("MISS", "HIT")
    assert first.body == again.body
    assert chat(url, stream=True).text == first.text
    assert chat(url, max_tokens=3).headers["x-cache"] == "MISS"
    assert numbers(url)["vllm:request_params_n_count"] == 2


def test_first_token_says_one_token_and_calls_it_complete(urls: dict[str, str]) -> None:
    told = chat(urls["first-token"], max_tokens=100).json
    assert (told["usage"]["completion_tokens"], told["choices"][0]["finish_reason"]) == (1, "stop")


def test_injected_faults_look_as_a_client_sees_them(urls: dict[str, str]) -> None:
    assert not chat(urls["cut"]).is_whole
    assert not chat(urls["cut"], stream=True).is_whole
    assert chat(urls["refusing"]).status == 500
    failed = chat(urls["failing"], stream=True, max_tokens=50)
    assert (failed.status, failed.is_whole) == (200, True)
    assert failed.events[-1]["error"]["type"] == "InternalServerError"
    assert failed.body.endswith(b"data: [DONE]\n\n")


def test_the_api_process_pays_for_each_request_with_cpu(urls: dict[str, str]) -> None:
    """100 s at a hundredth; the other servers of this process share its own clock."""
    url, beside = urls["busy"], urls["idle"]
    name = "process_cpu_seconds_total"
    assert chat(url).status == 200
    assert numbers(url)[name] - numbers(beside)[name] > 0.5


def test_a_switcher_falls_and_comes_back_as_another_model(tmp_path: Path) -> None:
    words = ("--personality", "switcher", "--port", 0, "--time-scale", 0.002, "--startup", "0.2s")
    with toolkit("sim", "serve", *words, cwd=tmp_path) as served:
        url = served.line(r"http://\S+")[0]
        assert chat(url, ignore_eos=True).status == 200
        assert numbers(url)[f'http_requests_total{{handler="{CHAT}",method="POST",status="2xx"}}']

        def root() -> str:
            try:
                return str(get(url, "/v1/models").json["data"][0]["root"])
            except ConnectionError:
                return "refused"

        assert root().endswith("AWQ")
        served.process.send_signal(signal.SIGUSR1)
        until(lambda: root() == "refused")
        until(lambda: root().endswith("Int4"))
        assert not [name for name in numbers(url) if CHAT in name]


def test_the_list_names_every_preset_that_can_be_served(tmp_path: Path) -> None:
    names = [each["name"] for each in rows(run("sim", "list", "--json", cwd=tmp_path).stdout)]
    assert names[:9] == [
        *("fp8", "awq", "gptq-int4", "cached", "first-token"),
        *("switcher", "cold", "flaky", "drip"),
    ]
    assert {preset for preset, _ in HOSTS.values()} <= set(names)
    wrong = run("sim", "serve", "--set", "num_gpu_blocks=1", "--port", 0, cwd=tmp_path)
    assert wrong.returncode == 1
    assert "`num_gpu_blocks`" in wrong.stderr
