"""`toolkit capture FILE...` as a user meets it: what it prints, what it keeps, how it ends."""

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from contract.harness.packets import Conversation, Frame, ok, pcap, post
from support.capturing import COMMAND, Ran, capture, capturing, chat

from toolkit.cli import main
from toolkit.store import Store

KEYS = (
    "ts client method path model stream max_tokens temperature prompt_key exact_key new"
    " unique_so_far prompt_chars prompt_preview damaged"
).split()
"""The keys that were promised, and those of the summary."""
SUMMARY = "requests unique kernel_drops app_drops gaps truncated encrypted unparsed".split()
CLIENT_HELLO = bytes.fromhex("16030100050100000100")


def talk(*payloads: bytes, **more: object) -> list[Frame]:
    conversation = Conversation(**more)
    conversation.open()
    for payload in payloads:
        conversation.client(payload)
        conversation.server(ok())
    conversation.close()
    return conversation.frames


def file(folder: Path, *payloads: bytes, name: str = "a.pcap", **more: object) -> Path:
    path = folder / name
    path.write_bytes(pcap(talk(*payloads, **more)))
    return path


POEM = chat("Write a poem", stream=True, max_tokens=64, temperature=0.5)
STORY = chat("Tell a story")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return file(tmp_path, post(POEM), post(STORY), post(POEM), b"GET /metrics HTTP/1.1\r\n\r\n")


# --- JSON -----------------------------------------------------------------------------------------


def test_each_request_is_one_object_and_the_losses_are_the_last(
    tmp_path: Path, three: Path
) -> None:
    ran = capture(three, "--json", "--no-store", cwd=tmp_path)
    assert ran.code == 0
    poem, story, again, metrics = ran.requests
    assert list(poem)[:15] == KEYS
    assert list(poem) == list(metrics)
    assert (poem["method"], poem["path"]) == ("POST", "/v1/chat/completions")
    assert (poem["model"], poem["stream"], poem["max_tokens"]) == ("tiny", True, 64)
    assert (poem["temperature"], poem["damaged"], poem["prompt_preview"]) == (0.5, False, None)
    assert [one["new"] for one in ran.requests] == [True, True, False, None]
    assert [one["unique_so_far"] for one in ran.requests] == [1, 2, 2, 2]
    assert again["prompt_key"] == poem["prompt_key"] != story["prompt_key"]
    assert again["exact_key"] == poem["exact_key"]
    assert (metrics["path"], metrics["prompt_key"], metrics["model"]) == ("/metrics", None, None)
    assert list(ran.summary)[:8] == SUMMARY
    assert (ran.summary["requests"], ran.summary["unique"]) == (4, 2)
    assert "Lost: kernel drops 0, application drops 0, gaps 0" in ran.err
    assert "4 requests (3 with a prompt), 2 unique prompts" in ran.err


def test_bodies_are_printed_as_sent_and_only_where_asked_for(tmp_path: Path, three: Path) -> None:
    ran = capture(three, "--json", "--bodies", cwd=tmp_path)
    assert [one["body"] for one in ran.requests] == [
        POEM.decode(),
        STORY.decode(),
        POEM.decode(),
        None,
    ]
    everything = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir())
    assert b"Write a poem" not in everything  # printed, never kept
    assert "body" not in capture(three, "--json", "--no-store", cwd=tmp_path).requests[0]


def test_secrets_of_the_head_appear_nowhere(tmp_path: Path) -> None:
    secret = post(POEM, headers=[("Authorization", "Bearer s3cr3t"), ("Cookie", "id=s3cr3t")])
    path = file(tmp_path, secret)
    ran = capture(path, "--json", "--bodies", "--store-prompts", "--jsonl", "a.jsonl", cwd=tmp_path)
    assert len(ran.requests) == 1
    kept = [*(tmp_path / "data").iterdir(), tmp_path / "a.jsonl"]
    everything = b"".join(path.read_bytes() for path in kept) + (ran.out + ran.err).encode()
    assert b"s3cr3t" not in everything


def test_a_client_is_a_hash_that_no_other_capture_shares(tmp_path: Path, three: Path) -> None:
    first, second = (
        {one["client"] for one in capture(three, "--json", "--no-store", cwd=tmp_path).requests}
        for _ in range(2)
    )
    assert len(first) == len(second) == 1
    assert first != second
    assert len(next(iter(first))) == 12
    shown = capture(three, "--json", "--no-store", "--show-clients", cwd=tmp_path).requests
    assert {one["client"] for one in shown} == {"10.0.0.1"}


