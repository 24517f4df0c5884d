"""`toolkit bench` as a user meets it: what it prints, what it keeps, what it refuses, how it ends."""

import asyncio
import csv
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.raw_server import RawServer, http, recorded, serving, vllm_pages
from support.screens import heard
from support.word_tokenizer import word_tokenizer

from toolkit.bench.summary import HostSummary
from toolkit.cli import main
from toolkit.sim.app import ROUTES, SimThread, serve_in_thread

KEYS = (
    "name url requests ok errors error_kinds rps output_tokens_per_s ttft_p50_ms ttft_p95_ms tpot_p50_ms"
    " itl_p95_ms e2e_p50_ms e2e_p95_ms e2e_p99_ms rtt_ms client_ok goodput verdicts"
).split()
"""The keys that were promised, in their order."""
NOBODY = "http://127.0.0.1:9"
"""The discard port: connections are refused at once."""
SHORT = ("--num-prompts", "8", "--max-concurrency", "4", "--max-tokens", "16")


Start = Callable[..., SimThread]
"""Starts a simulated server; its arguments change what it is."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start simulated servers, a hundred times as fast as life."""
    with ExitStack() as stack:
        yield lambda name="gptq-int4", **changes: stack.enter_context(
            serve_in_thread(name, **({"time_scale": 0.01} | changes))
        )


def bench(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


def said(*words: str, code: int = 0) -> list[dict[str, Any]]:
    result = bench(*words, "--json")
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def rows(query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("data/toolkit.db")) as file:
        return file.execute(query).fetchall()


# --- what it prints ----------------------------------------------------------------------------------


def test_json_is_one_object_a_host_with_the_promised_keys_first(start: Start) -> None:
    first, second = start(), start("fp8")
    Path("hosts.txt").write_text(f"a {first.url}\nb {second.url}\n")
    told = said(*SHORT)
    assert [(each["name"], each["url"]) for each in told] == [("a", first.url), ("b", second.url)]
    for each in told:
        assert list(each)[: len(KEYS)] == KEYS
        assert (each["requests"], each["ok"], each["errors"]) == (8, 8, 0)
        assert each["error_kinds"] == {}
        assert each["e2e_p99_ms"] is None  # 8 samples are fewer than 100
        assert each["goodput"] is None  # no limits were given
        assert {"code", "confidence", "evidence"} == set(each["verdicts"][0])


def test_every_key_is_explained_to_the_user() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()
    keys = {each.name for each in fields(HostSummary)} | {
        "levels",
        "best_concurrency",
        "knee_concurrency",
    }
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_the_table_names_every_host_and_what_explains_it(start: Start) -> None:
    Path("hosts.txt").write_text(f"quick {start().url}\ngone {NOBODY}\n")
    result = bench(*SHORT)
    assert result.exit_code == 0
    head, _, quick, gone, *notes = result.stdout.splitlines()
    assert head.split()[:4] == ["host", "ok", "req/s", "tok/s"]
    assert quick.split()[:2] == ["quick", "8/8"]
    assert gone.split()[:2] == ["gone", "0/8"]
    assert any("no answer  gone: " in line and "refused" in line for line in notes)
    assert any(line.startswith("TTFT: ") for line in notes)


def test_with_limits_the_table_tells_who_keeps_them(start: Start) -> None:
    result = bench(start().url, *SHORT, "--goodput", "e2e:1000s")
    assert "good" in result.stdout.splitlines()[0].split()
    assert "100%" in result.stdout.splitlines()[2]
    (told,) = said(start().url, *SHORT, "--goodput", "e2e:1000s")
    assert told["good_share"] == 1
    assert told["goodput"] == told["rps"]  # every ok answer is a good one


def test_a_sweep_ends_with_its_levels_and_a_picture(start: Start) -> None:
    (told,) = said(
        start().url, "--sweep-concurrency", "1,2,4", "--max-tokens", "8", "--num-prompts", "4"
    )
    # four waves at least: 4, 8 and 16 requests
    assert [(step["concurrency"], step["requests"]) for step in told["levels"]] == [
        (1, 4),
        (2, 8),
        (4, 16),
    ]
    (picture,) = Path("data").glob("sweep-*.png")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert told["run"] in picture.name


def test_a_sweep_shows_a_table_of_its_levels(start: Start) -> None:
    words = ("--sweep-concurrency", "1,2", "--max-tokens", "4", "--goodput", "e2e:1000s")
    result = bench(start().url, *words, "--chart", "picture.png", "--no-store")
    assert "2 at once is the most within the limits" in result.stdout
    assert "Picture: picture.png" in result.stderr
    assert Path("picture.png").exists()
    assert not Path("data").exists()


def test_a_picture_that_cannot_be_written_is_an_error_before_the_sweep() -> None:
    Path("file").write_text("")
    result = bench(NOBODY, "--sweep-concurrency", "1", "--chart", "file/picture.png")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: the picture `file/picture.png` cannot be written: not a directory\n\n"
        "Hint: Give another file: `--chart`\n"
    )
    assert result.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no `/dev/full`")
