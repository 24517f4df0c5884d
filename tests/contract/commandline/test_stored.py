"""What was measured is read back as it was: every field, its kind of value, and all of it however much there is."""

import json
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from contract.harness.clients import ask
from contract.harness.databases import select
from contract.harness.programs import ROOT, rows, run, until
from contract.harness.proxies import proxy
from contract.harness.servers import answer, chat, server, vllm_pages

EARLIER = Path(__file__).parents[1] / "fixtures" / "2026-11" / "data" / "toolkit.db"
PCAP = ROOT / "data" / "sample.pcap"


def test_a_capture_is_exported_as_it_was_printed(tmp_path: Path) -> None:
    """With the texts of prompts that came later, too: of the first run's bodies none is stored twice."""
    plain = run("capture", PCAP, "--json", "--full", cwd=tmp_path)
    again = run("capture", PCAP, "--json", "--full", "--store-prompts", cwd=tmp_path)
    second, first = (row["run"] for row in rows(run("runs", "--json", cwd=tmp_path).stdout))
    for name, printed in ((first, plain), (second, again)):
        *requests, summary = rows(printed.stdout)
        assert len(requests) == summary["summary"]["requests"] > 200
        exported = rows(run("runs", "export", name, "--jsonl", cwd=tmp_path).stdout)
        # the prompt's beginning is kept from the moment that somebody wanted it kept; they are printed as answers end
        for each in (*requests, *exported):
            for word in ("prompt_preview", "new", "unique_so_far"):
                each.pop(word)
        assert exported == sorted(requests, key=lambda row: row["ts"])
    file = tmp_path / "data" / "toolkit.db"
    bodies = {row["exact_key"] for row in requests if row["exact_key"]}
    assert select(file, "SELECT count(*) AS n FROM bodies") == [{"n": len(bodies)}]
    texts = select(file, "SELECT prompt_text FROM prompts WHERE prompt_key NOTNULL")
    assert texts
    assert all(row["prompt_text"] for row in texts)
    listed = rows(run("runs", "--json", cwd=tmp_path).stdout)
    refused = sum((row["status"] or 0) >= 400 for row in requests)
    assert {(row["requests"], row["errors"], row["client_ok"]) for row in listed} == {
        (len(requests), refused, True)
    }


def test_ten_thousand_requests_of_a_few_moments_are_all_read_in_order(tmp_path: Path) -> None:
    file = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, file)
    with closing(sqlite3.connect(file)) as database, database:
        number, name = database.execute(
            "SELECT number, id FROM runs WHERE verb = 'capture'"
        ).fetchone()
        database.execute("DELETE FROM seen")
        database.executemany(
            "INSERT INTO seen (run_number, ts, number, damaged, in_flight) VALUES (?, ?, ?, 0, ?)",
            [(number, 1.5 + n // 5000, n % 5000, n) for n in range(10_000)],
        )
    exported = run("runs", "export", name, "--jsonl", "--db", "toolkit.db", cwd=tmp_path)
    assert [row["in_flight"] for row in rows(exported.stdout)] == list(range(10_000))


def test_yes_and_no_are_no_numbers_and_what_happened_to_no_run_is_told_of_each(
    tmp_path: Path,
) -> None:
    file = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, file)
    here = ("--db", "toolkit.db")
    bench, blast = (
        select(file, "SELECT id FROM runs WHERE verb = ? ORDER BY number", verb)[0]["id"]
        for verb in ("bench", "blast")
    )
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE shots SET kind = 'warmup' WHERE slot < 2")
    shots = rows(run("runs", "export", bench, "--jsonl", *here, cwd=tmp_path).stdout)
    words = ("ok", "stream", "output_tokens_estimated")
    assert {type(row[word]) for row in shots for word in words} == {bool}
    looks = rows(run("scout", "--history", "alice", "--json", *here, cwd=tmp_path).stdout)
    assert {row["prefix_caching"] for row in looks if row["status"] == "ok"} <= {True, False}
    assert {type(row["prefix_caching"]) for row in looks if row["engine"] == "vllm"} == {bool}
    listed = rows(run("runs", "--json", *here, cwd=tmp_path).stdout)
    assert {type(row["client_ok"]) for row in listed} == {bool, type(None)}

    # a warm-up is no request of a bench
    sent = select(
        file, "SELECT kind FROM shots JOIN runs ON number = run_number WHERE runs.id = ?", bench
    )
    counted = sum(row["kind"] != "warmup" for row in sent)
    assert [row["requests"] for row in listed if row["run"] == bench] == [counted]
    assert 0 < counted < len(sent)

    report = rows(run("report", blast, "--json", *here, cwd=tmp_path).stdout)[0]
    assert {each["kind"]: each["text"] for each in report["events"] if not each["run"]} == {
        "mark": "swapped to GPTQ"
    }


def test_a_hosts_nonsense_costs_itself_only(tmp_path: Path) -> None:
    """A length past 64 bits and half a letter of UTF-16: its own look is stored without, and the next host's as it is."""
    odd = {"data": [{"id": "half \ud800", "max_model_len": 2**63}]}
    with (
        server(vllm_pages() | {"/v1/models": answer(json.dumps(odd))}) as alice,
        server(vllm_pages()) as bob,
    ):
        (tmp_path / "hosts.txt").write_text(f"alice {alice.url}\nbob {bob.url}\n")
        looked = run("scout", "hosts.txt", "--json", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    printed = {row["name"]: row for row in rows(looked.stdout)}
    for name in ("alice", "bob"):
        [kept] = rows(run("scout", "--history", name, "--json", cwd=tmp_path).stdout)
        if name == "alice":
            assert (kept.pop("max_model_len"), kept.pop("model")) == (None, "half \ufffd")
        assert kept.items() <= printed[name].items() if name == "bob" else kept["status"] == "ok"


def test_what_a_proxy_refused_is_an_error_of_its_run_and_no_request_is_without_its_key(
    tmp_path: Path,
) -> None:
    pages = {"*": chat()}
    file = tmp_path / "seen.db"
    with server(pages) as upstream, proxy(upstream.url, "", "--db", file, cwd=tmp_path) as running:
        assert ask(running.url).status == 200
        upstream.pages["*"] = answer({"error": {"message": "no"}}, "400 Bad Request")
        assert ask(running.url, {"messages": [{"role": "user", "content": "other"}]}).status == 400
        running.program.end(signal.SIGTERM)
    until(file.exists)
    [listed] = rows(run("runs", "--json", "--db", file, cwd=tmp_path).stdout)
    assert (listed["requests"], listed["errors"]) == (2, 1)
    exported = rows(
        run(
            "runs", "export", listed["run"], "--jsonl", "--requests", "--db", file, cwd=tmp_path
        ).stdout
    )
    assert [row["status"] for row in exported] == [200, 400]
    assert len({row["request_key"] for row in exported} - {None}) == 2