# --- for a person -----------------------------------------------------------------------------------


def test_the_page_says_how_much_repeats_what_leads_and_what_was_lost(
    tmp_path: Path, three: Path
) -> None:
    ran = capture(three, cwd=tmp_path)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "4 requests (3 with a prompt), 2 unique prompts, 33.3 % repeats"
    assert "66.7 % of the prompts streamed, 1 client" in lines[1]
    assert [line.split()[1:] for line in lines if "%" in line][2:] == [
        ["2", "66.7", "%"],
        ["1", "33.3", "%"],
    ]
    assert "paths: /v1/chat/completions 3, /metrics 1" in lines
    assert "models: tiny 3" in lines
    assert any(line.startswith("Lost: kernel drops 0, ") for line in lines)
    assert "begins" not in ran.out
    assert "Write" not in ran.out
    assert "Next: `toolkit workload`" in ran.err
    assert "\x1b" not in ran.out + ran.err


def test_a_prompt_s_beginning_is_shown_where_texts_are_kept(tmp_path: Path, three: Path) -> None:
    two = file(tmp_path, post(chat("[red]alarm")), name="b.pcap", sport=40001, dport=8001)
    two.write_bytes(gzip.compress(two.read_bytes()))
    words = ("--port", "8000", "--port", "8001", "--store-prompts", "--full", "--db", "t.db")
    ran = capture(three, two, *words, cwd=tmp_path)
    assert "Write a poem" in ran.out
    assert "[red]alarm" in ran.out
    assert "statuses: 200 5" in ran.out
    with Store.open_readonly(tmp_path / "t.db") as store:
        (run,) = store.runs()
        texts = {one.asked.prompt_text for one in store.seen(run.id) if one.asked}
    assert any("Write a poem" in text for text in texts if text)


# --- what is kept -------------------------------------------------------------------------------------


def test_the_store_has_each_request_and_how_the_capture_went(tmp_path: Path, three: Path) -> None:
    ran = capture(three, "--json", "--db", "t.db", cwd=tmp_path)
    with Store.open_readonly(tmp_path / "t.db") as store:
        (run,) = store.runs(verb="capture")
        seen = list(store.seen(run.id))
        told = store.capture(run.id)
    assert ran.summary["run"] == run.id
    assert [one.path for one in seen] == [one["path"] for one in ran.requests]
    assert [one.asked and one.asked.exact_key for one in seen] == [
        one["exact_key"] for one in ran.requests
    ]
    assert all(one.asked.prompt_text is None for one in seen if one.asked)
    assert (told["requests"], told["unique"], told["gaps"]) == (4, 2, 0)
    assert run.ended_at is not None
    assert run.client_ok is True
    settings = json.loads(run.settings)
    assert (settings["files"], settings["ports"]) == ([str(three)], [8000])


def test_a_capture_without_a_request_leaves_no_run(tmp_path: Path) -> None:
    path = file(tmp_path, dport=9000)
    assert capture(path, "--db", "t.db", cwd=tmp_path).code == 1
    with Store.open_readonly(tmp_path / "t.db") as store:
        assert store.runs() == []


def test_a_jsonl_file_has_the_lines_that_json_prints(tmp_path: Path, three: Path) -> None:
    ran = capture(three, "--json", "--no-store", "--jsonl", "a.jsonl", cwd=tmp_path)
    written = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert written == ran.requests


def test_a_jsonl_file_is_rotated(tmp_path: Path) -> None:
    path = file(tmp_path, *[post(chat(f"prompt {n}")) for n in range(30)])
    words = ["--jsonl", "a.jsonl", "--rotate", "4KiB", "--keep", "2", "--no-store"]
    ran = capture(path, *words, cwd=tmp_path)
    assert ran.code == 0
    files = sorted(tmp_path.glob("a.jsonl*"))
    assert [one.name for one in files] == ["a.jsonl", "a.jsonl.1", "a.jsonl.2"]
    assert all(0 < one.stat().st_size <= 4096 for one in files)
    assert "only 2 old files are kept" in ran.err


# --- sources ----------------------------------------------------------------------------------------


def test_a_pipe_is_read_as_it_comes(tmp_path: Path, three: Path) -> None:
    with capturing("-", "--json", "--no-store", cwd=tmp_path, is_live=False, stdin=-1) as running:
        data = three.read_bytes()
        running.process.stdin.write(data[:-10])
        running.process.stdin.flush()
        # the pipe stays open, and the reader of our output has them all the same
        assert [running.line()["path"] for _ in range(4)][3] == "/metrics"
        running.process.stdin.write(data[-10:])
        running.process.stdin.close()
        running.process.wait(20)


