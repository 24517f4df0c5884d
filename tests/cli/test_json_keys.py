"""The manual's table of the keys of `--json`, held against what each verb prints now, and against what may never change.

`PYTHONPATH=tests python -m support.json_rows` prints the table anew.
"""

import re
from pathlib import Path

import pytest
from support.json_rows import FREE, Rows, Tree, joined, keys_of, provoked, written

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
BEGIN = "<!-- json keys: held by tests/cli/test_json_keys.py -->"
END = "<!-- end -->"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("json keys")]

FIXED = {
    "toolkit scout": "name url status error latency_ms engine dialect version model models max_model_len"
    " gpu_memory_utilization cache_dtype block_size num_gpu_blocks swap_space_gib kv_cache_tokens prefix_caching"
    " running waiting kv_cache_usage prefix_hit_ratio preemptions_total prompt_tokens_total generation_tokens_total"
    " requests_total ttft_p50_ms ttft_p95_ms queue_mean_ms config_hash started_at findings requests_per_s"
    " output_tokens_per_s",
    "toolkit bench": "name url requests ok errors error_kinds rps output_tokens_per_s ttft_p50_ms ttft_p95_ms"
    " tpot_p50_ms itl_p95_ms e2e_p50_ms e2e_p95_ms e2e_p99_ms rtt_ms client_ok goodput verdicts",
    "toolkit board, and `toolkit blast` at its end": "rank name url score rps output_tokens_per_s ttft_p50_ms"
    " ttft_p95_ms p50_ms p95_ms error_rate ok errors hit_share tied rank_change verdicts window_s at",
    "toolkit capture": "ts client method path model stream max_tokens temperature prompt_key exact_key new"
    " unique_so_far prompt_chars prompt_preview damaged",
    "toolkit capture --bodies, adds": "body",
    "toolkit capture, last line": "summary",
    "toolkit workload": "requests unique_exact unique_canonical unique_prompts top_share entropy_bits stream_share"
    " hit_curve prefix_share recommended_max_model_len levers",
    "toolkit plan": "model gpu quantization weights_gib kv_bytes_per_token state_bytes_per_request kv_budget_gib"
    " kv_cache_tokens max_concurrency requests_per_s flags notes",
    "toolkit plan --kv-only, adds": "kv_gib",
    "toolkit impact": "downtime_s window_s peak_error_rate tainted_s breakeven_s series",
    "toolkit compare": "metric a b difference low high verdict",
    "toolkit diagnose": "code confidence evidence lever risk watch",
    "toolkit preflight": "check status why fix",
}
"""Promised since the toolkit was designed."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TOOLKIT_DB", raising=False)
        patch.delenv("TOOLKIT_HOSTS", raising=False)
        return provoked(tmp_path_factory.mktemp("rows"))


def told() -> dict[str, Tree]:
    """The table in docs/reference/json.md: name of a row -> keys."""
    page = PAGE.read_text()
    assert BEGIN in page, f"{PAGE.name} has no line `{BEGIN}`"
    lines = page.split(BEGIN, 1)[1].split(END, 1)[0].strip().splitlines()
    found = {}
    for line in lines[2:]:
        name, cell = re.fullmatch(r"\| `([^`]+`.*?) \| (.*) \|", line).groups()  # type: ignore[union-attr]
        found[name.replace("`", "", 1)] = read(cell)
    return found


def read(cell: str) -> Tree:
    """`key` `list`(`key` `key`) `map`{} as a tree."""
    stack: list[Tree] = [{}]
    last = ""
    for word in re.findall(r"`([^`]+)`|(\(|\)|\{\})", cell):
        if word[0]:
            last = word[0]
            stack[-1][last] = None
        elif word[1] == "(":
            below: Tree = {}
            stack[-1][last] = below
            stack.append(below)
        elif word[1] == ")":
            stack.pop()
        else:
            stack[-1][last] = {}
    return stack[0]


def expected(name: str, table: dict[str, Tree]) -> set[str]:
    """The keys that each line of a row has."""
    own = set(table[name])
    if not name.endswith(", adds"):
        return own
    return own | set(table[" ".join(name.split(" ")[:2])])


def test_a_cell_is_read_as_it_was_written() -> None:
    tree = {"a": None, "b": {"c": None, "d": {"e": None}}, "flags": {}}
    assert written(tree) == "`a` `b`(`c` `d`(`e`)) `flags`{}"
    assert read(written(tree)) == tree


def test_every_line_of_every_verb_has_the_keys_that_the_table_tells(rows: Rows) -> None:
    table = told()
    assert set(table) == set(rows)
    for name, lines in rows.items():
        assert lines, f"{name} printed nothing"
        for line in lines:
            assert set(line) == expected(name, table), name


def test_what_lies_below_a_key_is_told_too(rows: Rows) -> None:
    """As far as it came: what is null in all of them is not known."""
    table = told()
    for name, lines in rows.items():
        for key, below in joined([keys_of(line) or {} for line in lines]).items():
            if below is not None and key in table[name]:
                assert table[name][key] == below, f"{name}: {key}"


def test_no_promised_key_is_gone(rows: Rows) -> None:
    for name, keys in FIXED.items():
        for line in rows[name]:
            assert set(keys.split()) <= set(line), name


def names_in(tree: Tree) -> set[str]:
    found = set(tree)
    for key, below in tree.items():
        if below and key not in FREE:
            found |= names_in(below)
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        *(r"_(sec|secs|seconds|millis|milliseconds|pct|percent|perc)$", r"^(latency|ttft|e2e)$"),
        *(r"^(host|hostname|server_name)_?name$", r"^(failures|failed|num_errors)$", r"_per_sec$"),
        *(r"^(qps|tps|req_s|requests_s)$", r"^(seconds|milliseconds|duration|elapsed)$", r"^id$"),
    ],
)
def test_no_key_says_in_another_word_what_a_key_says_elsewhere(wrong: str) -> None:
    all_keys = {name for tree in told().values() for name in names_in(tree)}
    assert {name for name in all_keys if re.search(wrong, name)} == set()
