"""What a real vLLM 0.32.0 said, byte for byte; tests/data/README.md has what each file is."""

from pathlib import Path

RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()