def test_a_disk_that_is_full_for_the_picture_costs_no_figure(start: Start) -> None:
    words = ("--sweep-concurrency", "1", "--max-tokens", "4", "--chart", "/dev/full", "--json")
    result = bench(start().url, *words)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] == 16
    error = heard(result.stderr)
    assert error.startswith("Error: the picture `/dev/full` cannot be written: no space")


def test_who_keeps_nothing_gets_no_picture_that_was_not_asked_for(start: Start) -> None:
    words = ("--sweep-concurrency", "1", "--max-tokens", "4", "--no-store", "--json")
    assert heard(bench(start().url, *words).stderr) == ""
    assert list(Path().iterdir()) == []


def test_a_sweep_that_nobody_answers_draws_no_picture() -> None:
    result = bench(NOBODY, "--sweep-concurrency", "1,2")
    assert result.exit_code == 1
    assert heard(result.stderr) == ""
    assert [file.name for file in Path("data").iterdir() if file.suffix == ".png"] == []


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CHAT_ANSWER = http(
    json.dumps(
        {
            "choices": [{"message": {"content": "Hm"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1},
        }
    )
)
EMBEDDED = http(
    '{"object":"list","model":"e","data":[{"index":0,"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":3,"total_tokens":3}}'
)


def bodies_of(server: RawServer, path: str) -> list[dict[str, Any]]:
    return [
        json.loads(body)
        for (_, asked, _), body in zip(server.requests, server.bodies, strict=True)
        if asked == path
    ]


def test_recorded_bodies_are_sent_as_they_were_but_for_the_model() -> None:
    recorded = {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Rain?"}],
        "tools": [TOOL],
        "response_format": {"type": "json_object"},
        "temperature": 0.5,
        "max_tokens": 900,
    }
    Path("bodies.jsonl").write_text(json.dumps({"method": "POST", "body": recorded}) + "\n")
    pages = vllm_pages() | {"/v1/chat/completions": CHAT_ANSWER}
    with serving(pages) as server:
        words = ("--dataset-path", "bodies.jsonl", "--repeat", "--num-prompts", "2", "--no-stream")
        (told,) = said(server.url, *words)
        (hotter,) = said(server.url, *words, "--temperature", "1", "--max-tokens", "4")
    assert (told["ok"], hotter["ok"]) == (2, 2)
    model = bodies_of(server, "/v1/chat/completions")[0]["model"]
    assert model != "theirs"
    sent = recorded | {"model": model, "stream": False}
    changed = sent | {"temperature": 1, "max_tokens": 4}
    assert bodies_of(server, "/v1/chat/completions") == [sent, sent, changed, changed]


def test_each_recorded_body_streams_as_it_did_unless_the_user_says_otherwise(start: Start) -> None:
    Path("bodies.jsonl").write_text('{"prompt":"a","stream":true}\n{"prompt":"b"}\n')
    words = (*SHORT, "--profile", "bodies.jsonl", "--repeat")
    said(start().url, *words)
    assert set(rows("SELECT prompt, stream FROM shots")) == {("line-1", 1), ("line-2", 0)}
    said(start().url, *words, "--no-stream", "--db", "other.db")
    with closing(sqlite3.connect("other.db")) as file:
        assert file.execute("SELECT DISTINCT stream FROM shots").fetchall() == [(0,)]


def test_prompts_and_answers_have_exactly_the_wanted_tokens(start: Start) -> None:
    lengths = ("--input-len", "256", "--output-len", "16:32")
    (told,) = said(start().url, "--num-prompts", "16", *lengths)
    # as the server's own `usage` tells, its chat template included
    assert set(rows("SELECT prompt_tokens FROM shots")) == {(256,)}
    answers = rows("SELECT max_tokens, output_tokens, prompt FROM shots")
    assert all(asked == got and 16 <= got <= 32 for asked, got, _ in answers)
    assert len({asked for asked, _, _ in answers}) > 4
    assert {prompt for *_, prompt in answers} == {"random"}
    assert told["prompt_tokens"] == 16 * 256
    assert told["verdicts"][0]["code"] == "clean"


@pytest.mark.parametrize("tokenize", [True, False])
@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions"])
def test_lengths_are_exact_for_both_kinds_of_text_and_without_a_tokenize_page(
    start: Start, monkeypatch: pytest.MonkeyPatch, endpoint: str, tokenize: bool
) -> None:
    if not tokenize:
        monkeypatch.delitem(ROUTES, "/tokenize")
    words = (
        "--endpoint",
        endpoint,
        "--input-len",
        "normal:100:20",
        "--repeat",
        "--max-tokens",
        "4",
    )
    result = bench(start().url, start("awq").url, "--num-prompts", "32", *words, "--json")
    assert result.exit_code == 0
    assert heard(result.stderr) == ""
    by_slot: dict[int, set[tuple[int, int]]] = {}
    for slot, tokens, ok in rows("SELECT slot, prompt_tokens, ok FROM shots"):
        by_slot.setdefault(slot, set()).add((tokens, ok))
    # equal at both hosts, and those of 16 prompts again and again
    assert all(len(seen) == 1 for seen in by_slot.values())
    assert all(by_slot[slot] == by_slot[slot + 16] for slot in range(16))
    lengths = {tokens for seen in by_slot.values() for tokens, _ in seen}
    assert len(lengths) > 8
    assert all(40 <= tokens <= 160 for tokens in lengths)


def test_a_host_that_counts_no_tokens_gets_estimates_and_that_is_said() -> None:
    mute = http('{"choices":[{"text":"Hm","finish_reason":"stop"}]}')
    with serving(vllm_pages() | {"/v1/completions": mute}) as server:
        words = ("--endpoint", "/v1/completions", "--no-stream", "--input-len", "40")
        result = bench(server.url, "--num-prompts", "2", *words)
    assert "Warning: " in result.stderr
    assert "the lengths of its prompts are estimates, a word for a token" in result.stderr
    sent = [body["prompt"] for body in bodies_of(server, "/v1/completions")]
    assert {len(prompt.split(" ")) for prompt in sent[1:]} == {40}


def test_one_failed_count_makes_no_prompt_an_estimate() -> None:
    asked: list[str] = []

    async def once_down(writer: asyncio.StreamWriter) -> bool:
        asked.append(bodies_of(server, "/v1/completions")[-1]["prompt"])
        answer = {"text": "Hm", "finish_reason": "stop"}
        usage = {"prompt_tokens": len(asked[-1].split(" ")), "completion_tokens": 1}
        status = "503 Service Unavailable" if len(asked) == 2 else "200 OK"
        writer.write(http(json.dumps({"choices": [answer], "usage": usage}), status))
        return True

    with serving(vllm_pages() | {"/v1/completions": once_down}) as server:
        words = ("--endpoint", "/v1/completions", "--no-stream", "--input-len", "40")
        result = bench(server.url, "--num-prompts", "2", "--max-concurrency", "1", *words)
    assert "estimates" not in result.stderr
    assert asked[1] == asked[2]
    assert {len(text.split(" ")) for text in asked[-2:]} == {40}


@pytest.mark.parametrize(
    ("endpoint", "said_words"),
    # before a completion its file puts a special token, as vLLM does; around a chat the template does
    [("/v1/chat/completions", 40), ("/v1/completions", 39)],
)
def test_a_tokenizers_file_counts_the_prompts_of_all_hosts_and_none_is_asked(
    endpoint: str, said_words: int
) -> None:
    word_tokenizer(Path("model/tokenizer.json"))
    answer = {"message": {"content": "Hm"}, "text": "Hm", "finish_reason": "stop"}
    whole = http(json.dumps({"choices": [answer]}))
    words = ("--endpoint", endpoint, "--no-stream", "--input-len", "40", "--num-prompts", "6")
    with (
        serving(vllm_pages() | {endpoint: whole}) as one,
        serving(vllm_pages() | {endpoint: whole}) as other,
    ):
        result = bench(one.url, other.url, *words, "--tokenizer", "model", "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert "estimates" not in result.stderr
    for server in (one, other):
        assert "/tokenize" not in server.paths()
        bodies = bodies_of(server, endpoint)
        texts = [body.get("prompt") or body["messages"][0]["content"] for body in bodies]
        assert [len(text.split(" ")) for text in texts] == [said_words] * 6
    assert "random prompts of 40 tokens by `model`" in Path("page.html").read_text()
    ((settings,),) = rows("SELECT settings FROM runs")
    assert json.loads(settings)["tokenizer"] == "model"


def test_by_a_tokenizers_file_the_template_comes_on_top(start: Start) -> None:
    file = word_tokenizer(Path("tokenizer.json"))
    said(start().url, *SHORT, "--input-len", "30:60", "--tokenizer", str(file))
    lengths = [tokens for (tokens,) in rows("SELECT prompt_tokens FROM shots")]
    # the simulator counts common words as one token each, and eight around a chat
    assert len(set(lengths)) > 2
    assert all(38 <= tokens <= 68 for tokens in lengths)


def test_a_tokenizers_file_that_cannot_count_is_one_error_before_any_request() -> None:
    Path("broken.json").write_text("{")
    for file, message in (
        ("nowhere", "`nowhere` cannot be read: no such file or directory"),
        ("broken.json", "`broken.json` is no tokenizer that works: "),
    ):
        result = bench(NOBODY, "--input-len", "40", "--tokenizer", file)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"Error: {message}")
        assert "Hint: Name a Hugging Face `tokenizer.json`" in result.stderr
    assert not Path("data").exists()
    alone = bench(NOBODY, "--tokenizer", "broken.json")
    assert (alone.exit_code, "--tokenizer goes with --input-len" in alone.stderr) == (2, True)


def test_a_length_below_the_chat_template_is_a_row_with_the_least(start: Start) -> None:
    (told,) = said(start().url, *SHORT, "--input-len", "5", code=1)
    assert (told["ok"], told["error_kinds"]) == (0, {"not_sent": 8})
    assert "no prompt can have 5 tokens here" in told["error"]


def test_completions_are_asked_for_with_a_prompt_and_timed_as_chats_are(start: Start) -> None:
    (told,) = said(start().url, *SHORT, "--endpoint", "/v1/completions")
    assert (told["ok"], told["verdicts"][0]["code"]) == (8, "clean")
    assert told["ttft_p50_ms"] is not None
    assert rows("SELECT DISTINCT output_tokens FROM shots") == [(16,)]


def test_a_recorded_completion_is_read_and_a_recorded_tokenize_page_counted() -> None:
    """What a real vLLM 0.32.0 answered, byte for byte: four tokens to a prompt of four."""
    stream = http(recorded("completions_stream.body"), content_type="text/event-stream")
    tokenized = http(recorded("tokenize.body"), content_type="application/json")
    pages = vllm_pages() | {"/v1/completions": stream, "/tokenize": tokenized}
    with serving(pages) as server:
        words = ("--endpoint", "/v1/completions", "--num-prompts", "2", "--max-tokens", "4")
        (told,) = said(server.url, *words)
        # every text has four tokens there, so that no word is one
        result = bench(server.url, *words, "--input-len", "40")
    assert (told["ok"], told["prompt_tokens"], told["output_tokens"]) == (2, 8, 8)
    assert "the lengths of its prompts are estimates" in result.stderr
    asked = bodies_of(server, "/tokenize")[0]
    assert asked == {"model": "tiny", "prompt": "Read"}


def test_of_embeddings_only_their_time_is_known() -> None:
    with serving(vllm_pages() | {"/v1/embeddings": EMBEDDED}) as server:
        words = ("--endpoint", "/v1/embeddings", "--num-prompts", "8")
        (told,) = said(server.url, *words)
        table = bench(server.url, *words)
    assert (told["ok"], told["prompt_tokens"]) == (8, 24)
    assert told["e2e_p50_ms"] > 0
    for unknown in ("ttft_p50_ms", "tpot_p50_ms", "itl_p95_ms", "output_tokens_per_s"):
        assert told[unknown] is None
    assert told["verdicts"] == [
        {
            "code": "not_judged",
            "confidence": "high",
            "evidence": "embeddings have no tokens to judge by",
        }
    ]
    assert table.stdout.splitlines()[2].split()[2:4] != ["-", "-"]
    sent = bodies_of(server, "/v1/embeddings")
    assert all(body.keys() == {"model", "input"} for body in sent)


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        (http('{"data":[]}'), "garbage", "the body has no embeddings"),
        (http('{"data":[{"embedding":[]}]}'), "garbage", "the body has no embeddings"),
        (http('{"error":{"message":"too long"}}'), "stream_error", "too long"),
        (http("nonsense"), "garbage", "the body is no JSON object"),
        (http('{"message":"no such model"}', "404 Not Found"), "http_404", "no such model"),
    ],
)
def test_what_is_no_embedding_is_an_error_of_its_kind(answer: bytes, kind: str, why: str) -> None:
    with serving(vllm_pages() | {"/v1/embeddings": answer}) as server:
        (told,) = said(server.url, "--endpoint", "/v1/embeddings", "--num-prompts", "2", code=1)
    assert told["error_kinds"] == {kind: 2}
    assert why in told["error"]


