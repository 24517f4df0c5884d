"""Grafana for a site: one dashboard of engines and proxy, and how Grafana finds it. Pure text; nothing is asked or started.

The dashboard is templates/grafana/dashboard.json as Grafana exports it: import it there, edit it, and paste its JSON model back. Its marks
stand where Grafana keeps them: what bears `[if proxy]`, `[if no proxy]` or `[if marks]` at the end of its title, name or label is
written only for a stack with a proxy, without one, or with a database; of a row all its panels. Its uid, title and the panels' places
are set here.

Restarts are marked from Prometheus. What people wrote down with `toolkit mark` stands in the toolkit's own database, which Prometheus never
sees: the dashboard asks it through Grafana's SQLite data source (`frser-sqlite-datasource`, a plugin), where that is installed.
A metric of marks would have no text, and one that was made later than it happened would stand at the wrong moment.
"""

import json
import re
from typing import Any

from toolkit.deploy.prometheus import PORT
from toolkit.deploy.render import TEMPLATES, Kit, Rendered, address, dns_label, render
from toolkit.deploy.site import Site

PLACE = "/etc/grafana"
"""Where Grafana's packages and its container image have their configuration."""
LONGEST_UID = 29
"""Of a stack's name in a `uid`, of which Grafana takes 40 characters: `prometheus-` goes before it."""
WIDTH = 24
"""Of a dashboard, in Grafana's columns."""
MARKS_PLUGIN = "frser-sqlite-datasource"


def kit(site: Site) -> Kit:
    """The dashboard, and Grafana's files that name it."""
    database = site.database
    if database is not None and not database.startswith("/"):
        # taken from where the stack file lies
        folder, _, _ = site.stack_file.rpartition("/")
        database = f"{folder}/{database}" if folder else database
    prometheus = f"http://{address(site.asked_at, PORT)}"
    uid = dns_label(site.name, LONGEST_UID)
    board = dashboard(has_proxy=site.proxy is not None, has_marks=database is not None)
    board |= {"uid": f"toolkit-{uid}", "title": f"LLM serving: {site.name}"}
    # each stack's in a folder of its own: two that are looked for in one would be found twice, and Grafana updates neither
    files = [
        Rendered(
            path=f"dashboards/{site.name}/toolkit.json",
            text=json.dumps(board, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        )
    ]
    for kind in ("datasources", "dashboards"):
        text = render(
            f"grafana/{kind}.yml.j2",
            "yaml",
            site=site,
            place=PLACE,
            uid=uid,
            prometheus=prometheus,
            database=database,
            marks=MARKS_PLUGIN,
        )
        files.append(Rendered(path=f"provisioning/{kind}/toolkit-{site.name}.yml", text=text))
    steps = [
        f"Put them where Grafana looks: `cp -r provisioning dashboards {PLACE}/`, and restart it"
    ]
    if database is not None:
        steps.append(
            f"For marks as annotations: `grafana cli plugins install {MARKS_PLUGIN}`; its user has to reach {database}"
            " and the two files beside it (-wal, -shm)"
        )
    steps.append(f"Prometheus is expected at {prometheus}: {files[1].path} says so")
    return Kit(files=tuple(files), next_steps=tuple(steps))


def dashboard(*, has_proxy: bool, has_marks: bool) -> dict[str, Any]:
    """The data file without what its marks leave out, and without marks; panels as they follow each other, numbered anew."""
    board: dict[str, Any] = json.loads((TEMPLATES / "grafana/dashboard.json").read_text("utf-8"))
    holds = {"proxy": has_proxy, "no proxy": not has_proxy, "marks": has_marks}

    def is_kept(each: dict[str, Any], key: str) -> bool:
        mark = re.search(r" \[if (.+)\]$", each.get(key) or "")
        if mark is not None:
            each[key] = each[key].removesuffix(mark[0])
        return mark is None or holds[mark[1]]

    for part, key in (("annotations", "name"), ("templating", "label")):
        board[part]["list"] = [each for each in board[part]["list"] if is_kept(each, key)]
    panels: list[dict[str, Any]] = []
    row_is_kept = True
    left = top = height = 0
    for panel in board["panels"]:
        kept = is_kept(panel, "title")
        if panel["type"] == "row":
            row_is_kept = kept
        if not (kept and row_is_kept):
            continue
        grid = panel["gridPos"]
        if left + grid["w"] > WIDTH:
            left, top, height = 0, top + height, 0
        panels.append(panel | {"id": len(panels) + 1, "gridPos": grid | {"x": left, "y": top}})
        left, height = left + grid["w"], max(height, grid["h"])
    return board | {"panels": panels}
