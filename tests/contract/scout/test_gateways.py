"""Gateways are told as gateways, alive or not, and no page that only they have is mistaken. Answers as LiteLLM 1.106.2 and vllm-router
0.1.17 gave them (tests/data/gateways/README.md)."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import ask, get
from contract.harness.databases import select
from contract.harness.programs import ROOT, rows, run, toolkit, until
from contract.harness.proxies import proxy
from contract.harness.servers import Answer, Asked, answer, chat, server, vllm_pages

TEXT = "text/plain; version=0.0.4; charset=utf-8"
PAGE = (ROOT / "tests" / "data" / "gateways" / "litellm_1.106.2_metrics.txt").read_text()
KEY = "sk-of-the-gateway"
ALIVE = answer('"I\'m alive!"', content_type="application/json")
ERROR = answer("Internal Server Error", "500 Internal Server Error", content_type="text/plain")
NO_PAGE = answer({"detail": "Not Found"}, "404 Not Found")
MODELS = answer(
    {
        "data": [{"id": "qwen", "object": "model", "created": 1677610602, "owned_by": "openai"}],
        "object": "list",
    }
)
WANTS_KEY = answer(
    "\"Unauthorized access to metrics endpoint: No module named 'prisma'\"",
    "401 Unauthorized",
    content_type="application/json",
)
FAILED = "Request failed: error sending request for url (http://127.0.0.1:9/v1/models)"


def keyed(without: bytes, with_key: Answer) -> Answer:
    """Another answer to who sends the key."""

    def tell(asked: Asked) -> None:
        if asked.headers.get("authorization") != f"Bearer {KEY}":
            asked.send(without)
        elif callable(with_key):
            with_key(asked)
        else:
            asked.send(with_key)

    return tell


def mounted(asked: Asked) -> None:
    """Where LiteLLM's metrics stand: one page further, by its own whole address."""
    url = f"http://{asked.headers['host']}/metrics/"
    asked.send(answer("", "307 Temporary Redirect", location=url))


def litellm(**changed: Answer) -> dict[str, Answer]:
    """One without a master key; it calls its models at /health."""
    pages: dict[str, Answer] = {
        "/health": answer({"healthy_endpoints": [], "unhealthy_endpoints": []}),
        "/health/liveliness": ALIVE,
        "/v1/models": MODELS,
        "/metrics": mounted,
        "/metrics/": answer(PAGE, content_type=TEXT),
        "*": NO_PAGE,
    }
    return pages | changed


KEYED = litellm() | {
    # it has no database, and says so in its own way to who sends no key
    "/health": ERROR,
    "/v1/models": keyed(ERROR, MODELS),
    "/metrics": keyed(WANTS_KEY, mounted),
    "/metrics/": keyed(WANTS_KEY, answer(PAGE, content_type=TEXT)),
}
ROUTER = vllm_pages() | {"/health": answer("All servers healthy"), "*": NO_PAGE}
DEAD = answer("Backend request failed: error sending request", "502 Bad Gateway")
ROUTER_DOWN = {
    "/health": answer("All servers healthy"),  # for up to three minutes it does not know better
    "/v1/models": answer(FAILED, "500 Internal Server Error"),
    "*": DEAD,
}
STACK_PAGE = (ROOT / "tests/data/metrics/written/production_stack_router.txt").read_text()
STACK_IDLE = "".join(f"{line}\n" for line in STACK_PAGE.splitlines() if line.startswith("# "))

