"""`toolkit scout` beside a real vLLM behind a key: what it hears without the key, and with it. test_two_lives_real.py scouts one at work."""

import json
from pathlib import Path
from typing import Any

from support.scout_verb import KEY_VARIABLE, codes, scout


def test_without_the_key_it_tells_what_is_open_all_the_same(
    locked_server: Any, tmp_path: Path
) -> None:
    sighting = scout(f"locked {locked_server.url}", tmp_path)
    # nothing is wrong with the server, and its open pages tell what /v1/models would have
    assert (sighting["status"], sighting["error"]) == ("ok", None)
    assert (sighting["version"], sighting["num_gpu_blocks"]) == ("0.32.0", 64)
    # the name stands in the metrics, the length in /tokenize's answer
    assert (sighting["model"], sighting["max_model_len"]) == ("tiny", 512)
    assert {"metrics_open", "inference_open"} <= codes(sighting)


def test_with_the_key_from_the_environment_the_same_doors_stand_open(
    locked_server: Any, tmp_path: Path
) -> None:
    line = f"locked {locked_server.url} api_key_env={KEY_VARIABLE}"
    sighting = scout(line, tmp_path, key=locked_server.key)
    assert (sighting["status"], sighting["error"]) == ("ok", None)
    assert sighting["models"] == ["tiny"]
    assert sighting["max_model_len"] == 512
    assert {"metrics_open", "inference_open"} <= codes(sighting)
    assert locked_server.key not in json.dumps(sighting)
