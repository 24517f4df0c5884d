"""Who may import whom. This list is the map of the house; a file that it does not name fails."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STANDARD_ONLY = frozenset({"records", "errors"})

GROUND = frozenset(
    "records errors hosts promtext dialects dialect_names event_stream choices completion sketches profiles"
    " cache_headers file_values profile_checks profile_load quantities alike request_key request_body request_prompt"
    " markup plot wording".split()
)
"""Pure files of the ground floor. Beside them, the store's files do I/O."""

STORE = frozenset(
    "store migrations database store_looks store_runs store_blasts store_seen store_upkeep".split()
)

DISK = frozenset({"private_files"})
"""Of the ground floor too, for files that touch the world."""

ROOMS = {
    # room: (files that decide, files that touch the world)
    "bench": (
        set(
            "asks contrast counters evidence fitness goodput identity integrity ladder models plan replays result"
            " schedule shared shots speed stamps summary truncation verdicts".split()
        ),
        {
            "chart",
            "client",
            "connections",
            "drive",
            "faults",
            "health",
            "lane",
            "peers",
            "selftest",
            "stamped",
        },
    ),
    "blast": (
        set(
            "canaries chains limits neutrality pacing phases placing rounding script tallying".split()
        ),
        {"checks", "recorder"},
    ),
    "board": (
        set(
            "books freeze history honesty impact looks outages score standings story taints verdicts window".split()
        ),
        {"chart", "feed", "follow", "judging"},
    ),
    "capture": (
        set(
            "answer_ends answers bodies bpf codings counting exchange flows fragments frames glance http lines links messages other_ports pairing pcap"
            " pcapng reassembly summary topk".split()
        ),
        set("drive engine files jsonl live ring sights sockets tcpdump".split()),
    ),
    "proxy": (
        set(
            "case error_json exchange faults headers keyring media policy routes"
            " setting_values settings settings_file splices".split()
        ),
        set(),
    ),
    "proxy.told": (
        set("counters explain log_lines metrics recent".split()),
        set("request_log stderr store_feed telling".split()),
    ),
    "proxy.http": (
        set("answer_heads chunked client_reply framing".split()),
        set("connection front front_state sending socket_facts wire".split()),
    ),
    "proxy.answers": (
        set(
            "assembly chunks kept other_answers ready recorder replay statements"
            " usage_left_out verify views".split()
        ),
        set(),
    ),
    "proxy.stored": (
        set("cache leases".split()),
        set("layers redis_cache shared_cache shared_file shared_rows".split()),
    ),
    "proxy.upstreams": (
        set("engine_pages generations identity routing stuck upstream_pages".split()),
        set("epoch_keeper scrape upstream watch".split()),
    ),
    "proxy.calls": (
        set("admission estimates flights rejections".split()),
        set("attempt call calls delivery far replaying".split()),
    ),
    "proxy.desk": (
        set(),
        set("answering desk hits kit outcome verifying".split()),
    ),
    "proxy.processes": (
        {"relay_header"},
        set(
            "admin control crew doors hit_server relayed relaying server ticks worker_desk workers".split()
        ),
    ),
    "plan": (
        set(
            "advice asked budget capacity checkup config cost fields kv layer_kinds layout load parameters planner"
            " quantization remarks result room shape side_by_side stages weights".split()
        ),
        {"model_files"},
    ),
    "serving": (
        set("flags outcome presets stack stack_file stack_values".split()),
        set(),
    ),
    "serving.fit": (
        set(
            "checks disk_checks engine_checks facts gpu_checks needs port_checks"
            " system_checks".split()
        ),
        set("cgroups clock disks fixes gpus kernel machine ports shared_memory vllm_probe".split()),
    ),
    "serving.warm": (
        set("warm_asks warm_rounds warm_seen".split()),
        set("warm warm_log".split()),
    ),
    "serving.start": (
        set("causes known_causes startup_log".split()),
        set(
            "engine engine_words keeper launch leftovers log_file make_tiny_model processes"
            " readiness tiny_model vllm_versions".split()
        ),
    ),
    "serving.watch": (
        set("backoff progress".split()),
        set("pulse watchdog".split()),
    ),
    "serving.house": (
        {"standing"},
        set("gate house notify orders seat swap".split()),
    ),
    "improve": (
        set(
            "bottlenecks cells compare configurations criteria diagnose evidence figures glances"
            " json_answers log_facts measured metrics page_parts paired report_page"
            " report_series report_words sweep_file sweep_page sweep_steps sweep_table sweep_words".split()
        ),
        {"children", "sweep", "sweep_chart", "sweep_results", "sweep_state"},
    ),
    "deploy": (
        set(
            "alerts compose compose_parts containers engine_flags grafana grafana_panels image_flags kubernetes kubernetes_parts keda metric_names names nginx prometheus proxy_config quoting site site_of systemd templating"
            " recording".split()
        ),
        {"write"},
    ),
    "workload": (
        set(
            "arrivals clients columns distribution exports forecast gaps lengths levers limits log_rows"
            " log_values logs mixes prefixes"
            " report_page report_words summary synthesis synthetic_text traces work zipf".split()
        ),
        set(),
    ),
    "scout": (
        {"answers", "evidence", "findings", "follow_up", "history", "problems", "sighting"},
        {"look", "lookups", "watch"},
    ),
    "sim": (
        set(
            "answers blocks checks engine exposition facts families front_cpu meter personalities speech"
            " tokens".split()
        ),
        {"app", "drive", "fleet", "life"},
    ),
}

