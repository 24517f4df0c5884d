"""Grafana for a site: one dashboard of engines and proxy, and how Grafana finds it. Pure text; nothing is asked or started.

Restarts are marked from Prometheus. What people wrote down with `toolkit mark` stands in the toolkit's own database, which Prometheus never
sees: the dashboard asks it through Grafana's SQLite data source (`frser-sqlite-datasource`, a plugin), where that is installed.
A metric of marks would have no text, and one that was made later than it happened would stand at the wrong moment.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.deploy.grafana_panels import Happening, Kind, Panel, Row, happenings, rows
from toolkit.deploy.metric_names import PROXY_START_TIME, RUNNING
from toolkit.deploy.names import address, dns_label
from toolkit.deploy.prometheus import PORT
from toolkit.deploy.site import Kit, Rendered, Site
from toolkit.deploy.templating import render

Json = dict[str, Any]

SCHEMA = 41
"""Of dashboards, as Grafana 12 writes them; what is older is carried over when it is read."""
FOLDER = "grafana/"
"""Of the templates."""
PLACE = "/etc/grafana"
"""Where Grafana's packages and its container image have their configuration."""
LONGEST_MARK = 29
"""Of a stack's name in a `uid`, of which Grafana takes 40 characters: `prometheus-` goes before it."""
WIDTH = 24
"""Of a dashboard, in Grafana's columns."""
PANEL_WIDTH, PANEL_HEIGHT = 8, 8
MARKS_PLUGIN = "frser-sqlite-datasource"
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
MARKS: Json = {"type": MARKS_PLUGIN, "uid": "${marks}"}
MARKS_SQL = (
    "SELECT events.at AS time,"
    " CASE WHEN hosts.name IS NULL THEN '' ELSE hosts.name || ': ' END || events.text AS text,"
    " events.kind AS tags"
    " FROM events LEFT JOIN hosts ON hosts.id = events.host_id"
    " WHERE events.kind IN ('mark', 'restart', 'model', 'config')"
    " AND events.at BETWEEN $__from / 1000 AND $__to / 1000 ORDER BY events.at"
)
"""Grafana puts milliseconds in for `$__from` and `$__to`; times in the database are seconds, as the plugin wants them."""


