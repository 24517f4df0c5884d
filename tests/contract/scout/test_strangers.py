"""Hosts that hang, drip, lie, answer without end, redirect, close early or cut their page: each is a row with a reason, and delays nobody.

One `toolkit scout --json` looks at all that answer somehow, another, with a short deadline, at those that never end.
"""

import gzip
import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from contract.harness.programs import ROOT, free_port, rows, run
from contract.harness.servers import Answer, Asked, answer, server, vllm_pages

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
RECORDED = (ROOT / "tests" / "data" / "metrics" / "recorded" / "after_load.txt").read_bytes()
WRITTEN = ROOT / "tests" / "data" / "metrics" / "written"
EVIL = 'm\x1b[2J\n\u202e\x9b31m="<b>'
"""A model's name that clears a terminal, turns the direction of writing and marks text up."""
HALF = "x\ud800"
TIMEOUT_S = 4
"""Of those that never end; the others have a minute, and answer at once."""
ENDLESS = ("hangs", "hangs-at-metrics", "drips", "gigabytes")


def hang(asked: Asked) -> None:
    asked.is_gone(60.0)
    asked.keep = False


def drip(asked: Asked) -> None:
    """A page whose end is hours away."""
    asked.keep = False
    asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 50000\r\n\r\n")
    while not asked.is_gone(0.2):
        asked.send(b"#")


def gigabytes(asked: Asked) -> None:
    asked.keep = False
    asked.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:  # until the other side has had enough of it
        asked.send(b"100000\r\n" + b"x 1\n" * 2**18 + b"\r\n")


def close(asked: Asked) -> None:
    asked.keep = False


def short(asked: Asked) -> None:
    """Less than it promised."""
    asked.keep = False
    asked.send(answer(RECORDED, content_type=TEXT)[:-1000])


def raw(data: bytes) -> Answer:
    def send(asked: Asked) -> None:
        asked.keep = False
        asked.send(data)

    return send


def redirect(to: str) -> Answer:
    return answer("", "307 Temporary Redirect", location=to)


def page(text: bytes, kind: str = TEXT, **headers: str) -> dict[str, Answer]:
    """A vLLM with this page of metrics."""
    return vllm_pages() | {"/metrics": answer(text, content_type=kind, **headers)}


def without_end(name: bytes) -> bytes:
    """The recorded page up to the first two characters of that sample's value."""
    start = RECORDED.index(b"\n" + name)
    return RECORDED[: RECORDED.index(b"} ", start) + 4]


