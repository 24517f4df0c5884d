"""What `toolkit deploy` asks Prometheus for, on the page of a real vLLM."""

from dataclasses import replace
from typing import Any

from support.dashboard import SITE, recorded_names, rules_and_panels
from support.promql import asked, missing, samples


def test_every_engine_metric_of_rules_and_dashboard_is_on_its_page(locked_server: Any) -> None:
    with locked_server.client() as client:
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        client.post("/v1/chat/completions", json=body).raise_for_status()
        # a key is asked for chats; none for this page
        page = client.get("/metrics", headers={"authorization": ""}).raise_for_status().text
    pages = samples(page)
    assert (
        missing(asked(rules_and_panels(replace(SITE, proxy=None))), pages, recorded_names(SITE))
        == []
    )
    # without an engine's own label for its rank the scaling on waiting requests would see nothing
    assert {one["engine"] for one in pages["vllm:num_requests_waiting"]} == {"0"}
