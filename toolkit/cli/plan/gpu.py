"""`--gpu`: a GPU of the catalog by name, or an amount of memory."""

from difflib import get_close_matches

from toolkit.cli.catalog import table
from toolkit.errors import ToolkitError
from toolkit.plan.engine import Gpu
from toolkit.units import GIB, bytes_of

NEAREST = 4


def gpu_of(word: str) -> Gpu:
    """Read `a100-80gb`, `A100`, `1g.10gb` or `80GiB`. Raises ToolkitError for what is neither."""
    known = table("gpus")
    wanted = plain(word)
    for name, row in known.items():
        if wanted in {name, *row["aliases"]}:
            return Gpu(
                name=name,
                memory_bytes=round(row["memory_gib"] * GIB),
                bandwidth_bytes_s=row["bandwidth_gb_s"] * 1e9,
                fp8=row["fp8"],
                is_a100=name.startswith("a100"),
                is_slice="-mig-" in name,
            )
    size = bytes_of(word)
    if size is None:
        raise ToolkitError(f"no GPU is called `{word}`", _hint(wanted, known))
    return Gpu(name=word, memory_bytes=size)


def plain(word: str) -> str:
    """As the catalog spells it: `NVIDIA A100-SXM4-80GB` is `a100-sxm4-80gb`, `RTX 4090` is `rtx-4090`."""
    words = word.lower().replace("_", "-").split()
    return "-".join(one for one in words if one not in ("nvidia", "amd", "geforce", "instinct"))


def _hint(wanted: str, known: "dict[str, dict[str, list[str]]]") -> str:
    if wanted[:1] in "-+.0123456789" and wanted[-1:] in "b0123456789":
        return "No amount of memory either: write, e.g., `--gpu 80GiB`"
    spelled = {alias: name for name, row in known.items() for alias in (name, *row["aliases"])}
    near = get_close_matches(wanted, spelled, n=2 * NEAREST, cutoff=0.5)
    names = list(dict.fromkeys(spelled[one] for one in near))[:NEAREST]
    if names:
        return f"Nearest: {', '.join(names)}; or tell its memory, e.g., `--gpu 80GiB`"
    return f"Known: {', '.join(known)}; or tell its memory, e.g., `--gpu 80GiB`"