BOMB = gzip.compress(b"x 1\n" * 2**23)
TOKENS = b"vllm:generation_tokens_total{"
LABELS = RECORDED.replace(b'model_name="tiny"', b'model_name="' + EVIL.encode().replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"')  # fmt: skip

HOSTS: dict[str, tuple[Mapping[str, Answer], str, str]] = {
    # name -> pages, status, words of the reason
    "fine": (page(RECORDED), "ok", ""),
    "hangs": ({"*": hang}, "down", f"no answer within {TIMEOUT_S} s"),
    "hangs-at-metrics": (
        vllm_pages() | {"/metrics": hang},
        "degraded",
        f"`/metrics` did not finish within {TIMEOUT_S} s",
    ),
    "drips": (vllm_pages() | {"/metrics": drip}, "degraded", "`/metrics` did not finish within"),
    "gigabytes": (
        vllm_pages() | {"/metrics": gigabytes},
        "degraded",
        "`/metrics` ",  # is larger than 16 MiB, or on a busy machine too late
    ),
    "bomb": (
        page(BOMB, content_encoding="gzip"),
        "degraded",
        "`/metrics` is larger than 16 MiB",
    ),
    "no-gzip": (page(RECORDED, content_encoding="gzip"), "degraded", "but is not"),
    "closes": ({"*": close}, "down", "every connection was closed without an answer"),
    "resets": ({"*": lambda asked: asked.reset()}, "down", "reset"),
    "short": (vllm_pages() | {"/metrics": short}, "degraded", "not a complete HTTP answer"),
    "no-http": ({"*": raw(b"\x16\x03\x01hello\r\n\r\n")}, "down", "not a complete HTTP answer"),
    "redirects-away": (
        vllm_pages() | {"/metrics": redirect("http://127.0.0.2:1/metrics")},
        "degraded",
        "`/metrics` redirects to `http://127.0.0.2:1`, not followed",
    ),
    "redirects-in-a-circle": (
        vllm_pages() | {"/metrics": redirect("/metrics")},
        "degraded",
        "`/metrics` redirects in a circle",
    ),
    "redirects-to-itself": (
        vllm_pages()
        | {"/metrics": redirect("/metrics/"), "/metrics/": answer(RECORDED, content_type=TEXT)},
        "ok",
        "",
    ),
    "ill": (
        vllm_pages() | {"/health": answer("", "503 Service Unavailable")},
        "down",
        "`/health` answers 503",
    ),
    "wants-a-key": ({"*": answer("", "401 Unauthorized")}, "degraded", "`api_key_env=`"),
    "a-web-site": ({"*": answer("<html>")}, "not_an_engine", "no page of an LLM engine"),
    "prose": (page(b"hello\n"), "degraded", "`/metrics` is not Prometheus text"),
    "nonsense": (
        page(b"vllm:num_requests_running{ } NaN\nvllm:num_requests_running -7\n" * 3),
        "ok",
        "",
    ),
    "cut-in-a-number": (page(without_end(TOKENS)), "degraded", "ends in the middle of a line"),
    "cut-in-a-name": (
        page((WRITTEN / "vllm_v1_dp4_0.22.txt").read_bytes().split(b'_tokens_total{engine="3"')[0]),
        "degraded",
        "ends in the middle of a line",
    ),
    "cut-after-a-line": (page(RECORDED[: RECORDED.index(b"\n" + TOKENS) + 1]), "ok", ""),
    "cut-openmetrics": (
        page((WRITTEN / "vllm_rust_0.33.txt").read_bytes().replace(b"# EOF\n", b""), OPENMETRICS),
        "degraded",
        "`# EOF`",
    ),
    "labels": (vllm_pages() | page(LABELS) | {"/v1/models": answer("", "404 Not Found")}, "ok", ""),
    "names": (
        vllm_pages() | {"/v1/models": answer({"data": [{"id": EVIL}, {"id": HALF}]})},
        "ok",
        "",
    ),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One look at all of them at once, and what the two with odd names look like in a table."""
    folder = tmp_path_factory.mktemp("strangers")
    with ExitStack() as life:
        urls = {name: life.enter_context(server(pages)).url for name, (pages, *_) in HOSTS.items()}
        urls["refuses"] = f"http://127.0.0.1:{free_port()}"
        urls["no-such-name"] = "http://no-such-host.invalid:8000"
        lines = [f"{name} {url}\n" for name, url in urls.items()]
        parts = {
            "odd.txt": [line for line in lines if line.split()[0] in ("labels", "names")],
            "endless.txt": [line for line in lines if line.split()[0] in ENDLESS],
            "hosts.txt": [line for line in lines if line.split()[0] not in ENDLESS],
        }
        for name, those in parts.items():
            (folder / name).write_text("".join(those))
        endless = run("scout", "endless.txt", "--json", "--timeout", f"{TIMEOUT_S}s", cwd=folder)
        done = run("scout", "--json", "--timeout", "60s", cwd=folder)
        table = run("scout", "odd.txt", cwd=folder)
        history = run("scout", "--history", "labels", "--json", cwd=folder)
    assert (endless.returncode, done.returncode, table.returncode) == (0, 0, 0), done.stderr
    return {
        "rows": {row["name"]: row for row in rows(endless.stdout + done.stdout)},
        "out": done.stdout,
        "table": table.stdout,
        "history": rows(history.stdout),
        "names": [row["name"] for row in rows(endless.stdout + done.stdout)],
        "asked": [line.split()[0] for line in parts["endless.txt"] + parts["hosts.txt"]],
    }


def test_each_is_a_row_in_the_files_order(seen: dict[str, Any]) -> None:
    assert seen["names"] == seen["asked"]


@pytest.mark.parametrize("name", HOSTS)
def test_each_has_its_status_and_the_reason(name: str, seen: dict[str, Any]) -> None:
    _, status, why = HOSTS[name]
    row = seen["rows"][name]
    assert (row["status"], bool(row["error"])) == (status, bool(why)), row["error"]
    assert why in (row["error"] or "")


def test_one_that_refuses_and_one_without_an_address_are_down(seen: dict[str, Any]) -> None:
    assert seen["rows"]["refuses"]["status"] == "down"
    assert "connection refused" in seen["rows"]["refuses"]["error"]
    assert seen["rows"]["no-such-name"]["status"] == "down"


def test_a_page_without_a_last_newline_has_lost_its_last_line(seen: dict[str, Any]) -> None:
    fine, cut = seen["rows"]["fine"], seen["rows"]["cut-in-a-number"]
    assert (fine["prompt_tokens_total"], fine["generation_tokens_total"]) == (98917, 108878)
    assert cut["prompt_tokens_total"] == 98917, "it stands before the end"
    assert cut["generation_tokens_total"] is None, "10 of 108878 is no number of tokens"
    # three of four engines are no sum, though their lines are whole
    cut = seen["rows"]["cut-in-a-name"]
    assert (cut["running"], cut["preemptions_total"]) == (46, 3)
    assert (cut["prompt_tokens_total"], cut["generation_tokens_total"]) == (None, None)
    assert seen["rows"]["cut-after-a-line"]["generation_tokens_total"] is None


def test_nonsense_gives_no_number(seen: dict[str, Any]) -> None:
    for name in ("nonsense", "prose", "hangs-at-metrics", "gigabytes", "short"):
        row = seen["rows"][name]
        assert (row["running"], row["requests_total"]) == (None, None), name


def test_json_has_labels_as_they_are_and_a_table_has_nothing_that_acts_on_it(
    seen: dict[str, Any],
) -> None:
    assert seen["rows"]["labels"]["models"] == [EVIL]
    assert seen["rows"]["names"]["models"] == [EVIL, "x\ufffd"]
    assert [row["model"] for row in seen["history"]] == [EVIL] * 2
    for acts in ("\x1b", "\u202e", "\x9b"):
        assert acts not in seen["table"]
    assert "\x1b" not in seen["out"]
    assert "[2J" in seen["table"], "the rest of the name is there"


def test_where_nobody_is_alive_it_is_1(tmp_path: Any) -> None:
    with server({"*": close}) as one:
        done = run("scout", one.url, f"127.0.0.1:{free_port()}", "--json", cwd=tmp_path)
    assert (done.returncode, [row["status"] for row in rows(done.stdout)]) == (1, ["down"] * 2)
    assert json.loads(done.stdout.splitlines()[1])["error"].startswith("connection refused")