def test_sharegpt_conversations_are_a_dataset(start: Start) -> None:
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "x" * 32}]
    Path("share.json").write_text(json.dumps([{"id": "1", "conversations": turns}]))
    result = bench(start().url, *SHORT, "--dataset-path", "share.json", "--json")
    assert heard(result.stderr) == (
        "Note: The answers' limits are estimated from `share.json`: 4 characters a token\n"
    )
    assert rows("SELECT DISTINCT prompt, max_tokens FROM shots") == [("entry-1", 8)]


def test_means_stand_beside_the_medians_and_in_a_csv_and_a_page(start: Start) -> None:
    Path("hosts.txt").write_text(f"quick {start().url}\n<b>odd</b> {start('fp8').url}\n")
    result = bench(*SHORT, "--csv", "out/a.csv", "--html", "out/a.html", "--json")
    assert result.exit_code == 0, result.stderr
    assert {"Table: out/a.csv", "Page: out/a.html"} <= set(result.stderr.splitlines())
    told = [json.loads(line) for line in result.stdout.splitlines()]
    averages = "SELECT name, avg(ttft_ms), avg(tpot_ms), avg(e2e_ms) FROM shots JOIN hosts ON hosts.id = host_id"
    kept = {name: means for name, *means in rows(f"{averages} GROUP BY name")}
    for one in told:
        means = kept[one["name"]]
        assert (one["ttft_mean_ms"], one["tpot_mean_ms"], one["e2e_mean_ms"]) == pytest.approx(
            means
        )
    with Path("out/a.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["name"] for row in read] == ["quick", "<b>odd</b>"]
    assert [float(row["e2e_mean_ms"]) for row in read] == [one["e2e_mean_ms"] for one in told]
    assert read[0]["verdicts"] == "clean"
    page = Path("out/a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;odd&lt;/b&gt;" in page
    assert "<b>odd</b>" not in page
    for word in ("TTFT mean", "E2E mean", "Evidence", "of 2 hosts", "8 requests to each host"):
        assert word in page


def test_a_sweeps_csv_has_a_line_for_each_level_and_its_page_their_table(start: Start) -> None:
    words = ("--sweep-concurrency", "1,2", "--max-tokens", "4", "--no-store")
    result = bench(start().url, *words, "--csv", "a.csv", "--html", "a.html")
    assert result.exit_code == 0, result.stderr
    with Path("a.csv").open(newline="") as file:
        assert [(row["concurrency"], row["requests"]) for row in csv.DictReader(file)] == [
            ("1", "16"),
            ("2", "16"),
        ]
    assert "Levels of " in Path("a.html").read_text()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "\ufeff# a prompt, not a comment\n"),
        ("a.TOML", '\ufeff[[prompts]]\ntext = "Hi"\n'),
        ("a.Jsonl", '\ufeff{"prompt": "Hi"}\n'),
        ("a.ndjson", '{"prompt": "Hi"}'),
    ],
)
def test_a_file_of_prompts_is_read_by_its_ending(start: Start, name: str, text: str) -> None:
    Path(name).write_text(text)
    said(start().url, *SHORT, "--profile", name)
    # one prompt, named by its line or number: read as lines of text, TOML would be two
    assert len(rows("SELECT DISTINCT prompt FROM shots")) == 1


