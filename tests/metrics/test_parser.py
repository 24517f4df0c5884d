import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from toolkit.metrics import parser
from toolkit.metrics.parser import Histogram, Quantile, read_page

PAGES = Path(__file__).parents[1] / "data" / "metrics"
RECORDED = ["idle", "during_load", "after_load", "no_prefix_caching", "fp8", "nostats", "queueing"]
TTFT = "vllm:time_to_first_token_seconds"
INF = math.inf

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def recorded(name: str) -> str:
    return (PAGES / "recorded" / f"{name}.txt").read_text(encoding="utf-8")


def histogram(edges, counts, total=None) -> Histogram:
    return Histogram(edges=edges, counts=counts, sum=total, count=counts[-1])


# Reading lines


@pytest.mark.parametrize("name", RECORDED)
def test_every_sample_of_a_recorded_page_reads_as_prometheus_client_reads_the_whole(name):
    text = recorded(name)
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    page = read_page(text)
    ours = {
        (name, sample.labels): sample.value for name in page.lines for sample in page.samples(name)
    }
    assert ours == theirs
    assert page.bad_lines == 0
    assert not page.cut


@pytest.mark.parametrize(
    ("rest", "left"),
    [
        ("total_b 12", ["total"]),  # of 123.0, perhaps
        ('total_b{x="2"', ["total"]),
        ("total_b", ["total"]),
        ("total_", ["total"]),
        ("tot", []),
        ("# HELP total_b And then", ["total", "total_b"]),
        ("{", ["total", "total_b"]),
    ],
)
def test_of_a_line_without_an_end_nothing_is_known_nor_of_its_name(rest, left):
    page = read_page('total 1\ntotal_b{x="1"} 5\n' + rest)
    assert (list(page.lines), page.ended_early) == (left, True)


@pytest.mark.parametrize("end", ["", "\n", "# EOF", "# EOF\n", "  "])
def test_a_page_that_ends_with_a_line_is_whole(end):
    page = read_page("total 1\n" + end)
    assert (page.total("total"), page.ended_early) == (1, False)
    assert page.openmetrics is ("EOF" in end)


def test_timestamps_and_exemplars_are_not_taken_for_values():
    page = read_page(
        "requests_total 5 1795200000000\n"
        'ttft_bucket{le="0.1"} 7 # {trace_id="a b",note="} # {"} 0.05 1795200000.5\n'
        'tokens_total 9 # {trace_id="x"} 3\n'
        "# EOF\n"
    )
    assert page.total("requests_total") == 5
    assert page.total("ttft_bucket", le="0.1") == 7
    assert page.total("tokens_total") == 9
    assert page.bad_lines == 0


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_only_a_newline_ends_a_line(separator):
    page = read_page(f'a{{v="one{separator}two"}} 1\nb 2\n')
    assert [sample.label("v") for sample in page.samples("a")] == [f"one{separator}two"]
    assert page.bad_lines == 0


@calm
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.floats(allow_nan=False),
        min_size=1,
        max_size=5,
    )
)
def test_labels_and_values_survive_prometheus_clients_own_writers(values):
    registry = CollectorRegistry()
    gauge = Gauge("some_gauge", "Help.", ["label"], registry=registry)
    for label, value in values.items():
        gauge.labels(label=label).set(value)
    for write in (generate_latest, generate_openmetrics):
        page = read_page(write(registry).decode())
        found = {sample.label("label"): sample.value for sample in page.samples("some_gauge")}
        assert found == values
        assert page.bad_lines == 0


# Bad input


@pytest.mark.parametrize(
    "bad",
    [
        "<html>",
        '{"json": 1}',
        "a",
        "a one",
        'a{x="1} 1',
        'a{x="1",x="2"} 1',
        "a b 1",
        'a b{x="1"} 1',
        'a{ ="x"} 1',  # IndexError inside the parser
        "a 1 " + "9" * 400,  # OverflowError inside the parser
        "a " + "9" * 400,  # an int too large for a float
        "a 1_0",
        "\x00\x01",
        'a{x="' + "y" * parser.MAX_LINE_CHARACTERS + '"} 1',
    ],
)
def test_one_bad_line_costs_that_line(bad):
    page = read_page(f'a{{x="before"}} 1\n{bad}\na{{x="after"}} 2\n')
    assert page.total("a") == 3
    assert page.bad_lines == 1
    assert page.first_bad_line
    assert len(page.first_bad_line) <= parser.SHOWN_CHARACTERS
    assert page.first_bad_line.isprintable()


