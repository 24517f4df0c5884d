"""The dashboard: known to Grafana's own schema in every key, drawn without gaps, and right in every query and mark."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from support.dashboard import board_of, panels
from support.promtool import SITE

from toolkit.deploy import grafana, prometheus
from toolkit.deploy.render import TEMPLATES
from toolkit.deploy.site import Site
from toolkit.records import Event
from toolkit.store import Store

STORED = replace(SITE, database="data/toolkit.db", stack_file="/srv/lab/stack.toml")
SITES = {
    "proxy and marks": STORED,
    "no marks": SITE,
    "engines alone": replace(STORED, proxy=None),
}
every_site = pytest.mark.parametrize("site", SITES.values(), ids=SITES.keys())

OPEN = re.compile(r"annotations\.list\.(titleFormat|tagKeys|step|useValueForTime|target\..*)")
"""Where the schema ends in `...`: a data source's own words, which are Prometheus' (its annotations.ts) and the SQLite plugin's."""


@every_site
def test_grafanas_own_schema_knows_every_key(site: Site) -> None:
    register_default_plugins()
    board = board_of(site)
    known = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert [each for each in lost(board, known) if not OPEN.fullmatch(each)] == []


def test_a_key_that_grafana_does_not_know_would_be_found_out() -> None:
    register_default_plugins()
    board = board_of(SITE)
    board["panels"][1]["fieldConfig"]["defaults"]["custom"]["lineWith"] = 2
    board["panels"][1]["grid"] = {}
    board["templating"]["list"][1]["include_all"] = True
    known = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert {"panels.fieldConfig.defaults.custom.lineWith", "panels.grid"} <= set(lost(board, known))
    assert "templating.list.include_all" in lost(board, known)


def lost(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Places of keys and values that did not come back from Grafana's classes."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            inner = f"{place}.{key}" if place else key
            if key in theirs:
                yield from lost(value, theirs[key], inner)
            else:
                yield inner
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from lost(one, other, place)
    elif ours != theirs:
        yield place


@every_site
def test_every_panel_says_what_it_means_and_asks_the_chosen_source(site: Site) -> None:
    board = board_of(site)
    for panel in panels(board):
        assert panel["description"].endswith((".", ")")), panel["title"]
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)


def test_marks_and_restarts_come_with_their_host_and_reason_from_a_real_database(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "toolkit.db") as store:
        told = {"name": "alice", "url": "http://127.0.0.1:8001"}
        store.add_event(Event(at=1000.25, kind="mark", text="swapped to GPTQ", **told))
        store.add_event(Event(at=1001.0, kind="mark", text="lunch"))
        store.add_event(Event(at=1002.0, kind="restart", text="no token for 31 s", **told))
        store.add_event(Event(at=1003.0, kind="start", text="a blast"))
        store.add_event(Event(at=5000.0, kind="mark", text="later", **told))
    # Grafana's window is in milliseconds
    asked = marks_query(STORED).replace("$__from", "999000").replace("$__to", "2000000")
    with closing(sqlite3.connect(f"file:{tmp_path}/toolkit.db?mode=ro", uri=True)) as database:
        rows = database.execute(asked).fetchall()
    assert rows == [
        (1000.25, "alice: swapped to GPTQ", "mark"),
        (1001.0, "lunch", "mark"),
        (1002.0, "alice: no token for 31 s", "restart"),
    ]


def marks_query(site: Site) -> str:
    (marks,) = (x for x in board_of(site)["annotations"]["list"] if x["name"] == "Marks")
    assert marks["target"]["queryText"] == marks["target"]["rawQueryText"]
    assert marks["datasource"] == {"type": "frser-sqlite-datasource", "uid": "${marks}"}
    found: str = marks["target"]["queryText"]
    return found