# --- what it keeps -----------------------------------------------------------------------------------


def test_every_request_is_kept_with_its_run_and_ledger(start: Start) -> None:
    (told,) = said(start().url, *SHORT, "--warmup", "3")
    ((run, verb, started, ended, client_ok),) = rows(
        "SELECT id, verb, started_at, ended_at, client_ok FROM runs"
    )
    assert (run, verb) == (told["run"], "bench")
    assert started < ended
    assert client_ok in (0, 1)
    kinds = dict(rows("SELECT kind, count(*) FROM shots GROUP BY kind"))
    assert kinds == {"warmup": 3, "unique": 6, "twin": 2}  # a quarter of 8 are twins
    ((requests, tokens),) = rows("SELECT requests, generation_tokens FROM ledgers")
    assert requests == 11
    assert [(tokens,)] == rows("SELECT sum(output_tokens) FROM shots")
    assert len(rows("SELECT * FROM verdicts")) == len(told["verdicts"])


def test_no_prompt_and_no_answer_text_is_kept(start: Start) -> None:
    Path("prompts.txt").write_text("Tell me about the zebracorn\n")
    said(start().url, *SHORT, "--profile", "prompts.txt")
    kept = b"".join(file.read_bytes() for file in Path("data").iterdir())
    assert b"zebracorn" not in kept