def test_a_series_that_stands_twice_counts_once():
    page = read_page('a{x="1",y="2"} 3\na{y="2",x="1"} 4\na{x="2"} 5\n')
    assert page.total("a") == 8  # 3 + 5


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_values_that_are_not_finite_are_unknown(value):
    page = read_page(f'a{{e="0"}} {value}\na{{e="1"}} 0.5\nonly {value}\n')
    assert page.total("a") == 0.5
    assert page.total("only") is None
    assert [reading.name for reading in page.readings()] == ["a"]


@calm
@given(
    st.text('{}",\\=# \t1eE+-.le', max_size=25).map(lambda labels: labels.replace("x{", "")),
    st.sampled_from(["1", "0.5", "-2e3", "+Inf", "NaN", "7 1795200000000", "", "x"]),
)
def test_an_odd_line_reads_as_prometheus_client_reads_it_alone(labels, value):
    line = f"a{{{labels}}} {value}"
    try:
        (family,) = text_string_to_metric_families(line)
        theirs = [(tuple(sorted(s.labels.items())), str(float(s.value))) for s in family.samples]
    except (ValueError, IndexError, OverflowError):
        theirs = []
    found = read_page(line + "\n" + line.replace("a{", "b{", 1)).samples("a")
    assert [(sample.labels, str(sample.value)) for sample in found] == theirs


# Limits


def test_a_name_with_too_many_lines_is_unknown_not_half_summed(monkeypatch):
    monkeypatch.setattr(parser, "MAX_PARSED_CHARACTERS", 1000)
    flood = "".join(f'a{{x="{i}"}} 1\n' for i in range(100))
    page = read_page(flood + "b 2\n")
    assert page.total("a") is None
    assert page.cut
    assert page.total("b") == 2


def test_a_flood_is_cut_at_its_real_size():
    page = read_page("a 1\n" * 300_000)
    assert page.cut
    assert page.total("a") is None


# Looking up


def test_totals_select_by_labels():
    page = read_page('a{e="0",r="stop"} 1\na{e="0",r="length"} 2\na{e="1",r="stop"} 4\na 8\n')
    assert page.total("a") == 15
    assert page.total("a", r="stop") == 5
    assert page.total("a", e="") == 8  # absent equals empty
    assert page.total("a", e="9") is None
    assert page.total("absent") is None


def test_readings_are_the_gauges_and_counters_and_nothing_else():
    text = recorded("nostats") + 'vllm:num_requests_running{model_name="m",engine="0"} 2\n'
    found = {reading.name for reading in read_page(text).readings()}
    # by eye from the file; left out: 4 python_*, 5 of 6 process_*, 5 *_created, 2 *_bucket
    assert found == {
        "process_start_time_seconds",
        "http_requests_total",
        "http_request_size_bytes_count",
        "http_request_size_bytes_sum",
        "http_response_size_bytes_count",
        "http_response_size_bytes_sum",
        "http_request_duration_highr_seconds_count",
        "http_request_duration_highr_seconds_sum",
        "http_request_duration_seconds_count",
        "http_request_duration_seconds_sum",
        "vllm:num_requests_running",
    }


# Histograms


def test_what_happened_between_two_looks_is_the_difference_of_their_histograms():
    earlier = read_page(recorded("during_load")).histogram(TTFT)
    between = read_page(recorded("queueing")).histogram(TTFT).since(earlier)
    # grep: 31 then 45 observed; (7.5, 10] had 3 and has 16, (10, 20] had 0 and has 1
    assert between.count == 14
    assert between.sum == pytest.approx(240.093323469162 - 118.11045384407043)
    # rank 7 of 13 in (7.5, 10]: 7.5 + 2.5 * 7 / 13; rank 13.3 in (10, 20]: 10 + 10 * 0.3 / 1
    assert between.quantile(0.5).value == pytest.approx(8.846154, abs=1e-6)
    assert between.quantile(0.95).value == pytest.approx(13.0, abs=1e-6)


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        (((1.0, INF), (5.0, 9.0)), ((1.0, INF), (5.0, 8.0))),  # fewer in all
        (((1.0, INF), (5.0, 9.0)), ((1.0, INF), (4.0, 12.0))),  # fewer in one bucket
        (((1.0, 2.0, INF), (1.0, 9.0, 9.0)), ((1.0, 2.0, INF), (5.0, 9.0, 14.0))),  # inside fell
        (((1.0, INF), (5.0, 9.0)), ((2.0, INF), (6.0, 9.0))),  # another server's edges
    ],
)
def test_a_restart_leaves_no_difference(earlier, now):
    assert histogram(*now).since(histogram(*earlier)) is None


