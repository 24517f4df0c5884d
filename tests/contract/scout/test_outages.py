"""A proxy whose engine dies says so at once on every page of its, and scout's history shows the outage."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from contract.harness.clients import get
from contract.harness.programs import rows, run, until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, server, vllm_pages

AGE = "toolkit_proxy_upstream_metrics_age_seconds"


def engine_lines(proxied: Proxy) -> list[str]:
    """What the clients' page says of engines: all that does not begin with the proxy's own prefix."""
    page = get(proxied.url, "/metrics").body.decode()
    own = ("#", "toolkit_proxy_")
    return [line for line in page.splitlines() if line and not line.startswith(own)]


def age(url: str, upstream: str) -> float:
    """Since that upstream's numbers came, as one of the two ports says."""
    page = get(url, "/metrics").body.decode()
    lines = [line.split() for line in page.splitlines() if line.startswith(AGE)]
    return {name: float(value) for name, value in lines}[f'{AGE}{{upstream="{upstream}"}}']


def statuses(proxied: Proxy) -> dict[str, int]:
    """Both ports' pages of health."""
    pages = [(proxied.url, "/health"), (proxied.url, "/ready"), (proxied.url, "/ping")]
    pages += [(proxied.admin, path) for _, path in pages]
    ports = {proxied.url: "clients", proxied.admin: "admin"}
    return {f"{ports[url]} {path}": get(url, path).status for url, path in pages}


def told(*, well: bool) -> dict[str, int]:
    """503 while nothing can be asked; the process lives either way."""
    is_ready = 200 if well else 503
    each = {"/health": is_ready, "/ready": is_ready, "/ping": 200}
    return {f"{port} {path}": each[path] for port in ("clients", "admin") for path in each}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_engines_numbers_are_gone_and_health_is_503_until_it_is_back(
    tmp_path: Path, workers: int
) -> None:
    with (
        ExitStack() as life,
        proxy(
            (engine := life.enter_context(server(vllm_pages()))).url,
            f"workers = {workers}\n",
            cwd=tmp_path,
            probes=True,
        ) as proxied,
    ):
        hosts = tmp_path / "hosts.txt"
        hosts.write_text(f"p {proxied.url}\n")
        assert statuses(proxied) == told(well=True)
        first = run("scout", "hosts.txt", "--json", cwd=tmp_path)
        row = rows(first.stdout)[0]
        assert (first.returncode, row["status"], row["engine"]) == (0, "ok", "vllm")
        assert row["running"] is not None
        assert age(proxied.url, "0") < 60

        life.close()  # as after kill -9: nobody listens there any more
        until(lambda: get(proxied.url, "/health").status == 503)
        until(lambda: engine_lines(proxied) == [])
        assert statuses(proxied) == told(well=False)
        assert min(age(proxied.url, "0"), age(proxied.admin, "u0")) > 1.9
        dead = run("scout", "hosts.txt", "--json", cwd=tmp_path)
        row = rows(dead.stdout)[0]
        assert (dead.returncode, row["status"]) == (1, "down")
        assert (row["running"], row["requests_total"]) == (None, None)
        if workers == 1:
            looked = run("diagnose", proxied.url, "--interval", "1s", "--json", cwd=tmp_path)
            assert [each["code"] for each in rows(looked.stdout)] == ["not_seen"], looked.stdout

        with server(vllm_pages(), port=int(engine.url.rpartition(":")[2])):
            until(lambda: get(proxied.url, "/health").status == 200)
            assert engine_lines(proxied) != []
            assert statuses(proxied) == told(well=True)
            assert run("scout", "hosts.txt", cwd=tmp_path).returncode == 0
        history = rows(run("scout", "--history", "p", "--json", cwd=tmp_path).stdout)
        assert [each["status"] for each in history] == ["ok", "down", "ok"]


def test_of_two_engines_the_dead_ones_numbers_are_gone_and_the_other_keeps_its_own(
    tmp_path: Path,
) -> None:
    with (
        server(vllm_pages()) as alive,
        ExitStack() as life,
        proxy(
            [life.enter_context(server(vllm_pages())).url, alive.url], cwd=tmp_path, probes=True
        ) as proxied,
    ):
        both = engine_lines(proxied)
        assert {'WorkerId="0"' in line for line in both} == {True, False}
        life.close()
        until(lambda: not any('WorkerId="0"' in line for line in engine_lines(proxied)))
        left = engine_lines(proxied)
        assert left
        assert sorted(left) == sorted(line for line in both if 'WorkerId="1"' in line)
        assert statuses(proxied) == told(well=True), "the other can be asked"
        assert age(proxied.url, "0") > age(proxied.url, "1")


def test_an_engine_that_hangs_loses_its_numbers_too(tmp_path: Path) -> None:
    def never(asked: Asked) -> None:
        asked.is_gone(60.0)
        asked.keep = False

    with (
        server(vllm_pages()) as engine,
        proxy(engine.url, cwd=tmp_path, probes=True) as proxied,
    ):
        assert engine_lines(proxied)
        engine.pages = {"*": never}
        until(lambda: engine_lines(proxied) == [])
        was = age(proxied.url, "0")
        until(lambda: age(proxied.url, "0") > was)