@pytest.mark.slow
def test_a_pipe_that_brings_nothing_gets_a_sign_of_life(tmp_path: Path) -> None:
    with capturing("-", "--no-store", cwd=tmp_path, is_live=False, stdin=-1) as running:
        running.process.stdin.write(pcap([]))
        running.process.stdin.flush()
        running.wait_for("no packets on port 8000 yet\n")


def test_ctrl_c_that_reaches_the_writer_of_a_pipe_too_costs_nothing_of_it(
    tmp_path: Path, three: Path
) -> None:
    data = three.read_bytes()
    with capturing("-", "--json", "--no-store", cwd=tmp_path, is_live=False, stdin=-1) as running:
        running.process.stdin.write(data[:600])
        running.process.stdin.flush()
        running.line()  # it runs, and reads
        running.process.send_signal(signal.SIGINT)
        running.process.stdin.write(data[600:])  # as tcpdump does at its end
        running.process.stdin.close()
        rest = [json.loads(line) for line in running.process.stdout]
        running.process.wait(30)
    assert running.process.returncode == 0
    assert rest[-1]["summary"]["requests"] == 4


def test_a_growing_file_is_followed_until_it_is_stopped(tmp_path: Path) -> None:
    frames = talk(post(POEM), post(STORY))
    path = tmp_path / "a.pcap"
    first, whole = pcap(frames[:6]), pcap(frames)
    path.write_bytes(first)
    with capturing(
        path, "--follow", "--json", "--no-store", cwd=tmp_path, is_live=False
    ) as running:
        assert running.line()["new"] is True
        with path.open("ab") as growing:
            growing.write(whole[len(first) :])
        assert running.line()["unique_so_far"] == 2
        ran = running.end()
    assert ran.code == 0
    assert ran.summary["requests"] == 2


def test_only_the_paths_asked_for_are_told(tmp_path: Path, three: Path) -> None:
    ran = capture(three, "--json", "--no-store", "--path", "/v1/*", cwd=tmp_path)
    assert ran.summary["requests"] == 3
    assert ran.summary["left_out"] == 1
    assert "1 requests for other paths than `/v1/*` left out" in ran.err
    # a damaged one whose path is not known is never left out
    frames = talk(post(chat("x" * 4_000)))
    (tmp_path / "b.pcap").write_bytes(pcap(frames[:3] + frames[4:]))
    ran = capture("b.pcap", "--json", "--no-store", "--path", "/v1/*", cwd=tmp_path)
    assert [(one["path"], one["damaged"]) for one in ran.requests] == [(None, True)]


# --- losses and errors --------------------------------------------------------------------------------


def test_a_hole_is_told_by_class_and_its_request_as_damaged(tmp_path: Path) -> None:
    frames = talk(post(chat("x" * 4_000)), post(POEM))
    del frames[
        5
    ]  # three of a handshake, a segment and its acknowledgement; this is the second segment
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(frames))
    ran = capture(path, "--json", "--no-store", cwd=tmp_path)
    assert ran.code == 0
    assert [one["damaged"] for one in ran.requests] == [True, False]
    assert ran.requests[0]["exact_key"] is None
    assert (ran.summary["gaps"], ran.summary["damaged"], ran.summary["complete"]) == (1, 1, 1)
    assert "gaps 1" in ran.err
    assert "gaps: bytes that the capture does not hold" in ran.err


def test_tls_alone_is_counted_refused_and_told_what_to_do(tmp_path: Path) -> None:
    ran = capture(file(tmp_path, CLIENT_HELLO), "--json", "--no-store", cwd=tmp_path)
    assert ran.code == 1
    assert ran.summary["encrypted"] == 1
    assert "Error: port 8000 carries TLS only (1 connection)" in ran.err
    assert "the plain hop from nginx or Envoy to the engine" in ran.err
    assert "--from" in ran.err


def test_tls_beside_plain_requests_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([*talk(CLIENT_HELLO, sport=1), *talk(post(POEM), sport=2)]))
    ran = capture(path, "--json", "--no-store", cwd=tmp_path)
    assert ran.code == 0
    assert (ran.summary["requests"], ran.summary["encrypted"]) == (1, 1)
    assert "encrypted connections: nobody can read them here" in ran.err


