"""The recorded series, against values worked out by hand; promtool evaluates them."""

from pathlib import Path

import pytest
import yaml
from contract.harness.deploys import LAB, deploy_each, rules_test
from contract.harness.site_series import QWEN, SPARE, Q, but, grows, held, histogram

TTFT = "vllm:time_to_first_token_seconds"
SECOND_RANK = f'{QWEN},model_name="q",engine="1"'
HERE = 'host="qwen",instance="127.0.0.1:8101",model_name="q"'
IDLE = 'host="big",instance="[::1]:8105",model_name="b"'
P95 = "host:vllm_time_to_first_token_seconds:p95_5m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = deploy_each(tmp_path_factory.mktemp("rules"), {"lab": ("prometheus", LAB)})["lab"]
    assert made.code == 0, made.err
    return made.folder


def value(expr: str, expected: float | None, labels: str = "") -> dict[str, object]:
    """What an expression is at 10:00, to a millionth; None: nothing."""
    if expected is None:
        return {"expr": expr, "eval_time": "10m", "exp_samples": []}
    near = f"abs({expr} - {expected!r}) < bool 1e-6"
    samples = [{"labels": f"{{{labels}}}", "value": 1}]
    return {"expr": near, "eval_time": "10m", "exp_samples": samples}


def test_the_healthy_sites_numbers(folder: Path) -> None:
    checks = [
        # 14 of 15 within 0.25 s, the last within 0.5: rank 14.25 is a quarter of the way from 0.25 to 0.5
        value(f'{P95}{{host="qwen"}}', 0.3125, HERE),
        # rank 7.5 of 14 in the first bucket: 0.25 * 7.5 / 14
        value(f'{P95.replace("p95", "p50")}{{host="qwen"}}', 0.25 * 7.5 / 14, HERE),
        # all within the first edge of 0.3 s: a guess, 0.95 of it
        value('host:vllm_request_queue_time_seconds:p95_5m{host="qwen"}', 0.285, HERE),
        # 15 requests of 100 tokens in 30 s
        value('host:vllm_generation_tokens:rate5m{host="qwen"}', 50, HERE),
        value('host:vllm_prompt_tokens:rate5m{host="qwen"}', 20, HERE),
        value('host:vllm_prefix_cache_hits:ratio_rate5m{host="qwen"}', 0.25, HERE),
        value(
            'host:vllm_requests_finished:rate5m{host="qwen",finished_reason="stop"}',
            0.5,
            f'{HERE},finished_reason="stop"',
        ),
        value('host:vllm_kv_cache_usage:max{host="qwen"}', 0.5, HERE),
        # 10 hits and 10 misses in 30 s
        value("sum(proxy:requests:rate5m)", 20 / 30),
        value("sum(proxy:hits:ratio_rate5m)", 0.5),
    ]
    assert rules_test(folder, [(but({}), checks)]) == ""


def test_what_was_never_counted_is_zero_and_not_missing(folder: Path) -> None:
    # no 5xx, no rejection, nobody left, nobody joined: none of these series is there
    zeros = ("proxy:coalesced:ratio_rate5m", "proxy:errors:ratio_rate5m", "proxy:errors:rate5m")
    zeros += ("proxy:rejections:ratio_rate5m",)
    checks = [value(f"sum({each})", 0) for each in zeros]
    place = 'host="qwen",instance="127.0.0.1:8101"'
    checks += [value('host:http_errors:ratio_rate5m{host="qwen"}', 0, place)]
    checks += [value('host:vllm_requests_broken:ratio_rate5m{host="qwen"}', 0, HERE)]
    assert rules_test(folder, [(but({}), checks)]) == ""


def test_an_idle_engine_has_no_quantile_to_compare(folder: Path) -> None:
    checks = [
        value(f'count({P95}{{host="big"}})', 1),  # it is there: NaN
        value(f'{P95}{{host="big"}} >= 0', None),
        value(f'{P95}{{host="big"}} < 0', None),
        value('host:vllm_generation_tokens:rate5m{host="big"}', 0, IDLE),
    ]
    assert rules_test(folder, [(but({}), checks)]) == ""


def test_ranks_are_summed_before_a_quantile_is_taken(folder: Path) -> None:
    # one rank answers all within 0.25 s, the other all between 0.25 and 0.5 s: of 30, rank 28.5 is 13.5 of 15 on the way.
    # The mean of the two p95, 0.2375 and 0.4875, would be 0.3625
    edges = {"0.25": grows(15), "0.5": grows(15), "2560.0": grows(15), "+Inf": grows(15)}
    series = but(
        {
            **histogram(TTFT, Q, edges),
            **histogram(TTFT, SECOND_RANK, edges | {"0.25": held(0)}),
            f"vllm:num_requests_running{{{SECOND_RANK}}}": held(3),
            f"vllm:kv_cache_usage_perc{{{SECOND_RANK}}}": held(0.75),
        }
    )
    checks = [
        value(f'{P95}{{host="qwen"}}', 0.25 + 0.25 * 13.5 / 15, HERE),
        value('host:vllm_requests_running:sum{host="qwen"}', 4 + 3, HERE),
        value('host:vllm_kv_cache_usage:max{host="qwen"}', 0.75, HERE),
    ]
    assert rules_test(folder, [(series, checks)]) == ""


def test_a_restart_costs_one_step_and_is_never_negative(folder: Path) -> None:
    # at 8:00 the counter begins again: of ten steps of 1,500 within the window nine are seen, in 300 s
    series = but({f"vllm:generation_tokens_total{{{Q}}}": "0+1500x15 0+1500x43"})
    checks = [value('host:vllm_generation_tokens:rate5m{host="qwen"}', 9 * 1500 / 300, HERE)]
    assert rules_test(folder, [(series, checks)]) == ""


def test_beyond_the_last_edge_a_quantile_stands_on_it(folder: Path) -> None:
    edges = {"0.25": held(0), "0.5": held(0), "2560.0": held(0), "+Inf": grows(15)}
    checks = [value(f'{P95}{{host="qwen"}}', 2560, HERE)]
    assert rules_test(folder, [(but(histogram(TTFT, Q, edges)), checks)]) == ""


def test_the_place_of_a_successor_is_counted_for_itself(folder: Path) -> None:
    # after a swap the engine answers at its other address: both have their own numbers
    there = f'{SPARE},model_name="q",engine="0"'
    series = but({f"vllm:generation_tokens_total{{{there}}}": grows(600)})
    checks = [
        value('host:vllm_generation_tokens:rate5m{instance="127.0.0.1:8102"}', 20,
              'host="qwen",instance="127.0.0.1:8102",model_name="q"'),
        value('sum(host:vllm_generation_tokens:rate5m{host="qwen"})', 50 + 20),
    ]  # fmt: skip
    assert rules_test(folder, [(series, checks)]) == ""


def test_no_series_is_recorded_twice_and_names_have_three_parts(folder: Path) -> None:
    groups = yaml.safe_load((folder / "rules/recording.yml").read_text())["groups"]
    names = [rule["record"] for group in groups for rule in group["rules"]]
    assert len(set(names)) == len(names)
    assert {len(each.split(":")) for each in names} == {3}
    assert {each.partition(":")[0] for each in names} == {"host", "proxy"}