def test_no_store_makes_no_file(start: Start) -> None:
    said(start().url, *SHORT, "--no-store")
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("--unique",), {"unique": 8}),
        (("--repeat",), {"repeat": 8}),
        (("--unique", "--repeat"), {"unique": 6, "twin": 2}),
        ((), {"unique": 6, "twin": 2}),
    ],
)
def test_sameness_is_chosen_by_two_words(
    start: Start, words: tuple[str, ...], kinds: dict[str, int]
) -> None:
    said(start().url, *SHORT, *words)
    assert dict(rows("SELECT kind, count(*) FROM shots GROUP BY kind")) == kinds


@pytest.mark.parametrize(
    ("words", "streams"),
    [((), 8), (("--no-stream",), 0), (("--mix", "50"), 4), (("--profile", "contest"), 4)],
)
def test_streaming_is_the_users_word_then_the_profiles(
    start: Start, words: tuple[str, ...], streams: int
) -> None:
    said(start().url, *SHORT, *words)
    assert rows("SELECT sum(stream) FROM shots") == [(streams,)]


def test_a_rate_plans_its_sends_whatever_answers_take(start: Start) -> None:
    words = (
        "--request-rate",
        "50",
        "--arrival",
        "constant",
        "--num-prompts",
        "10",
        "--max-tokens",
        "8",
    )
    (told,) = said(start().url, *words)
    assert (told["rate"], told["concurrency"], told["ok"]) == (50, None, 10)
    planned = [at for (at,) in rows("SELECT planned_at FROM shots ORDER BY slot")]
    # one every 20 ms, to the microsecond that a wall clock of 1.8e9 s resolves
    assert [round((at - planned[0]) * 1000, 2) for at in planned] == [20 * n for n in range(10)]