def test_a_wrong_port_names_the_ports_that_carry_http(tmp_path: Path) -> None:
    ran = capture(file(tmp_path, post(POEM), dport=9000), cwd=tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert "Error: there is no packet to port 8000" in ran.err
    assert "--port 9000" in ran.err
    assert capture(tmp_path / "a.pcap", "--port", "9000", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.pcap", None, "`missing.pcap` cannot be read: no such file or directory"),
        ("text.txt", b"POST /v1 hello\n", "text.txt"),
        ("empty.pcap", b"", "empty"),
    ],
)
def test_what_is_no_capture_is_one_line_with_its_reason(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    ran = capture(name, "--no-store", cwd=tmp_path)
    assert ran.code == 1
    assert ran.err.startswith("Error: ")  # zeros in front would only look like a result
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "data").exists()


def test_a_later_file_that_is_missing_is_told_before_the_first_is_read(
    tmp_path: Path, three: Path
) -> None:
    ran = capture(three, "missing.pcap", "--json", cwd=tmp_path)
    assert (ran.code, ran.out) == (1, "")


def test_a_bad_second_file_costs_nothing_of_the_first(tmp_path: Path, three: Path) -> None:
    (tmp_path / "b.pcap").write_bytes(b"no capture at all")
    ran = capture(three, "b.pcap", "--json", cwd=tmp_path)
    assert ran.code == 1
    assert ran.summary["requests"] == 4
    assert "b.pcap" in ran.err
    with Store.open_readonly(tmp_path / "data" / "toolkit.db") as store:
        assert store.content(ran.summary["run"]).requests == 4


def test_a_reader_that_leaves_ends_the_capture_without_a_word_about_it(tmp_path: Path) -> None:
    path = file(tmp_path, *[post(chat(f"prompt {n}")) for n in range(3_000)])
    with capturing(path, "--json", cwd=tmp_path, is_live=False) as running:
        running.line()
        running.process.stdout.close()
        running.process.wait(30)
        running.listener.join(30)
        assert running.process.returncode == 0
    said = "".join(running.said)
    assert "Traceback" not in said
    assert "Broken" not in said


def test_a_full_disk_under_the_output_is_told(tmp_path: Path, three: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, str(three), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
    ran = Ran(done.returncode, "", done.stderr.decode())
    assert ran.code == 1
    assert "Error: standard output cannot be written: the disk is full" in ran.err
    with Store.open_readonly(tmp_path / "data" / "toolkit.db") as store:
        (run,) = store.runs()
        assert store.content(run.id).requests == 4  # what was read is kept all the same


# --- the command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.pcap", "--iface", "lo"], "--iface"),
        (["a.pcap", "--engine", "ring"], "--engine"),
        (["a.pcap", "--buffer", "1MiB"], "--buffer"),
        (["-", "-"], "stands twice"),
        (["--follow"], "--follow goes with one FILE"),
        (["a.pcap", "b.pcap", "--follow"], "--follow goes with one FILE"),
        (["a.pcap", "--duration", "5s"], "--duration"),
        (["a.pcap", "--bodies"], "--bodies goes with --json"),
        (["a.pcap", "--rotate", "1MB"], "--rotate goes with --jsonl"),
        (["a.pcap", "--keep", "1"], "--keep goes with --jsonl"),
        (["--port", "0"], "--port"),
        (["--port", "70000"], "--port"),
        (["--engine", "pcap"], "--engine"),
        (["--rotate", "big", "--jsonl", "x"], "is no size"),
    ],
)
def test_words_that_cannot_both_be_meant_are_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["capture", *words])
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_file_that_is_read_is_never_written_to(three: Path) -> None:
    before = three.read_bytes()
    result = CliRunner().invoke(main, ["capture", str(three), "--jsonl", str(three)])
    assert result.exit_code == 2
    assert "which is to be read" in result.stderr
    assert three.read_bytes() == before


def test_a_terminal_is_no_pipe(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        with capturing("-", cwd=tmp_path, is_live=False, stdin=terminal) as running:
            running.process.wait(30)
    finally:
        os.close(controller)
        os.close(terminal)
    assert running.process.returncode == 1
    assert "standard input is a terminal" in "".join(running.said)


def test_neither_help_nor_files_load_what_only_others_need(tmp_path: Path, three: Path) -> None:
    heavy = {"scapy", "numpy", "pandas", "sqlite3", "sqlite_utils", "rich"}
    for words in (["--help"], [str(three), "--json", "--no-store"]):
        program = (
            "import sys\nfrom toolkit.cli import main\n"
            f"try: main({['capture', *words]!r})\nexcept SystemExit: pass\n"
            "print(*sorted(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        assert "toolkit.cli.capture.verb" in done.stderr
        assert not set(done.stderr.split()) & heavy, words
