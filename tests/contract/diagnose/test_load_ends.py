"""A load that ends, or begins, in the midst of a look is judged by the part under load, and how long that was is said.

Servers of pages written by hand: what each look at `/metrics` sees is told by its number, so no clock decides.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from contract.harness.programs import rows, run, toolkit
from contract.harness.servers import Asked, answer, server, vllm_pages

PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",model_name="m",finished_reason="stop"}} {done}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
"""


def pages(load: Callable[[int], int]) -> Callable[[Asked], None]:
    """Eight slots, and how many requests are under way at a look, counted from 0: the rest waits."""
    state = {"look": 0, "done": 100, "tokens": 10_000}

    def page(asked: Asked) -> None:
        under_way = load(state["look"])
        state["look"] += 1
        if under_way:
            state["done"] += 5
            state["tokens"] += 400
        text = PAGE.format(
            running=float(min(8, under_way)),
            waiting=float(max(0, under_way - 8)),
            usage=0.3 if under_way else 0.0,
            done=state["done"],
            tokens=state["tokens"],
        )
        asked.send(answer(text, content_type="text/plain; version=1.0.0"))

    return page


def test_the_part_under_load_is_judged_and_its_length_is_said(tmp_path: Path) -> None:
    loads = {  # of the eleven looks that ten seconds make
        "whole": lambda _: 27,
        "ends": lambda look: 27 * (look < 5),
        "begins": lambda look: 27 * (look > 5),
        "drains": lambda look: 27 if look < 5 else max(0, 8 - 2 * (look - 5)),
        "short": lambda look: 27 * (look in (4, 5)),
        "idle": lambda _: 0,
    }
    with ExitStack() as stack:

        def serve(load: Callable[[int], int]) -> str:
            pages_of_it = vllm_pages() | {"/metrics": pages(load)}
            return stack.enter_context(server(pages_of_it)).url

        lines = [f"{name} {serve(load)}" for name, load in loads.items()]
        (tmp_path / "hosts.txt").write_text("\n".join(lines))
        people = stack.enter_context(toolkit("diagnose", serve(loads["ends"]), cwd=tmp_path))
        done = run("diagnose", "hosts.txt", "--interval", "10s", "--json", cwd=tmp_path)
        assert people.wait() == 0, people.text
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, dict]] = {name: {} for name in loads}
    for each in rows(done.stdout):
        assert {"code", "confidence", "evidence", "lever", "risk", "watch"} <= each.keys()
        if each["code"] != "not_known":
            found[each["name"]][each["code"]] = each
    for name in ("whole", "ends", "begins", "drains"):
        assert "none_found" not in found[name]
        assert (
            "waited while always the same number ran, at 100 % of the looks"
            in (found[name]["seq_limited"]["evidence"])
        )
    # two looks under load make nothing sure: what was seen is said, and for how long
    [short] = found["short"].values()
    assert (short["code"], short["confidence"]) == ("none_found", "low")
    assert "too short to judge by: running 1.45, waiting 3.45" in short["evidence"]
    assert list(found["idle"]) == ["too_little_load"]
    # first look to fifth, of eleven
    told = re.search(
        r"under load for ([\d.]+) s of ([\d.]+) s: running 8, waiting 19",
        " ".join(people.text.split()),
    )
    assert told, people.text
    assert float(told[1]) < 0.6 * float(told[2])
    assert "seq_limited" in people.text