def test_earlier_spellings_still_work(start: Start) -> None:
    words = ("--requests", "4", "--rate", "90", "--most-under-way", "3", "--max-tokens", "4")
    said(start().url, *words)
    said(start().url, "--requests", "4", "--concurrency", "3", "--max-tokens", "4")
    plans = [json.loads(plan) for (plan,) in rows("SELECT settings FROM runs ORDER BY started_at")]
    assert [(plan["requests"], plan["rate"], plan["concurrency"]) for plan in plans] == [
        (4, 90, 3),
        (4, None, 3),
    ]


def test_a_duration_ends_the_run(start: Start) -> None:
    (told,) = said(
        start().url, "--duration", "300ms", "--max-concurrency", "2", "--max-tokens", "4"
    )
    assert told["ok"] > 2
    last, first = rows("SELECT max(planned_at), min(planned_at) FROM shots")[0]
    assert last - first < 0.3


# --- what it refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("missing.txt",), "`missing.txt` cannot be read: no such file", "Put one host per line"),
        (
            (NOBODY, "--profile", "tailor"),
            "no profile is called `tailor`",
            "Known profiles: bench, chain, contest, long-prompt, ramp, shared-prefix, short-answer; or name a file",
        ),
        (
            (NOBODY, "--profile", "missing.txt"),
            "`missing.txt` cannot be read: no such file",
            "Known profiles: bench",
        ),
        (
            (NOBODY, "--profile", "empty.txt"),
            "`empty.txt` holds no prompt",
            "Write one prompt a line",
        ),
        (
            (NOBODY, "--profile", "./folder"),
            "`./folder` cannot be read: is a directory",
            "Known profiles: bench",
        ),
        (
            (NOBODY, "--profile", "binary.txt"),
            "`binary.txt` is not UTF-8 text",
            "Known profiles: bench",
        ),
        (
            (NOBODY, "--profile", "list.JSON"),
            "`list.JSON` is not JSON",
            "A line is, e.g., `{",
        ),
    ],
)
def test_bad_input_is_one_error_with_a_hint(
    words: tuple[str, ...], message: str, hint: str
) -> None:
    Path("empty.txt").write_text("\n \n")
    Path("folder").mkdir()
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("list.JSON").write_text('[\n{"prompt": "Hi"}\n')
    result = bench(*words)
    assert result.exit_code == 1
    error, empty, told = result.stderr.splitlines()
    assert error.startswith(f"Error: {message}")
    assert empty == ""
    assert told.startswith(f"Hint: {hint}")
    assert result.stdout == ""
    assert not Path("data").exists()


