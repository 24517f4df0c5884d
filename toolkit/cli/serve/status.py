"""The table of `toolkit serve status`: one row for each engine, and the proxy below it."""

import time
from collections.abc import Mapping
from typing import Any

import click

from toolkit.report.tables import Column, screen
from toolkit.units import DASH, latency, share, span, whole

COLUMNS = (
    Column(title="engine"),
    Column(title="state"),
    Column(title="for", right=True),
    Column(title="model", spare=2, widest=40),
    Column(title="port", right=True),
    Column(title="pid", right=True, spare=1),
    Column(title="restarts", right=True),
    Column(title="KV tokens", right=True, spare=3),
    Column(title="cold TTFT", right=True, spare=4),
    Column(title="warm TTFT", right=True),
)


def print_table(told: Mapping[str, Any]) -> None:
    """Print what status told."""
    console = screen()
    console.table(COLUMNS, [_row(each) for each in told["engines"]])
    console.print()
    for each in told["engines"]:
        if each["why"]:
            click.echo(f"{each['name']} is {each['state']}: {each['why']} (its log: {each['log']})")
    click.echo(_proxy(told))


def _row(engine: Mapping[str, Any]) -> list[str]:
    return [
        engine["name"],
        engine["state"],
        span(max(0.0, time.time() - engine["since"])),
        engine["model"] or engine["kind"],
        str(engine["port"]),
        DASH if engine["pid"] is None else str(engine["pid"]),
        str(engine["restarts"]),
        whole(engine["kv_cache_tokens"]),
        latency(engine["cold_ttft_ms"]),
        latency(engine["warm_ttft_ms"]),
    ]


def _proxy(told: Mapping[str, Any]) -> str:
    if not told["open"]:
        return f"Not open yet (serve is pid {told['pid']})"
    if told["admin_url"] is None:
        return f"No proxy: clients ask {told['url']} (serve is pid {told['pid']})"
    ratio, rate = told["hit_ratio"], told["requests_per_s"]
    lately = "no requests in the last minute"
    if rate:
        hits = "" if ratio is None else f", {share(ratio)} of the cacheable ones hits"
        lately = f"{rate:,.3g} requests/s in the last minute{hits}"
    return f"Proxy: {told['url']}, {lately}; admin {told['admin_url']} (serve is pid {told['pid']})"
