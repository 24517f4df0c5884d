"""`toolkit plan --list`: the models and the GPUs that the catalog knows by name."""

from toolkit.cli.catalog import table
from toolkit.cli.output import print_json
from toolkit.plan.catalog import gpu_of
from toolkit.plan.engine import PLAIN
from toolkit.plan.model_config import shape_of
from toolkit.plan.planner import per_request, per_token
from toolkit.plan.weights import parameters
from toolkit.report.tables import Column, screen
from toolkit.units import DASH, GIB

MODELS = (
    Column(title="model"),
    Column(title="parameters", right=True),
    Column(title="in use by a token", right=True, spare=2),
    Column(title="KV bytes a token", right=True),
    Column(title="a request besides", right=True, spare=1),
)
GPUS = (
    Column(title="GPU"),
    Column(title="memory GiB", right=True),
    Column(title="GB/s", right=True, spare=1),
)


def show_names(*, as_json: bool) -> None:
    """Print both lists."""
    models, gpus = _models(), _gpus()
    if as_json:
        for one in (*models, *gpus):
            print_json(one)
        return
    console = screen()
    console.table(MODELS, [_model_row(one) for one in models])
    console.print()
    console.table(GPUS, [_gpu_row(one) for one in gpus])


def _models() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for name, row in table("models").items():
        shape = shape_of(row["config"], name)
        counted = parameters(shape)
        found.append(
            {
                "model": name,
                "parameters": counted.total,
                "active_parameters": counted.active,
                "kv_bytes_per_token": per_token(shape, PLAIN),
                "state_bytes_per_request": per_request(shape, PLAIN),
            }
        )
    return found


def _gpus() -> list[dict[str, object]]:
    return [
        {
            "gpu": name,
            "memory_gib": gpu_of(name).memory_bytes / GIB,
            "bandwidth_gb_s": row["bandwidth_gb_s"],
        }
        for name, row in table("gpus").items()
    ]


def _model_row(one: dict[str, object]) -> list[str]:
    besides = one["state_bytes_per_request"]
    return [
        str(one["model"]),
        f"{one['parameters']:,}",
        f"{one['active_parameters']:,}",
        f"{one['kv_bytes_per_token']:,}",
        f"{besides:,}" if besides else DASH,
    ]


def _gpu_row(one: dict[str, object]) -> list[str]:
    return [str(one["gpu"]), f"{one['memory_gib']:.2f}", f"{one['bandwidth_gb_s']:,}"]