def kit(site: Site, templates: Mapping[str, str]) -> Kit:
    """The dashboard, and Grafana's files that tell of it."""
    database = _database(site)
    asked = f"http://{address(site.asked_at, PORT)}"

    def provisioning(kind: str) -> Rendered:
        text = render(
            templates[f"{FOLDER}{kind}.yml.j2"],
            language="yaml",
            site=site,
            place=PLACE,
            mark=_mark(site),
            prometheus=asked,
            database=database,
            marks=MARKS_PLUGIN,
        )
        return Rendered(path=_provisioned(kind, site), text=text)

    board = json.dumps(dashboard(site), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Kit(
        files=(
            # each stack's in a folder of its own: two that are looked for in one would be found twice, and Grafana updates neither
            Rendered(path=f"dashboards/{site.name}/toolkit.json", text=board),
            provisioning("datasources"),
            provisioning("dashboards"),
        ),
        next_steps=tuple(_steps(site, database, asked)),
    )


def dashboard(site: Site) -> Json:
    """The dashboard as Grafana's JSON."""
    proxy = site.proxy is not None
    marks = _database(site) is not None
    events = [_annotation(each) for each in happenings(proxy=proxy)]
    return {
        "uid": f"toolkit-{_mark(site)}",
        "title": f"LLM serving: {site.name}",
        "description": "Engines and proxy of one stack. Written by `toolkit deploy grafana`.",
        "tags": ["toolkit", "vllm"],
        "timezone": "browser",
        "editable": True,
        # a moment that is pointed at in one picture is shown in all
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "schemaVersion": SCHEMA,
        "templating": {"list": list(_variables(proxy=proxy, marks=marks))},
        "annotations": {"list": [_own_annotations(), *events, *([_marks()] if marks else [])]},
        "panels": list(_placed(rows(proxy=proxy))),
    }


def _mark(site: Site) -> str:
    """The stack's name, cut so that two long ones stay two."""
    return dns_label(site.name, LONGEST_MARK)


def _provisioned(kind: str, site: Site) -> str:
    return f"provisioning/{kind}/toolkit-{site.name}.yml"


def _steps(site: Site, database: str | None, prometheus: str) -> Iterator[str]:
    yield f"Put them where Grafana looks: `cp -r provisioning dashboards {PLACE}/`, and restart it"
    if database is not None:
        yield (
            f"For marks as annotations: `grafana cli plugins install {MARKS_PLUGIN}`; its user has to reach {database}"
            " and the two files beside it (-wal, -shm)"
        )
    yield f"Prometheus is expected at {prometheus}: {_provisioned('datasources', site)} says so"


def _database(site: Site) -> str | None:
    """Its absolute path; what is no absolute one is taken from where the stack file lies."""
    if site.database is None or site.database.startswith("/"):
        return site.database
    folder, _, _ = site.stack_file.rpartition("/")
    return f"{folder}/{site.database}" if folder else site.database


# --- Panels -------------------------------------------------------------------------------------


def _placed(found: Sequence[Row]) -> Iterator[Json]:
    """Rows under each other, their panels three abreast."""
    number, top = 1, 0
    for row in found:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        number, top = number + 1, top + 1
        abreast = WIDTH // PANEL_WIDTH
        for place, panel in enumerate(row.panels):
            left, down = PANEL_WIDTH * (place % abreast), PANEL_HEIGHT * (place // abreast)
            grid = {"x": left, "y": top + down, "w": PANEL_WIDTH, "h": PANEL_HEIGHT}
            yield {"id": number, "gridPos": grid, **_panel(panel)}
            number += 1
        top += PANEL_HEIGHT * -(-len(row.panels) // abreast)


def _panel(panel: Panel) -> Json:
    defaults: Json = {"unit": UNITS.get(panel.unit, panel.unit), "min": 0, **_look(panel)}
    if panel.whole:
        defaults["max"] = 1
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
            }
            for place, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": OPTIONS[panel.kind],
    }


def _look(panel: Panel) -> Json:
    if panel.words:
        # a state is a word; a line between two states would be a third
        told = {value: {"text": word, "color": colour} for value, word, colour in panel.words}
        return {
            "mappings": [{"type": "value", "options": told}],
            "color": {"mode": "thresholds"},
            "custom": {"fillOpacity": 70, "lineWidth": 0},
        }
    if panel.kind != "timeseries":
        return {}
    lines = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    return {"custom": lines}


UNITS = {"tokens/s": "suffix: tokens/s", "steps/s": "suffix: steps/s"}
"""Ours that Grafana has no word for."""
_LEGEND: Json = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_TOOLTIP: Json = {"mode": "multi", "sort": "desc"}
OPTIONS: Mapping[Kind, Json] = {
    "timeseries": {"legend": _LEGEND, "tooltip": _TOOLTIP},
    "state-timeline": {
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.9,
    },
    "stat": {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"]},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value_and_name",
        "orientation": "auto",
        "justifyMode": "auto",
    },
    "heatmap": {
        # the buckets are vLLM's own: nothing is to be counted again
        "calculate": False,
        "color": {
            "mode": "scheme",
            "scheme": "Blues",
            "scale": "exponential",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
            "fill": "dark-blue",
        },
        "yAxis": {"unit": "short"},
        "cellGap": 1,
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
        "showValue": "never",
    },
}


# --- What can be chosen, and what is marked -----------------------------------------------------


def _variables(*, proxy: bool, marks: bool) -> Iterator[Json]:
    yield _source("datasource", "Prometheus", "prometheus")
    yield _choice("job", "Job", f"label_values({RUNNING}, job)")
    yield _choice("host", "Engine", f'label_values({RUNNING}{{job=~"$job"}}, host)', every=".*")
    model = f'label_values({RUNNING}{{job=~"$job",host=~"$host"}}, model_name)'
    yield _choice("model", "Model", model, every=".*")
    if proxy:
        yield _choice("proxy", "Proxy", f"label_values({PROXY_START_TIME}, instance)", every=".*")
    if marks:
        # without the plugin there is none to choose
        yield _source("marks", "Marks", MARKS_PLUGIN)


def _source(name: str, label: str, plugin: str) -> Json:
    return {"type": "datasource", "name": name, "label": label, "query": plugin, "refresh": 1}


def _choice(name: str, label: str, query: str, every: str | None = None) -> Json:
    """One, several or all; `every` is what all means, also for servers that tell no such label."""
    found = {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        # as the time changes: who was there then
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
    return found if every is None else {**found, "allValue": every}


def _own_annotations() -> Json:
    """Those that somebody makes in Grafana itself."""
    return {
        "name": "Annotations & Alerts",
        "type": "dashboard",
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
    }


def _annotation(found: Happening) -> Json:
    return {
        "name": found.name,
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": found.colour,
        # older versions read `expr`, newer ones the target
        "expr": found.expr,
        "step": "15s",
        "target": {"refId": "Anno", "expr": found.expr, "interval": "15s"},
        "titleFormat": found.title,
        "tagKeys": found.tags,
        "useValueForTime": found.at_value,
    }


def _marks() -> Json:
    query = {"queryText": MARKS_SQL, "rawQueryText": MARKS_SQL, "timeColumns": ["time"]}
    return {
        "name": "Marks",
        "datasource": MARKS,
        "enable": True,
        "iconColor": "green",
        "target": {"refId": "Anno", "queryType": "table", **query},
    }
