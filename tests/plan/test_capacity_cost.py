"""A GPU hour in tokens, and against an API: by hand."""

import pytest

from toolkit.plan.capacity import Cost, Prices, api_request, cost


def cost_of(prices: Prices, rps: float | None = 10.4, gpus: int = 1) -> Cost:
    found = cost(
        prices,
        gpus=gpus,
        requests_per_s=rps,
        prompt_tokens=300.0,
        output_tokens=250.0,
        request_tokens=550.0,
    )
    assert found is not None
    return found


def test_a_gpu_at_2_an_hour_costs_10_cents_a_million_tokens() -> None:
    # 3600 * 10.4 * 550 = 20,592,000 tokens an hour
    assert cost_of(Prices(gpu_hour=2.0)).per_million_tokens == pytest.approx(2.0 / 20.592)
    # 37,440 requests an hour
    assert cost_of(Prices(gpu_hour=2.0)).per_thousand_requests == pytest.approx(2.0 / 37.44)


def test_two_gpus_cost_twice() -> None:
    assert cost_of(Prices(gpu_hour=2.0), gpus=2).hour == 4.0
    assert cost_of(Prices(gpu_hour=2.0), gpus=2).per_million_tokens == pytest.approx(4.0 / 20.592)


def test_an_api_is_dearer_from_the_rate_on_at_which_its_bill_is_the_gpu_hour() -> None:
    found = cost_of(Prices(gpu_hour=2.0, api_input=0.5, api_output=1.5))
    # a request: 300 * 0.5 + 250 * 1.5 = 525 millionths
    assert found.api_per_thousand_requests == pytest.approx(0.525)
    assert found.api_per_million_tokens == pytest.approx(0.000525 / 550 * 1e6)
    # 2.0 an hour pays for 2.0 / 0.000525 = 3809.5 requests: 1.058 a second, 10.2 % of 10.4
    assert found.even_rps == pytest.approx(2.0 / 0.000525 / 3600)
    assert found.even_share == pytest.approx(0.10175, abs=1e-5)


def test_without_a_rate_the_break_even_is_still_known() -> None:
    found = cost_of(Prices(gpu_hour=2.0, api_input=0.5, api_output=1.5), rps=None)
    assert (found.per_million_tokens, found.per_thousand_requests, found.even_share) == (None,) * 3
    assert found.even_rps == pytest.approx(1.0582, abs=1e-4)


def test_an_api_that_costs_nothing_is_never_dearer() -> None:
    found = cost_of(Prices(gpu_hour=2.0, api_input=0.0, api_output=0.0))
    assert (found.api_per_million_tokens, found.even_rps) == (0.0, None)


def test_without_the_price_of_an_hour_there_is_nothing_to_compare() -> None:
    assert (
        cost(
            Prices(api_input=1.0, api_output=1.0),
            gpus=1,
            requests_per_s=1.0,
            prompt_tokens=1.0,
            output_tokens=1.0,
            request_tokens=2.0,
        )
        is None
    )


def test_one_price_for_all_tokens_needs_no_split_and_two_prices_do() -> None:
    assert api_request(Prices(api_input=0.6, api_output=0.6), None, None, 500.0) == pytest.approx(
        0.0003
    )
    assert api_request(Prices(api_input=0.5, api_output=1.5), None, None, 500.0) is None
