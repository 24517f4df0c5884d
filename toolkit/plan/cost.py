"""What a GPU hour costs in tokens, and from which load on it is cheaper than an API. Prices are told; no currency is meant."""

from dataclasses import dataclass

HOUR_S = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """As the user pays them. None: not told."""

    gpu_hour: float | None = None
    """Of one GPU."""
    api_input: float | None = None
    """Of a million prompt tokens at the API that is the alternative."""
    api_output: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One server at full load against an API."""

    hour: float
    """All its GPUs."""
    per_million_tokens: float | None
    """Prompt and answer tokens together, as they come in this workload; None: the rate is not known."""
    per_thousand_requests: float | None
    api_per_million_tokens: float | None
    """The same mix of tokens at the API's prices."""
    api_per_thousand_requests: float | None
    even_rps: float | None
    """Requests a second from which on the GPUs are cheaper than the API."""
    even_share: float | None
    """The same / what the server can do: above 1 it never pays."""


def cost(
    prices: Prices,
    *,
    gpus: int,
    requests_per_s: float | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
    request_tokens: float,
) -> Cost | None:
    """Compare; None without the price of a GPU hour.

    A GPU at 2.00 an hour that answers 10.4 requests a second of 550 tokens: 3600 * 10.4 * 550 = 20,592,000 tokens an
    hour, so 2.00 / 20.592 = 0.0971 a million tokens.
    """
    if prices.gpu_hour is None:
        return None
    hour = prices.gpu_hour * gpus
    own = hour / (HOUR_S * requests_per_s) if requests_per_s else None
    api = api_request(prices, prompt_tokens, output_tokens, request_tokens)
    even = hour / (HOUR_S * api) if api else None
    return Cost(
        hour=hour,
        per_million_tokens=None if own is None else own / request_tokens * MILLION,
        per_thousand_requests=None if own is None else own * 1000,
        api_per_million_tokens=None if api is None else api / request_tokens * MILLION,
        api_per_thousand_requests=None if api is None else api * 1000,
        even_rps=even,
        even_share=even / requests_per_s if even is not None and requests_per_s else None,
    )


def api_request(
    prices: Prices, prompt_tokens: float | None, output_tokens: float | None, request_tokens: float
) -> float | None:
    """One request at the API's prices: 300 and 250 tokens at 0.50 and 1.50 a million are 0.000525."""
    if prices.api_input is None or prices.api_output is None:
        return None
    if prices.api_input == prices.api_output:  # then nobody need know which tokens are which
        return prices.api_input * request_tokens / MILLION
    if prompt_tokens is None or output_tokens is None:
        return None
    return (prices.api_input * prompt_tokens + prices.api_output * output_tokens) / MILLION
