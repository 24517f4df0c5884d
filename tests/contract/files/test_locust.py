"""Plain Locust's page is on this machine alone unless told otherwise; and no file of a user's reaches what `toolkit blast` loads."""

import base64
import signal
import socket
import sys
from pathlib import Path

import psutil
from contract.harness.clients import get
from contract.harness.databases import select
from contract.harness.fleets import fleet
from contract.harness.programs import ROOT, free_port, program, run, until
from contract.harness.servers import server

LOCUST = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / "blast.py")]


def listening(pid: int, port: int) -> set[str]:
    found = psutil.Process(pid).net_connections("inet")
    return {c.laddr.ip for c in found if c.status == "LISTEN" and c.laddr.port == port}


def test_the_page_is_on_the_loopback_and_asks_for_a_password_beyond(tmp_path: Path) -> None:
    with server({}) as host:
        port = free_port()
        words = [*LOCUST, "--host", host.url, "--web-port", str(port)]
        with program(words, cwd=tmp_path) as plain:
            assert until(lambda: listening(plain.process.pid, port)) == {"127.0.0.1"}
            assert get(f"http://127.0.0.1:{port}", "/").status == 200
        beyond = [*words, "--web-host", "0.0.0.0"]
        with program(beyond, cwd=tmp_path) as refused:
            assert refused.wait() == 1
            refused.line("everybody who reaches `0.0.0.0` could start a load from the web page")
            refused.line("Set TOOLKIT_WEB_PASSWORD")
        with program(beyond, cwd=tmp_path, env={"TOOLKIT_WEB_PASSWORD": "s3cret"}) as running:
            assert until(lambda: listening(running.process.pid, port)) == {"0.0.0.0"}
            found = {}
            for said in (None, ":wrong", "anybody:s3cret"):
                code = base64.b64encode((said or "").encode()).decode()
                headers = [] if said is None else [f"authorization: Basic {code}"]
                for path in ("/", "/stats/requests", "/assets/nothing.js"):
                    found[said, path] = get(
                        f"http://127.0.0.1:{port}", path, headers=headers
                    ).status
            assert {status for (said, _), status in found.items() if said != "anybody:s3cret"} == {
                401
            }
            assert found["anybody:s3cret", "/"] == 200
            assert "s3cret" not in running.text


def test_ctrl_c_ends_a_worker_that_waits_for_its_master_without_a_traceback(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        words = ["--worker", "--master-port", str(port), "--host", "http://127.0.0.1:9"]
        with program([*LOCUST, *words], cwd=tmp_path) as worker:
            asking, _ = silent.accept()
            with asking:
                worker.process.send_signal(signal.SIGINT)
                assert worker.wait() == 130
            assert not [w for w in ("Traceback", "KeyboardInterrupt") if w in worker.text]


def test_no_locust_conf_reaches_a_blast(tmp_path: Path) -> None:
    """Neither of the folder's nor of the home's, which here are one."""
    for name in ("locust.conf", ".locust.conf"):
        (tmp_path / name).write_text(
            "users = 7\nmix = 100\nhost = http://owned.invalid\nrun-time = 1s\n"
        )
    (tmp_path / "pyproject.toml").write_text('[tool.locust]\nmax-tokens = 1\ntags = ["none"]\n')
    with fleet({"alice": ("gptq-int4", {"time_scale": 0.05})}) as running:
        hosts = running.write(tmp_path)
        load = ("--users", 2, "--duration", "3s", "--canaries", 0, "--mix", 0, "--max-tokens", 8)
        ended = run(
            *("blast", hosts, *load, "--no-scout", "--non-neutral", "--db", "toolkit.db", "--json"),
            cwd=tmp_path,
        )
    assert ended.returncode == 0, ended.stderr
    file = tmp_path / "toolkit.db"
    [row] = select(
        file,
        "SELECT sum(ok) AS ok, sum(streamed) AS streamed, sum(output_tokens) AS tokens, count(DISTINCT at_s) AS seconds "
        "FROM tallies WHERE kind = 'ranked'",
    )
    assert row["streamed"] == 0
    assert row["tokens"] == 8 * row["ok"] > 0
    assert row["seconds"] >= 3
    [users] = select(file, "SELECT max(users) AS users FROM loader_seconds")
    assert users["users"] == 2
