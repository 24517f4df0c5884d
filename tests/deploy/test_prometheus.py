"""What Prometheus is told to look at: by its own checker, and by what the file says."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.promtool import BIG, QWEN, SITE, needs_promtool, promtool, rendered

from toolkit.deploy import prometheus
from toolkit.deploy.metric_names import quoted
from toolkit.deploy.site import Site
from toolkit.deploy.write import templates

ALONE = replace(SITE, engines=(replace(QWEN, spare_port=None),), proxy=None)


def told(site: Site, name: str = "prometheus.yml") -> Any:
    files = prometheus.kit(site, templates()).files
    return yaml.safe_load(next(each.text for each in files if each.path == name))


@needs_promtool
@pytest.mark.parametrize("site", [SITE, ALONE], ids=["proxy", "one engine alone"])
def test_promtool_takes_the_configuration_and_its_rules(site: Site, tmp_path: Path) -> None:
    folder = rendered(tmp_path, site)
    found = promtool("check", "config", folder / "prometheus.yml")
    assert found.returncode == 0, found.stdout + found.stderr
    rules = promtool("check", "rules", "--lint=all", "--lint-fatal", *folder.glob("rules/*.yml"))
    assert rules.returncode == 0, rules.stdout + rules.stderr


@needs_promtool
def test_a_key_that_is_not_there_yet_is_named_by_its_file(tmp_path: Path) -> None:
    folder = rendered(tmp_path)
    (folder / "keys" / "BIG_KEY").unlink()
    found = promtool("check", "config", folder / "prometheus.yml")
    assert found.returncode != 0
    assert "keys/BIG_KEY" in found.stderr


def test_both_places_of_an_engine_are_looked_at_and_the_proxys_admin() -> None:
    jobs = {each["job_name"]: each for each in told(SITE)["scrape_configs"]}
    assert jobs["engine"]["static_configs"] == [
        {"targets": ["127.0.0.1:8101"], "labels": {"host": "qwen", "slot": "a"}},
        {"targets": ["127.0.0.1:8102"], "labels": {"host": "qwen", "slot": "b"}},
    ]
    assert jobs["proxy"]["static_configs"] == [{"targets": ["127.0.0.1:8002"]}]


def test_an_engine_behind_a_key_is_of_the_same_job_and_reads_the_key_from_a_file() -> None:
    (found,) = (each for each in told(SITE)["scrape_configs"] if "authorization" in each)
    assert found == {
        "job_name": "engine-BIG_KEY",  # names of jobs can't stand twice
        "authorization": {"credentials_file": "keys/BIG_KEY"},
        "static_configs": [
            {"targets": ["[::1]:8105"], "labels": {"job": "engine", "host": "big", "team": "red"}}
        ],
    }


def test_engines_behind_one_key_share_a_job() -> None:
    other = replace(BIG, name="other", port=8106)
    jobs = told(replace(SITE, engines=(BIG, QWEN, other)))["scrape_configs"]
    assert [each["job_name"] for each in jobs] == ["engine", "engine-BIG_KEY", "proxy"]
    assert [len(each["static_configs"]) for each in jobs] == [2, 2, 1]


def test_one_engine_alone_has_one_target_and_no_proxys_rules() -> None:
    assert [each["job_name"] for each in told(ALONE)["scrape_configs"]] == ["engine"]
    (target,) = told(ALONE)["scrape_configs"][0]["static_configs"]
    assert target == {"targets": ["127.0.0.1:8101"], "labels": {"host": "qwen"}}
    for name in ("rules/recording.yml", "rules/alerts.yml"):
        rules = [rule for group in told(ALONE, name)["groups"] for rule in group["rules"]]
        assert rules
        assert not [rule for rule in rules if "proxy" in rule["expr"]]


def test_a_look_ends_before_the_next_one_begins() -> None:
    settings = told(SITE)["global"]
    assert settings["scrape_timeout"] == "4s"
    assert settings["scrape_interval"] == "5s"
    assert settings["external_labels"] == {"site": "lab"}


@needs_promtool
def test_a_name_that_would_break_out_is_refused_or_stays_a_value(tmp_path: Path) -> None:
    team = 'red"} # {{ x }} \\'
    site = replace(SITE, engines=(replace(QWEN, team=team),))
    (first, *_) = told(site)["scrape_configs"][0]["static_configs"]
    assert first["labels"]["team"] == team
    assert promtool("check", "config", rendered(tmp_path, site) / "prometheus.yml").returncode == 0


def test_the_next_step_writes_a_key_for_its_owner_alone(tmp_path: Path) -> None:
    step = prometheus.kit(SITE, templates()).next_steps[0]
    command = step.split("`")[1]
    environ = os.environ | {"BIG_KEY": "sk-1"}
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=environ, check=True)
    file = tmp_path / "keys" / "BIG_KEY"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("sk-1\n", 0o600)


@needs_promtool
def test_a_models_name_stays_inside_its_quotes(tmp_path: Path) -> None:
    model = 'a"b\\c\u00e9\t"} or up{'
    assert quoted("plain") == '"plain"'
    rule = {"record": "waiting", "expr": f"up{{host={quoted(model)}}}"}
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    assert promtool("check", "rules", file).returncode == 0