HOSTS: dict[str, tuple[Mapping[str, Answer], str, str, str]] = {
    # name -> pages, engine, status, words of the reason
    "litellm": (litellm(), "litellm", "ok", ""),
    "litellm-keyed": (KEYED, "litellm", "ok", ""),
    "litellm-unkeyed": (KEYED, "litellm", "degraded", "`api_key_env=`"),
    "litellm-no-metrics": (
        litellm() | {"/health": ERROR, "/metrics": NO_PAGE},
        "litellm",
        "degraded",
        "`/metrics` answers 404",
    ),
    "vllm-router": (ROUTER, "vllm-router", "ok", ""),
    "vllm-router-down": (ROUTER_DOWN, "vllm-router", "degraded", "no engine behind it does"),
    "vllm-router-down-and-known": (
        ROUTER_DOWN
        | {"/health": answer('Unhealthy servers: ["http://h"]', "503 Service Unavailable")},
        "vllm-router",
        "degraded",
        "no engine behind it does",
    ),
    "vllm-router-half-down": (
        ROUTER | {"/health": answer('Unhealthy servers: ["http://h"]', "503 Service Unavailable")},
        "vllm-router",
        "degraded",
        "not every engine behind it",
    ),
    "stack-router": (
        {
            "/health": answer({"status": "healthy"}),
            "/v1/models": MODELS,
            "/metrics": answer(STACK_PAGE, content_type=TEXT),
        },
        "production-stack-router",
        "ok",
        "",
    ),
    "stack-router-down": (
        {
            "/health": answer({"status": "healthy"}),
            "/v1/models": answer("", "503 Service Unavailable"),
            "/metrics": answer(STACK_IDLE, content_type=TEXT),
        },
        "production-stack-router",
        "degraded",
        "no engine behind it does",
    ),
    "litellm-ended": ({"*": lambda asked: asked.reset()}, "", "down", "reset"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder, lines = tmp_path_factory.mktemp("gateways"), []
    with ExitStack() as life:
        for name, (pages, *_) in HOSTS.items():
            url = life.enter_context(server(pages)).url
            key = " api_key_env=LL" if name == "litellm-keyed" else ""
            lines.append(f"{name} {url}{key}\n")
        (folder / "hosts.txt").write_text("".join(lines))
        done = run("scout", "--json", "--no-store", cwd=folder, env={"LL": KEY})
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    return {row["name"]: row for row in rows(done.stdout)}


@pytest.mark.parametrize("name", HOSTS)
def test_it_is_told_as_what_it_is(name: str, told: dict[str, dict[str, Any]]) -> None:
    _, engine, status, why = HOSTS[name]
    row = told[name]
    assert (row["engine"] or "", row["status"]) == (engine, status), row["error"]
    assert bool(row["error"]) == bool(why)
    assert why in (row["error"] or "")
    assert ("gateway" in {found["code"] for found in row["findings"]}) is bool(engine)


def test_only_what_clients_asked_of_a_model_is_a_request(told: dict[str, dict[str, Any]]) -> None:
    # three chat requests of five tokens; four more are /health, /v1/models, /metrics and its own check of the model (16 tokens)
    for name in ("litellm", "litellm-keyed"):
        row = told[name]
        assert (row["requests_total"], row["generation_tokens_total"]) == (3, 15)
        assert row["models"] == ["qwen"]


def test_a_router_of_vllm_lends_itself_no_engines_numbers(told: dict[str, dict[str, Any]]) -> None:
    # each look may be at another engine: restarts and rates would be made up
    row = told["vllm-router"]
    assert (row["running"], row["requests_total"], row["started_at"]) == (None, None, None)
    assert row["models"] == ["tiny"]


def test_a_watch_of_litellm_calls_its_models_once_at_most(tmp_path: Path) -> None:
    with server(litellm()) as gateway:
        words = ("--watch", "--interval", "100ms", "--count", "4", "--no-store", "--json")
        done = run("scout", gateway.url, *words, cwd=tmp_path)
        asked = gateway.paths()
    assert [row["status"] for row in rows(done.stdout)] == ["ok"] * 4
    assert asked.count("/health") == 1
    assert asked.count("/health/liveliness") >= 3


def test_a_watchdog_finds_no_trouble_in_it(tmp_path: Path) -> None:
    with server(litellm() | {"/health": ERROR}) as gateway:
        words = ("--url", gateway.url, "--look", "100ms", "--refused", "300ms", "--no-store")
        with toolkit("watchdog", *words, "--until-trouble", cwd=tmp_path) as dog:
            give_up = time.monotonic() + 60
            while gateway.paths().count("/metrics") < 15 and time.monotonic() < give_up:
                assert dog.process.poll() is None, dog.text
                time.sleep(0.05)
            assert gateway.paths().count("/metrics") >= 15, dog.text
            assert "/health" not in gateway.paths(), "it would call every model at each look"
            gateway.pages["/health/liveliness"] = ERROR
            assert dog.wait() == 1, "and it is not blind"


def test_a_proxy_before_it_neither_leaves_it_nor_has_it_call_its_models(tmp_path: Path) -> None:
    pages = litellm() | {"/health": ERROR, "/v1/chat/completions": chat("Hello", model="qwen")}
    with (
        server(pages) as gateway,
        proxy(gateway.url, cwd=tmp_path, probes=True) as proxied,
    ):
        until(lambda: gateway.paths().count("/health/liveliness") >= 3)
        assert get(proxied.url, "/health").status == 200
        assert ask(proxied.url).text == "Hello"
        assert "/health" not in gateway.paths()
        gateway.pages["/health/liveliness"] = ERROR
        until(lambda: get(proxied.url, "/health").status == 503)


def test_a_bench_reads_its_metrics_and_counts_its_own_requests(tmp_path: Path) -> None:
    """/metrics points to /metrics/ of the same host, and every page that is looked at is counted there, too."""
    chats: list[str] = []
    looks = 0

    def talk(asked: Asked) -> None:
        chats.append(asked.path)
        asked.send(chat("one two", model="qwen", tokens=2))

    def count(asked: Asked) -> None:
        nonlocal looks
        looks += 1
        name = "litellm_proxy_total_requests_metric_total"
        page = f"litellm_in_flight_requests 1.0\n{name}"
        page += f'{{requested_model="",route="/metrics",status_code="None"}} {looks}.0\n'
        if chats:
            page += f'{name}{{requested_model="qwen",route="/v1/chat/completions"}} {len(chats)}\n'
            page += (
                f'litellm_output_tokens_metric_total{{requested_model="qwen"}} {2 * len(chats)}\n'
            )
        asked.send(answer(page, content_type=TEXT))

    away = {
        "/metrics": answer("", "307 Temporary Redirect", location="http://127.0.0.2:1/metrics/")
    }
    with (
        server(litellm() | {"/metrics/": count, "/v1/chat/completions": talk}) as gateway,
        server(litellm() | away | {"/v1/chat/completions": chat(model="qwen")}) as elsewhere,
    ):
        (tmp_path / "hosts.txt").write_text(f"here {gateway.url}\naway {elsewhere.url}\n")
        done = run("bench", "--requests", "6", "--max-tokens", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["ok"] for row in rows(done.stdout)] == [6, 6]
    sql = "SELECT h.name, l.requests, l.generation_tokens, l.error FROM ledgers l JOIN hosts h ON h.id = l.host_id"
    ledgers = {row["name"]: row for row in select(tmp_path / "data" / "toolkit.db", sql)}
    assert looks >= 2
    assert ledgers["here"]["requests"] == len(chats)
    assert ledgers["here"]["generation_tokens"] == 2 * len(chats)
    assert (ledgers["away"]["requests"], "307" in ledgers["away"]["error"]) == (None, True)
