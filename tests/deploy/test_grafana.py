"""The dashboard: known to Grafana's own schema in every key, its marks right, its names its own."""

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
from support.dashboard import SITE, board_of

from toolkit.deploy import grafana
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