@pytest.mark.parametrize(
    ("edges", "counts", "total", "quantile", "mean"),
    [
        ((0.3, INF), (0.0, 0.0), 0.0, Quantile(), None),
        # all in the last bucket: no edge is known that they lie between
        ((INF,), (4.0,), 2.0, Quantile(), 0.5),
        ((0.3, 1.0, INF), (9.0, 10.0, 10.0), 5.0, Quantile(below=0.3), 0.5),
        ((0.3, 1.0, INF), (1.0, 2.0, 10.0), 5.0, Quantile(above=1.0), 0.5),
    ],
)
def test_a_median_that_no_two_edges_hold(edges, counts, total, quantile, mean):
    found = histogram(edges, counts, total)
    assert (found.quantile(0.5), found.mean()) == (quantile, mean)


def test_a_sum_that_fell_leaves_no_difference():
    assert histogram((INF,), (5.0,), 1.0).since(histogram((INF,), (4.0,), 2.0)) is None


def test_engines_are_summed_on_the_edges_they_share():
    page = read_page(
        'd_bucket{engine="0",le="0.1"} 1\nd_bucket{engine="0",le="0.5"} 2\n'
        'd_bucket{engine="0",le="1.0"} 3\nd_bucket{engine="0",le="+Inf"} 4\n'
        'd_bucket{engine="1",le="0.1"} 10\nd_bucket{engine="1",le="1"} 30\n'
        'd_bucket{engine="1",le="+Inf"} 40\n'
        'd_count{engine="0"} 4\nd_count{engine="1"} 40\nd_sum{engine="0"} 2\nd_sum{engine="1"} 20\n'
    )
    assert page.histogram("d") == Histogram(
        edges=(0.1, 1.0, INF), counts=(11.0, 33.0, 44.0), sum=22.0, count=44.0
    )


def test_a_lost_infinity_bucket_is_replaced_by_the_count():
    page = read_page('d_bucket{le="1"} 3\nd_bucket{le="+Inf"} oops\nd_count 5\nd_sum 2\n')
    found = page.histogram("d")
    assert (found.edges, found.counts) == ((1.0, INF), (3.0, 5.0))


@pytest.mark.parametrize("edge", ["", "NaN", "wide"])
def test_a_bucket_with_a_bad_edge_is_left_out(edge):
    page = read_page(f'd_bucket{{le="1"}} 3\nd_bucket{{le="{edge}"}} 4\nd_bucket{{le="+Inf"}} 5\n')
    assert page.histogram("d").edges == (1.0, INF)


def test_counts_that_fall_are_lifted_as_prometheus_does():
    page = read_page('d_bucket{le="1"} 3\nd_bucket{le="2"} 2\nd_bucket{le="+Inf"} 5\n')
    assert page.histogram("d").counts == (3.0, 3.0, 5.0)


@calm
@given(st.lists(st.floats(0, 20, allow_nan=False), min_size=1, max_size=50))
def test_a_quantile_brackets_the_true_one(times):
    registry = CollectorRegistry()
    edges = (0.5, 1.0, 2.0, 5.0, 10.0)
    written = ClientHistogram("d", "Help.", buckets=edges, registry=registry)
    for time in times:
        written.observe(time)
    found = read_page(generate_latest(registry).decode()).histogram("d")
    # the nearest-rank median of the raw times, and the edges around it, by looking
    true = sorted(times)[math.ceil(0.5 * len(times)) - 1]
    low = max((edge for edge in edges if edge < true), default=None)
    high = min((edge for edge in edges if edge >= true), default=None)
    guess = found.quantile(0.5)
    if low is None:
        assert guess == Quantile(below=0.5)
    elif high is None:
        assert guess == Quantile(above=10.0)
    else:
        assert low <= guess.value <= high
    assert found.mean() == pytest.approx(sum(times) / len(times))
