"""A whole proxy with teams: whose key, whose answers, whose turn; and what whoever runs it can see and do."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.proxied import ASKED, CHAT, proxied, raw, whole
from support.proxy_calls import gates, run
from support.replies import FakeReply
from support.scripted_upstream import Line, ScriptedUpstream, plain, slow

from toolkit.proxy.exchange import Request

KEYS = {"RED": "sk-red", "BLUE": "sk-blue", "GREEN": "sk-green", "ENGINE": "sk-engine"}
TEAMS = "".join(
    f'[[team]]\nname = "{name}"\nkey_env = "{name.upper()}"\n{more}\n'
    for name, more in (("red", ""), ("blue", 'pool = "both"'), ("green", 'pool = "both"'))
)
RED, BLUE, GREEN = "sk-red", "sk-blue", "sk-green"


def teamed(engine: ScriptedUpstream, more: str = "", **named: Any) -> Any:
    upstream = (
        f'[[upstream]]\nname = "u"\nurl = "{engine.url}"\nkey_env = "ENGINE"\nprobes = false\n'
    )
    return proxied(engine, upstream + TEAMS + more, environ=KEYS, **named)


@pytest.mark.parametrize("key", [None, "", "sk-nobody", "sk-engine", "sk-red "[:-2]])
def test_without_a_teams_key_nothing_is_answered_not_even_a_hit(key: str | None) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine) as proxy:
            await proxy.ask(key=RED)
            answer = await proxy.ask(key=key)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "bearer"
            assert answer.json["error"]["code"] == 401
            assert len(engine.lines) == 1

    run(test())


def test_a_team_sees_its_own_answers_and_those_of_its_pool() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine) as proxy:
            hits = [(await proxy.ask(key=key)).is_hit for key in (RED, BLUE, GREEN, RED, BLUE)]
            assert hits == [False, False, True, True, True]

    run(test())


def test_equal_requests_of_two_teams_do_not_share_a_call_either() -> None:
    async def test() -> None:
        gate = gates(1)
        async with ScriptedUpstream(slow(["x"], gate)) as engine, teamed(engine) as proxy:
            body = ASKED | {"stream": True}
            asking = [asyncio.create_task(proxy.ask(body, key=key)) for key in (RED, BLUE, GREEN)]
            await engine.asked(2)
            gate[0].set()
            answers = await asyncio.gather(*asking)
            assert len(engine.lines) == 2
            assert sum("collapsed" in answer.cache for answer in answers) == 1

    run(test())


def test_the_engine_gets_its_own_key_and_each_tenant_a_salt_of_its_own() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine) as proxy:
            for key, body in (
                (RED, ASKED),
                (BLUE, ASKED),
                (RED, ASKED | {"seed": 1}),
                (RED, ASKED | {"cache_salt": "mine"}),
                (BLUE, ASKED | {"cache_salt": "mine"}),
            ):
                await proxy.ask(body, key=key)
            assert {line.headers["authorization"] for line in engine.lines} == {"Bearer sk-engine"}
            salts = [json.loads(line.body)["cache_salt"] for line in engine.lines]
            assert salts[0] == salts[2]
            assert len(set(salts)) == 4
            assert "mine" not in salts
            assert all(RED not in line.body.decode() for line in engine.lines)

    run(test())


def test_a_team_that_may_ask_for_one_at_a_time_is_turned_away_with_429_and_hits_are_not() -> None:
    more = '[admission]\nconcurrency = 8\nwait = "30s"\n'

    async def test() -> None:
        gate = gates(1)
        async with ScriptedUpstream(slow(["x"], gate)) as engine:
            settings = more.join(
                (
                    "",
                    TEAMS.replace('key_env = "RED"', 'key_env = "RED"\nconcurrency = 1\nqueue = 0'),
                )
            )
            upstream = f'[[upstream]]\nname = "u"\nurl = "{engine.url}"\nprobes = false\n'
            async with proxied(engine, upstream + settings, environ=KEYS) as proxy:
                engine.scripts = [whole()]
                await proxy.ask(key=RED)
                first = asyncio.create_task(proxy.ask(ASKED | {"seed": 1, "stream": True}, key=RED))
                await engine.asked(2)
                refused = await proxy.ask(ASKED | {"seed": 2}, key=RED)
                assert refused.status == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.json["error"]["type"] == "rate_limit_error"
                assert (await proxy.ask(key=RED)).is_hit, "a hit takes no slot"
                joiner = asyncio.create_task(
                    proxy.ask(ASKED | {"seed": 1, "stream": True}, key=RED)
                )
                other = asyncio.create_task(proxy.ask(ASKED | {"stream": True}, key=BLUE))
                await engine.asked(3)
                gate[0].set()
                assert "collapsed" in (await joiner).cache, "and so does one that joins"
                assert ((await first).status, (await other).status) == (200, 200)
                assert proxy.total("rejections", reason="team_queue_full") == 1

    run(test())


# --- pages ----------------------------------------------------------------------------------------------


def test_with_teams_the_clients_port_tells_nothing_but_health() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine) as proxy:
            told = {
                path: (await proxy.ask(b"", path=path, method="GET")).status
                for path in ("/health", "/ping", "/ready", "/metrics", "/version", "/v1/models")
            }
            assert told == {
                "/health": 200,
                "/ping": 200,
                "/ready": 200,
                "/metrics": 404,
                "/version": 404,
                "/v1/models": 401,
            }

    run(test())


def test_the_admins_page_counts_what_happened_by_team() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine) as proxy:
            for key in (RED, RED, RED, BLUE, None):
                await proxy.ask(key=key)
            page = (await proxy.admin("/metrics")).body.decode()
            found = {
                (sample.labels.get("team"), sample.labels.get("cache")): sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
                if sample.name == "toolkit_proxy_requests_total"
                and sample.value
                and sample.labels.get("cache") in ("hit", "miss")
            }
            assert found == {("red", "hit"): 2.0, ("red", "miss"): 1.0, ("blue", "miss"): 1.0}

    run(test())


def test_the_admin_asks_why_and_purges_what_it_names() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine) as proxy:
            await proxy.ask(key=RED)
            question = {"body": ASKED, "team": "red"}
            assert (await proxy.admin("/explain", question)).json["reason"] == "hit"
            other = {
                "body": ASKED | {"messages": [{"role": "user", "content": "Ho"}]},
                "team": "red",
            }
            told = (await proxy.admin("/explain", other)).json
            assert told["reason"] == "never seen"
            assert told["differences"][0]["path"] == "messages[0].content"
            assert "Hi" not in json.dumps(told)
            assert not (await proxy.admin("/explain", question | {"team": "blue"})).json[
                "differences"
            ]
            assert (await proxy.admin("/explain", question | {"team": "pink"})).status == 400
            assert (await proxy.admin("/purge", {"request": question})).json == {"purged": 1}
            assert (await proxy.admin("/explain", question)).json["reason"] == "evicted"
            assert not (await proxy.ask(key=RED)).is_hit

    run(test())


def test_a_drained_upstream_is_asked_no_more_and_a_drained_proxy_says_so() -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(whole("a")) as one,
            ScriptedUpstream(whole("b")) as other,
            proxied([one, other]) as proxy,
        ):
            await proxy.admin("/drain", {"upstream": "u0"})
            for seed in range(4):
                assert (await proxy.ask(ASKED | {"seed": seed})).text == "b"
            await proxy.admin("/undrain", {"upstream": "u0"})
            assert (await proxy.admin("/drain", {"upstream": "u7"})).status == 400
            assert (await proxy.admin("/ready")).status == 200
            await proxy.admin("/drain", {})
            assert (await proxy.admin("/ready")).status == 503

    run(test())


# --- which generation answers ---------------------------------------------------------------------------


class Engine:
    """Pages of an engine that started some time, and answers."""

    def __init__(self) -> None:
        self.started_at = 1_000.0

    async def __call__(self, line: Line) -> None:
        pages = {
            "/metrics": f"process_start_time_seconds {self.started_at}\nvllm:num_requests_running 0\n",
            "/v1/models": json.dumps(
                {"data": [{"id": "tiny", "root": "tiny", "max_model_len": 9}]}
            ),
            "/version": '{"version": "0.32.0"}',
        }
        page = pages.get(line.target)
        if page is None:
            await whole(f"since {self.started_at:.0f}")(line)
        else:
            await plain("200 OK", page.encode())(line)


def test_an_engine_that_restarts_makes_old_answers_unreachable(tmp_path: Path) -> None:
    async def test() -> None:
        pages = Engine()
        async with ScriptedUpstream(pages) as engine:
            settings = '[routing]\nlook = "50ms"\n'
            async with proxied(engine, settings, folder=tmp_path, probes=True) as proxy:
                for _ in range(3):
                    before = await proxy.ask()
                assert before.is_hit
                pages.started_at = 2_000.0
                async with asyncio.timeout(60):
                    while (after := await proxy.ask()).is_hit:  # noqa: ASYNC110 (a look tells nobody)
                        await asyncio.sleep(0.02)
                assert after.text == "since 2000"
                assert (await proxy.ask()).is_hit
            # and a proxy that starts later knows it, too
            pages.started_at = 3_000.0
            async with proxied(engine, settings, folder=tmp_path, probes=True) as proxy:
                assert (await proxy.ask()).text == "since 3000"

    run(test())


def test_hits_go_on_while_the_engine_is_down() -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(Engine()) as engine,
            proxied(engine, '[routing]\nlook = "50ms"\n', probes=True) as proxy,
        ):
            client = await proxy.client()
            await client.ask()
            engine.stop_listening()
            for connection in tuple(engine.open):
                connection.transport.abort()
            async with asyncio.timeout(60):
                while (await client.ask(b"", path="/ready", method="GET")).status == 200:
                    assert (await client.ask(ASKED | {"seed": 5})).status == 502
            assert (await client.ask()).is_hit

    run(test())


def test_a_hit_still_on_its_way_when_the_engine_restarts_is_not_remembered_by_its_bytes() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("x" * 800_000)) as engine, proxied(engine) as proxy:
            await proxy.ask()
            kit, desk = proxy.proxy.kit, proxy.proxy.inside.front.desk
            slow = FakeReply(reads=1)
            data = raw()
            slow.request = Request(
                method="POST",
                path=CHAT,
                headers=[(b"content-type", b"application/json")],
                body=data.partition(b"\r\n\r\n")[2],
                raw=data,
            )
            desk.take(slow.request, slow)
            assert slow.calls == ["begin", "write"], "the rest waits for the client"
            kit.generations.bump(["tiny", "*"])
            slow.read()
            assert slow.calls[-1] == "end"
            assert len(kit.layers.memo) == 0
            assert not (await proxy.ask()).is_hit

    run(test())


# --- asked again in the background ------------------------------------------------------------------------


def test_hits_are_asked_again_and_answers_that_differ_are_counted(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(whole("one")) as engine,
            proxied(engine, "[cache]\nverify_share = 1.0\n", folder=tmp_path) as proxy,
        ):
            client = await proxy.client()
            await client.ask()
            for count, text, wanted in ((2, "one", "one"), (3, "other", "one")):
                engine.script = whole(text)
                assert (await client.ask()).text == wanted
                await engine.asked(count)
                async with asyncio.timeout(60):
                    while proxy.total("verified") < count - 1:  # noqa: ASYNC110 (nobody is told)
                        await asyncio.sleep(0.01)
            assert proxy.total("verified", result="different") == 1
        events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        (told,) = [each for each in events if each.get("event") == "divergence"]
        assert told["what"] == "text"
        assert "other" not in json.dumps(told)

    run(test())


# --- what is told ------------------------------------------------------------------------------------------


def test_no_key_and_no_prompt_reaches_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, teamed(engine, folder=tmp_path) as proxy:
            client = await proxy.client()
            for _ in range(3):
                await client.ask(ASKED | {"user": "SECRET-PROMPT"}, key=RED)
            await proxy.ask(key="sk-guess")
        log = (tmp_path / "log.jsonl").read_text()
        assert len(log.splitlines()) == 4
        assert [word for word in (*KEYS.values(), "sk-guess", "SECRET", "Hi") if word in log] == []
        mode = (tmp_path / "log.jsonl").stat().st_mode & 0o777
        assert mode == 0o600

    run(test())


def test_a_client_that_leaves_is_logged_as_one_that_left(tmp_path: Path) -> None:
    async def test() -> None:
        gate = gates(1)
        async with (
            ScriptedUpstream(slow(["x"], gate)) as engine,
            proxied(engine, folder=tmp_path) as proxy,
        ):
            client = await proxy.client()
            client.writer.write(raw(ASKED | {"stream": True}))
            line = await engine.asked()
            client.close()
            await line.gone.wait()
        (told,) = [
            each
            for each in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
            if "request_id" in each
        ]
        assert (told["left"], told["cache"]) == (True, "miss")

    run(test())