DOORS: dict[str, frozenset[str]] = {
    "bench": frozenset({"scout.lookups", "scout.problems"}),
    "capture": frozenset(),
    "proxy": frozenset(),
    "workload": frozenset({"proxy.stored.cache", "proxy.calls.flights"}),
    "blast": frozenset({"bench.asks", "bench.models", "bench.plan", "bench.shots"}),
    "board": frozenset({"bench.evidence", "bench.replays", "bench.shared", "bench.verdicts"}),
    "scout": frozenset(),
    "sim": frozenset(),
    "plan": frozenset(),
    "deploy": frozenset(
        {
            "proxy.settings",
            "proxy.routes",
            "serving.flags",
            "serving.stack",
            "serving.stack_file",
        }
    ),
    "serving": frozenset(
        {
            "bench.asks",
            "bench.client",
            "bench.faults",
            "bench.models",
            "bench.plan",
            "bench.shots",
            "proxy.settings",
            "proxy.settings_file",
            "proxy.upstreams.stuck",
            "proxy.upstreams.upstream_pages",
        }
    ),
    "improve": frozenset(),
}
"""Room -> modules of other rooms that it may import; a new door is a decision (CONTRIBUTING)."""

WORLD = {
    # what a file that decides may not import: clocks, sockets, files, threads, processes, screens
    "aiohttp",
    "asyncio",
    "click",
    "concurrent",
    "gevent",
    "httpx",
    "locust",
    "logging",
    "matplotlib",
    "multiprocessing",
    "os",
    "pathlib",
    "requests",
    "rich",
    "scapy",
    "select",
    "shutil",
    "signal",
    "socket",
    "socketserver",
    "sqlite3",
    "sqlite_utils",
    "streamlit",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
    "uvloop",
}

NEVER_IN_TOOLKIT = {"locust", "streamlit"}


@cache
def files() -> list[Path]:
    return sorted((ROOT / "toolkit").rglob("*.py"))


@cache
def modules() -> frozenset[str]:
    return frozenset(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files())


@cache
def imports(file: Path) -> set[str]:
    """Every module that a file imports anywhere in it, late and type-only imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports by relative name"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def toolkit_modules(file: Path) -> set[str]:
    """The toolkit's own modules among a file's imports, e.g. `scout.look`."""
    return {name.removeprefix("toolkit.") for name in imports(file) if name in modules()}


def allowed(room: str, name: str) -> set[str] | None:
    """What toolkit modules one file may import; None: all of them."""
    if room.partition(".")[0] in ("cli", "dashboards", "locustfiles"):
        return None
    if room == "":
        if name in STANDARD_ONLY:
            return set()
        return set(GROUND | STORE | DISK) if name in STORE else set(GROUND)
    inside = {
        f"{floor}.{file}"
        for floor in standing_on(room)
        for file in (set.union(*ROOMS[floor]) if name in ROOMS[room][1] else ROOMS[floor][0])
    }
    shared = GROUND | DISK if name in ROOMS[room][1] else GROUND
    return inside if room == "sim" else inside | shared | DOORS[room.partition(".")[0]]


def standing_on(room: str) -> list[str]:
    """A room and those it may use: rooms inside a room stand one on the other, in the order they are listed."""
    whole = room.partition(".")[0]
    inside = [floor for floor in ROOMS if floor.partition(".")[0] == whole]
    return inside[: inside.index(room) + 1]


def place(file: Path) -> tuple[str, str]:
    *room, name = file.relative_to(ROOT / "toolkit").with_suffix("").parts
    return ".".join(room), name


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_stands_in_its_room_and_imports_only_what_it_may(file: Path) -> None:
    room, name = place(file)
    if name == "__init__" and room != "cli":
        assert not toolkit_modules(file), "a package file imports nothing"
        return
    if room == "":
        assert name in GROUND | STORE | DISK, f"{name} is not on the list of the ground floor"
    elif room.partition(".")[0] != "cli":
        assert name in set.union(*ROOMS[room]), f"{name} is not on the list of {room}"
    may = allowed(room, name)
    if may is not None:
        assert toolkit_modules(file) <= may
    if STANDARD_ONLY & {name} and room == "":
        assert {module.partition(".")[0] for module in imports(file)} <= {"dataclasses", "typing"}


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_that_decides_touches_no_clock_socket_file_or_screen(file: Path) -> None:
    room, name = place(file)
    pure = name in GROUND if room == "" else room in ROOMS and name in ROOMS[room][0]
    found = {
        module for module in imports(file) if module in WORLD or module.partition(".")[0] in WORLD
    }
    assert not (pure and found), f"{file.name} decides, and imports {found}"


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_package_never_imports_the_front_pages(file: Path) -> None:
    assert not {module.partition(".")[0] for module in imports(file)} & NEVER_IN_TOOLKIT


def test_only_scout_look_imports_httpx_and_only_the_store_imports_sqlite() -> None:
    users = {
        place(file) for file in files() for module in imports(file) if module.startswith("httpx")
    }
    assert users <= {("scout", "look"), ("scout", "problems")}
    users = {
        place(file) for file in files() for module in imports(file) if module.startswith("sqlite")
    }
    # the proxy's shared cache is a file of its own, with tables of its own: losing it costs time, never a fact
    shared = {("proxy.stored", f"shared_{name}") for name in ("cache", "file", "rows")}
    assert users <= {("", name) for name in STORE} | shared


def test_no_imports_go_in_a_circle() -> None:
    """Late imports count: a file that needs itself by way of another does two things."""
    needs = {
        ".".join(file.relative_to(ROOT / "toolkit").with_suffix("").parts): toolkit_modules(file)
        for file in files()
    }
    left = {name for name in needs if not name.endswith("__init__")}
    while leaves := {name for name in left if not needs[name] & left - {name}}:
        left -= leaves
    assert left == set()