def test_no_host_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_HOSTS", "mine.txt")
    Path("mine.txt").write_text("# nobody\n")
    result = bench()
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: `mine.txt` names no host")


def test_an_empty_variable_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_HOSTS", "")
    assert bench().stderr == (
        "Error: `hosts.txt` cannot be read: no such file or directory\n\n"
        "Hint: Put one host per line, e.g., `alice http://10.0.0.4:8000 team=red`; `toolkit example "
        "hosts.txt` writes an example. To practise without servers: `toolkit sim fleet > hosts.txt &`\n"
    )


def test_a_key_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALICE_KEY", raising=False)
    Path("hosts.txt").write_text(f"alice {NOBODY} api_key_env=ALICE_KEY\n")
    result = bench()
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: `ALICE_KEY` is not set")


def test_a_model_that_no_host_serves_is_one_error(start: Start) -> None:
    Path("hosts.txt").write_text(f"alice {start(model='tiny').url}\n")
    result = bench("--model", "llama")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: no host serves the model: `alice` says it does not serve `llama` but `tiny`\n\n"
        "Hint: Name a served one with `--model`, or leave it out to take what each host serves\n"
    )


def test_a_model_that_one_host_serves_is_a_row_with_a_reason_at_the_others(start: Start) -> None:
    Path("hosts.txt").write_text(f"a {start(model='tiny').url}\nb {start(model='other').url}\n")
    first, second = said(*SHORT, "--model", "other")
    assert (first["ok"], first["error_kinds"]) == (0, {"not_sent": 8})
    assert first["error"].startswith("it does not serve `other` but `tiny`")
    assert second["ok"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--request-rate", "nan"),
            "no bench can have rate `nan`\n\nHint: Give 0.0001 to 10,000 a second",
        ),
        (
            ("--request-rate", "0"),
            "no bench can have rate `0.0`\n\nHint: Give 0.0001 to 10,000 a second",
        ),
        (("--request-rate", "1e-320"), "no bench can have rate `1e-320`\n\nHint: "),
        (
            ("--request-rate", "5", "--sweep-concurrency", "1,2"),
            "a sweep over concurrencies and a rate of `5` a second exclude each other",
        ),
        (("--sweep-concurrency", "2,2"), "the level `2` stands after `2`"),
        (("--num-prompts", "0"), "no bench can have requests `0`\n\nHint: Give at least 1"),
        (("--num-prompts", "99999999999999999999"), "is not in the range"),
        (("--warmup", "99999999999999999999"), "is not in the range"),
        (("--max-concurrency", "0"), "no bench can have concurrency `0`\n\nHint: Give 1 to"),
        (("--goodput", "speed:1s"), "`speed:1s` is no limit\n\nHint: Write limits of ttft"),
        (("--goodput", ""), "`` is no limit\n\nHint: Write limits of"),
        (("--temperature", "inf"), "no bench can have temperature `inf`"),
        # two words of which one would be passed over in silence
        (("--mix", "50", "--stream"), "--mix says how many stream"),
        (("--sweep-concurrency", "1,2", "--max-concurrency", "8"), "leave --max-concurrency out"),
        (("--arrival", "constant"), "--arrival goes with --request-rate"),
        (("--repeat", "--nonce", "end"), "--nonce marks unique prompts"),
        (("--chart", "a.png"), "--chart goes with --sweep-concurrency"),
        (("--sweep-concurrency", "1", "--chart", "a.svg"), "--chart writes a PNG"),
        (("--mix", "101"), "'--mix'"),
        (("--sweep-concurrency", "1,x"), "is no list of numbers"),
        (("--duration", "5"), "is no duration"),
        (("--profile",), "requires an argument"),
    ],
)
def test_a_wrong_command_line_exits_2(words: tuple[str, ...], message: str) -> None:
    result = bench(NOBODY, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert not Path("data").exists()


def test_both_words_for_sameness_may_bear_a_mark_anywhere(start: Start) -> None:
    (told,) = said(start().url, *SHORT, "--unique", "--repeat", "--nonce", "end")
    assert told["ok"] == 8


# --- how it ends -------------------------------------------------------------------------------------


def test_when_nobody_answers_the_exit_code_is_1() -> None:
    (told,) = said(NOBODY, *SHORT, code=1)
    assert (told["requests"], told["ok"]) == (8, 0)
    assert "refused" in told["error"]
