"""What a blast is to do: the user's words, a resumed run's, the profile's, the defaults, in this order."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from toolkit.cli.blast.plan import (
    BlastPlan,
    command_line,
    hosts_file,
    plan_of,
    refuse_other_hosts,
)
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host, read_hosts
from toolkit.records import Host, Run

A = Host(name="a", url="http://10.0.0.4:8000")
B = Host(name="b", url="http://10.0.0.5:8000")
C = Host(name="c", url="http://10.0.0.6:8000")
PHASES = """
[[prompts]]
text = "Hi"
[[phases]]
for = "30s"
users = [1, 3]
[[phases]]
for = "1m"
users = 4
"""


def before(seconds: int = 0, **settings: Any) -> dict[str, Any]:
    """A stored run that is to go on."""
    run = Run(id="r" * 12, verb="blast", started_at=0.0, settings=json.dumps(settings))
    return {"resumed": run, "under_load_s": seconds}


def line_of(plan: BlastPlan, **changes: Any) -> list[str]:
    usual: dict[str, Any] = {
        "run": "r1",
        "is_resumed": False,
        "hosts": Path("hosts"),
        "database": Path("data/toolkit.db"),
        "not_neutral": None,
        "insecure": False,
        "ca": None,
    }
    return command_line(plan, **(usual | changes))


def words(plan: BlastPlan, **changes: Any) -> dict[str, str]:
    line = line_of(plan, **changes)
    return {word.partition("=")[0]: word.partition("=")[2] for word in line if "=" in word}


# --- whose word counts ------------------------------------------------------------------------------


def test_without_a_word_it_is_the_contest_for_a_window() -> None:
    plan = plan_of([A, B])
    assert (plan.users, plan.users_per_host, plan.duration_s) == (32, 16, 900.0)
    assert (plan.profile.name, plan.streamed, plan.max_tokens_of(None)) == ("contest", 0.5, 256)
    assert (plan.canaries, plan.processes, plan.rate, plan.request_timeout_s) == (
        1.0,
        1,
        None,
        60.0,
    )
    assert (plan.spawn_rate, plan.notes) == (32, ())


def test_users_are_rounded_up_and_begin_at_most_a_hundred_a_second_unless_somebody_says_more() -> (
    None
):
    plan = plan_of([A, B, C], users=10)
    assert (plan.users, plan.users_per_host) == (12, 4)
    assert "10 users were rounded up to 12" in plan.notes[0]
    assert plan_of([A], users=300).spawn_rate == 100
    assert plan_of([A], users=300, spawn_rate=150.0).spawn_rate == 150


def test_the_users_words_go_before_the_profiles() -> None:
    plan = plan_of([A], mix=0, max_tokens=8, canaries=0.0)
    assert (plan.streamed, plan.max_tokens_of(None), plan.canaries) == (0.0, 8, 0.0)
    # a prompt's own lower limit stays
    assert [plan.max_tokens_of(limit) for limit in (4, 64)] == [4, 8]


def test_phases_say_how_many_users_and_how_long(tmp_path: Path) -> None:
    profile = str(tmp_path / "p.toml")
    Path(profile).write_text(PHASES)
    plan = plan_of([A, B], profile=profile)
    # 4 users a host at most, 30 s + 60 s
    assert (plan.users, plan.duration_s) == (8, 90.0)
    assert not {"--users", "--run-time", "--spawn-rate"} & set(words(plan))
    for word, value in (("users", 4), ("duration", 60.0), ("spawn_rate", 1.0)):
        with pytest.raises(click.UsageError, match=f"leave --{word.replace('_', '-')} out"):
            plan_of([A], profile=profile, **{word: value})
    # in a run that goes on they begin anew, whatever it had so far
    again = plan_of([A], **before(60, profile=profile, duration_s=None, users=8))
    assert again.duration_s == 90.0
    assert again.notes == (f"The phases of `{again.profile.name}` begin anew",)


# --- a run that goes on -----------------------------------------------------------------------------


def test_a_resumed_run_takes_its_settings_and_the_rest_of_its_time() -> None:
    load = {
        "canaries": 0.0,
        "mix": 25.0,
        "max_tokens": 16,
        "model": "m",
        "rate": 3.0,
        "request_timeout_s": 9.0,
    }
    settings = load | {"users": 8, "spawn_rate": 2.0, "profile": "bench", "workers": 2}
    plan = plan_of([A, B], **before(200, duration_s=7200.0, **settings))
    assert (plan.users, plan.spawn_rate, plan.duration_s) == (8, 2.0, 7000.0)
    assert (plan.profile.name, plan.processes) == ("bench", 2)
    assert {name: getattr(plan, name) for name in load} == load
    # what the user says goes before
    more: dict[str, Any] = {"users": 4, "duration": 60.0, "mix": 0, "canaries": 5.0}
    plan = plan_of([A, B], **more, **before(200, duration_s=7200.0, **settings))
    assert (plan.users, plan.duration_s, plan.streamed, plan.canaries) == (4, 60.0, 0.0, 5.0)


def test_a_run_that_had_all_its_time_needs_a_word_how_much_longer() -> None:
    with pytest.raises(ToolkitError) as caught:
        plan_of([A], **before(60, duration_s=60))
    assert caught.value.message == "run `rrrrrrrrrrrr` has had all its 60 s"
    assert "--duration" in caught.value.hint
    assert plan_of([A], duration=5.0, **before(60, duration_s=60)).duration_s == 5.0


def test_a_run_without_a_planned_end_goes_on_for_a_window_and_a_damaged_one_not_at_all() -> None:
    assert plan_of([A], **before(100, duration_s=None)).duration_s == 800.0
    with pytest.raises(ToolkitError, match="settings of run `rrrrrrrrrrrr` are not as"):
        plan_of([A], resumed=Run(id="r" * 12, verb="blast", started_at=0.0, settings="["))


def test_a_run_goes_on_with_its_own_hosts_only() -> None:
    run = before()["resumed"]
    refuse_other_hosts(run, [B, A], [A, B])
    refuse_other_hosts(run, [A], [])
    with pytest.raises(ToolkitError) as caught:
        refuse_other_hosts(run, [A, C], [A, B])
    assert caught.value.message == f"run `{run.id}` had other hosts; these differ: `b`, `c`"


# --- the child's words ------------------------------------------------------------------------------


def test_the_command_line_says_all_of_the_plan() -> None:
    plan = plan_of([A, B], users=4, duration=90.5, rate=2.5, mix=25, max_tokens=16, model="m")
    assert words(plan, not_neutral="`a` is here", ca="ca.pem") == {
        "--hosts-file": "hosts",
        "--db": "data/toolkit.db",
        "--run": "r1",
        "--profile": "contest",
        "--canaries": "1.0",
        "--request-timeout": "60.0",
        "--mix": "25",
        "--max-tokens": "16",
        "--model": "m",
        "--rate": "2.5",
        "--endpoint": "/v1/chat/completions",
        "--non-neutral": "`a` is here",
        "--ca": "ca.pem",
        "--exit-code-on-error": "0",
        "--users": "4",
        "--spawn-rate": "4.0",
        "--run-time": "91s",
    }
    line = line_of(plan, insecure=True)
    assert Path(line[1]).name == "blast_alone.py"
    assert {"--headless", "--insecure", "--skip-log-setup"} <= set(line)


def test_a_resumed_run_is_named_as_one_and_several_processes_meet_on_loopback_only() -> None:
    resumed = words(plan_of([A], **before(duration_s=60)), is_resumed=True)
    assert resumed["--resume"] == "r1"
    assert "--run" not in resumed
    several = words(plan_of([A], processes=3))
    assert several["--processes"] == "3"
    assert several["--master-bind-host"] == several["--master-host"] == "127.0.0.1"
    assert several["--master-bind-port"] == several["--master-port"]


def test_the_hosts_file_means_the_same_hosts_and_is_gone_afterwards() -> None:
    hosts = [
        Host(
            name="alice",
            url="https://gpu.example/base",
            team="red",
            model="x/y",
            root="z",
            max_model_len=4096,
            api_key_env="ALICE_KEY",
            note="n=1",
        ),
        one_host("10.0.0.4"),
        one_host("http://[::1]:9/a=b"),
    ]
    with hosts_file(hosts) as file:
        assert read_hosts(file.read_text(), "f") == hosts
        assert file.stat().st_mode & 0o777 == 0o600
    assert not file.exists()


def test_no_key_is_on_the_command_line_or_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE_KEY", "hunter2!")
    host = Host(name="a", url=A.url, api_key_env="ALICE_KEY")
    with hosts_file([host]) as file:
        assert "hunter2!" not in json.dumps(line_of(plan_of([host]))) + file.read_text()
