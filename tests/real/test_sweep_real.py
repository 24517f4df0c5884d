"""The catalog's recipe for structured output, in small, on the real server that other tests share: warmed, loaded, asked for JSON, diagnosed.

The model is random: told in words it never writes JSON, and held to a schema without free text it can write nothing else. Kept to a
server that runs already, as a start takes half a minute; that a sweep starts servers of its own is shown with simulated ones.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
KEY_VARIABLE = "SWEPT_KEY"
SWEEP = """
summary = "How often is the answer no JSON of the schema?"
look_at = ["invalid_json_ratio", "json_e2e_p50_ms"]
blocks = 1
stage = "asked for"
[load]
users = 2
duration = "3s"
settle = "500ms"
mix = 0
max_tokens = 8
[base]
url = "{url}"
key_env = "{key}"
[[configurations]]
name = "in words"
asked = "words"
[[configurations]]
name = "by the schema"
asked = "schema"
[asking]
requests = 8
concurrency = 4
max_tokens = 40
prompts = ["A customer writes: `I was charged twice.` Sort the letter."]
schema = '''
{{"type": "object", "additionalProperties": false, "required": ["department", "urgent"], "properties":
 {{"department": {{"type": "string", "enum": ["shipping", "billing"]}}, "urgent": {{"type": "boolean"}}}}}}'''
"""

pytestmark = pytest.mark.slow


def run(server: Any, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [TOOLKIT, *words, "--db", "t.db", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=dict(os.environ) | {KEY_VARIABLE: server.key},
    )
    assert done.returncode == 0, done.stderr
    assert server.key not in done.stdout + done.stderr
    return done


def test_how_json_is_asked_for_decides_whether_a_random_model_writes_any(
    locked_server: Any, tmp_path: Path
) -> None:
    text = SWEEP.format(url=locked_server.url, key=KEY_VARIABLE)
    (tmp_path / "sweep.toml").write_text(text)
    done = run(locked_server, tmp_path, "sweep", "sweep.toml", "--html", "sweep.html")
    words, schema, _ = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words["status"], schema["status"]] == ["measured", "measured"], done.stderr
    assert [each["figures"]["json_answered"] for each in (words, schema)] == [8, 8]
    assert words["figures"]["invalid_json_ratio"] == 1.0
    assert schema["figures"]["invalid_json_ratio"] == 0.0, schema["notes"]
    cut = "8 of 8 answers that had to be JSON were cut off at 40 tokens, and so are none"
    assert (cut in words["notes"], cut in schema["notes"]) == (True, False)
    # it was warmed, for which it takes the key
    assert not [note for each in (words, schema) for note in each["notes"] if "not warmed" in note]
    assert words["figures"]["warm_ttft_ms"] > 0
    page = (tmp_path / "sweep.html").read_text()
    assert "invalid JSON" in page
    assert "100.0 points in invalid JSON, by the schema against in words" in page

    # and a diagnosis of the load knows of the requests for JSON that followed it
    told = run(locked_server, tmp_path, "diagnose", words["runs"][0])
    found = {each["code"]: each for each in map(json.loads, told.stdout.splitlines())}
    assert "100 % of answers" in found["structured_output_fails"]["evidence"]
    told = run(locked_server, tmp_path, "diagnose", schema["runs"][0])
    assert "structured_output_fails" not in told.stdout