@pytest.mark.parametrize(
    ("database", "stack_file", "path"),
    [
        ("data/toolkit.db", "/srv/lab/stack.toml", "/srv/lab/data/toolkit.db"),
        ("/var/lib/toolkit.db", "/srv/lab/stack.toml", "/var/lib/toolkit.db"),
        ("toolkit.db", "stack.toml", "toolkit.db"),
        (None, "/srv/lab/stack.toml", None),
    ],
)
def test_grafana_is_told_where_the_database_lies(
    database: str | None, stack_file: str, path: str | None
) -> None:
    site = replace(SITE, database=database, stack_file=stack_file)
    sources = provisioned(site, "datasources")["datasources"]
    assert sources[0]["type"] == "prometheus"
    assert [each["jsonData"]["path"] for each in sources[1:]] == ([path] if path else [])


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9090"),
        ("0.0.0.0", "http://127.0.0.1:9090"),
        ("10.0.0.5", "http://10.0.0.5:9090"),
        ("::1", "http://[::1]:9090"),
    ],
)
def test_prometheus_is_asked_where_it_was_told_to_listen(listen: str, url: str) -> None:
    site = replace(SITE, listen=listen)
    assert provisioned(site, "datasources")["datasources"][0]["url"] == url
    assert any(url in step for step in grafana.kit(site).next_steps)
    started = " ".join(prometheus.kit(site).next_steps)
    assert f"--web.listen-address={'[::1]' if listen == '::1' else listen}:9090" in started


def test_sources_of_two_stacks_have_names_of_their_own() -> None:
    uids = [
        each["uid"]
        for name in ("lab", "shop", "x" * 62 + "a", "x" * 62 + "b")
        for each in provisioned(replace(STORED, name=name), "datasources")["datasources"]
    ]
    assert len(set(uids)) == 8
    assert all(len(uid) <= 40 for uid in uids)  # Grafana's longest
    boards = {
        board_of(replace(SITE, name=name))["uid"]
        for name in ("lab", "shop", "x" * 62 + "a", "x" * 62 + "b")
    }
    assert len(boards) == 4
    assert all(len(uid) <= 40 for uid in boards)


def provisioned(site: Site, kind: str) -> Any:
    files = grafana.kit(site).files
    path = f"provisioning/{kind}/toolkit-{site.name}.yml"
    found = yaml.safe_load(next(each.text for each in files if each.path == path))
    assert found["apiVersion"] == 1
    return found


def test_a_mark_stands_where_grafana_keeps_it_and_a_panel_that_grafana_moved_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = json.loads((TEMPLATES / "grafana/dashboard.json").read_text())
    # as somebody leaves it who works in Grafana: a wide panel, a variable without a label, numbers of Grafana's own
    row, first = board["panels"][:2]
    first |= {"id": 77, "gridPos": {"x": 3, "y": 40, "w": 24, "h": 5}}
    board["panels"][2]["title"] += " [if no proxy]"
    board["templating"]["list"].append({"type": "constant", "name": "site", "query": "x"})
    board |= {"id": 5, "version": 12}
    (tmp_path / "grafana").mkdir()
    (tmp_path / "grafana/dashboard.json").write_text(json.dumps(board))
    monkeypatch.setattr(grafana, "TEMPLATES", tmp_path)
    found = grafana.dashboard(has_proxy=True, has_marks=False)
    assert found["panels"][0]["title"] == row["title"].removesuffix(" [if proxy]")
    assert [each["gridPos"] for each in found["panels"][:3]] == [
        {"x": 0, "y": 0, "w": 24, "h": 1},
        {"x": 0, "y": 1, "w": 24, "h": 5},
        {"x": 0, "y": 6, "w": 8, "h": 8},
    ]
    assert [each["id"] for each in found["panels"][:3]] == [1, 2, 3]
    assert found["panels"][2]["title"] == "Time to first token"
    assert "[if" not in json.dumps(found)


def test_every_mark_is_one_that_is_known() -> None:
    text = (TEMPLATES / "grafana/dashboard.json").read_text()
    assert set(re.findall(r"\[if ([^]]+)\]", text)) == {"proxy", "no proxy", "marks"}
