"""Several engines' pages as one: read like the page of so many replicas, and sound to a second reader."""

from itertools import groupby

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.raw_server import recorded

from toolkit.dialects import EngineNumbers, read_numbers
from toolkit.promtext import read_page
from toolkit.proxy.upstreams.engine_pages import one_page

RECORDED = recorded("metrics_after_load.txt").decode()


def numbers(page: str) -> EngineNumbers:
    found = read_numbers(read_page(page), "text/plain")
    assert found is not None
    return found


def together(*those: str) -> str:
    return one_page(dict(enumerate(those)))


def test_one_that_is_left_keeps_its_number() -> None:
    assert one_page({2: "up 1\n"}) == 'up{WorkerId="2"} 1\n'
    assert one_page({}) == ""


def test_engines_add_up_as_replicas_do() -> None:
    one, two = numbers(RECORDED), numbers(together(RECORDED, RECORDED))
    assert (two.engine, two.dialect, two.models) == (one.engine, one.dialect, one.models)
    assert (one.engines, two.engines) == (1, 2)
    for name in (
        "running waiting num_gpu_blocks kv_cache_tokens kv_cache_max_concurrency prompt_tokens_total"
        " generation_tokens_total requests_total prefix_hits_total prefix_queries_total"
    ).split():
        assert getattr(two, name) == 2 * getattr(one, name), name
    # shares and settings are what they were, quantiles of twice as many of the same, too
    assert (two.kv_cache_usage, two.settings) == (one.kv_cache_usage, one.settings)
    assert (two.prefix_caching, two.started_at) == (one.prefix_caching, one.started_at)
    assert one.ttft is not None
    assert two.ttft is not None
    assert two.ttft.count == 2 * one.ttft.count
    assert two.ttft.quantile(0.5) == one.ttft.quantile(0.5)


def test_each_family_is_named_once_and_none_loses_a_series() -> None:
    both = together(RECORDED, RECORDED)
    families = list(text_string_to_metric_families(both))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    alone = list(text_string_to_metric_families(RECORDED))
    assert {family.name: 2 * len(family.samples) for family in alone} == {
        family.name: len(family.samples) for family in families
    }
    series = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in families
        for sample in family.samples
    ]
    assert len(series) == len(set(series))
    # a family's lines stand together
    told = [line.split(" ")[2] for line in both.splitlines() if line.startswith("# TYPE")]
    assert len([name for name, _ in groupby(told)]) == len(set(told))


@pytest.mark.parametrize(
    ("line", "numbered"),
    [
        ("up 1", 'up{WorkerId="1"} 1'),
        ("up{} 1", 'up{WorkerId="1"} 1'),
        ('up{a="}{"} 1 170', 'up{WorkerId="1",a="}{"} 1 170'),
        ('up{WorkerId="x",a="b"} 1', 'up{WorkerId="x",a="b"} 1'),
        ("<html>", "<html>"),
    ],
)
def test_a_line_gets_its_pages_number_among_its_labels(line: str, numbered: str) -> None:
    assert numbered in together("", line + "\n").splitlines()


def test_an_engine_that_knows_less_or_says_it_otherwise_spoils_no_family() -> None:
    first = "# HELP a One.\n# TYPE a counter\na_total 1\n# TYPE b gauge\nb 2\n# EOF\n"
    second = "# HELP a Two.\n# TYPE a counter\na_total 3\nc 4\n"
    assert together(first, second) == (
        "# HELP a One.\n"
        "# TYPE a counter\n"
        'a_total{WorkerId="0"} 1\n'
        'a_total{WorkerId="1"} 3\n'
        "# TYPE b gauge\n"
        'b{WorkerId="0"} 2\n'
        'c{WorkerId="1"} 4\n'
        "# EOF\n"
    )


def test_a_name_that_only_begins_like_a_family_is_none_of_it() -> None:
    page = "# TYPE a gauge\na 1\nab 2\n"
    assert [line.split("{")[0] for line in together(page, page).splitlines()] == [
        *("# TYPE a gauge", "a", "a", "ab", "ab")
    ]
