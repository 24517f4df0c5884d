"""What one machine is given: nginx and systemd read their files without a word, Prometheus looks at every place, Grafana's queries are sound."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.harness.deploys import LAB, Deployed, deploy_each, program, promtool

ENGINE = '[[engine]]\nname = "{0}"\nmodel = "{1}"\n'
BARE = "proxy = false\n"
TWO = ENGINE.format("red", "m") + 'gpus = "0"\n' + ENGINE.format("blue", "m") + 'gpus = "1"\n'
THREE = BARE + "".join(ENGINE.format(*each) for each in (("a", "m"), ("b", "m"), ("c", "n")))
HOSTILE = ENGINE.format("A..b", "m") + (
    "served_name = '''x\"; } evil on; # {{ site }} %n \\'''\n"
    'team = "red\\"} # {{ x }} \\\\"\n[proxy]\npaths = ["/tokenize", "/~x.y-z/v1"]\n'
)
ODD = 'folder = "/srv/50% of it"\n' + HOSTILE
KEYS = TWO + (
    'key_env = "VLLM_API_KEY"\n[proxy]\ndrain = "45s"\n[[proxy.team]]\nname = "red"\nkey_env = "RED_KEY"\n'
    '[proxy.cache]\nredis_env = "REDIS"\n[guard]\nstop = "20s"\n'
)
LIMITS = TWO + (
    '[proxy]\nport = 8080\nadmin_port = 8081\n[proxy.front]\nbody_size = "20MiB"\n'
    '[proxy.admission]\nwhole = "20m"\n'
)
TEAMS = BARE + "".join(ENGINE.format(each, "m") + f'team = "{each}"\n' for each in ("red", "blue"))
HOMES = '[[engine]]\nmodel = "/home/ann/model"\n'
DATABASE = 'database = "data/toolkit.db"\n' + LAB
CASES = {
    "nginx": ("nginx", LAB),
    "nginx-three": ("nginx", THREE),
    "nginx-teams": ("nginx", TEAMS),
    "nginx-hostile": ("nginx", HOSTILE, "--listen", "::"),
    "nginx-limits": ("nginx", LIMITS, "--listen", "0.0.0.0"),
    "unit": ("systemd", TWO),
    "unit-keys": ("systemd", KEYS),
    "unit-open": ("systemd", KEYS, "--listen", "0.0.0.0"),
    "unit-bare": ("systemd", BARE + TWO, "--listen", "0.0.0.0"),
    "unit-odd": ("systemd", ODD),
    "unit-shut": ("systemd", TWO.replace('"m"', '"/srv/m"')),
    "unit-homes": ("systemd", HOMES),
    "prometheus": ("prometheus", LAB),
    "prometheus-bare": ("prometheus", BARE + ENGINE.format("a", "m") + "spare_port = 'none'\n"),
    "prometheus-hostile": ("prometheus", HOSTILE, "--listen", "::1"),
    "grafana": ("grafana", DATABASE),
    "grafana-bare": ("grafana", BARE + DATABASE.partition("[proxy]")[0], "--listen", "::1"),
    "grafana-unmarked": ("grafana", 'database = "none"\n' + LAB),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployed]:
    return deploy_each(tmp_path_factory.mktemp("machine"), CASES)


# --- nginx --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("nginx")])
def test_nginx_takes_what_is_written_without_a_warning(
    name: str, made: dict[str, Deployed], tmp_path: Path
) -> None:
    text = made[name].text("contest.conf").replace("/var/log/nginx/", f"{tmp_path}/")
    (tmp_path / "contest.conf").write_text(text)
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; events {{}} http {{ include {tmp_path}/contest.conf; }}"
    )
    command = [program("nginx", "nginx"), "-t", "-p", tmp_path, "-e", "stderr", "-c", "nginx.conf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "[" in line] == []
    assert done.returncode == 0, done.stderr


def listened(found: Deployed) -> list[tuple[str, list[str]]]:
    """Each port for clients, and the servers behind it."""
    text = found.text("contest.conf")
    groups = re.findall(r"^upstream .*?^server \{.*?;", text, re.MULTILINE | re.DOTALL)
    return [
        (re.findall(r'listen "(.*)";', group)[0], re.findall(r'  server "(.*)" max', group))
        for group in groups
    ]


def test_clients_ports_lead_to_the_proxy_or_to_engines_that_stand_in_for_each_other(
    made: dict[str, Deployed],
) -> None:
    assert listened(made["nginx"]) == [("127.0.0.1:8080", ["127.0.0.1:8000"])]
    # the stack has 8080 to 8085 itself
    assert listened(made["nginx-limits"]) == [("0.0.0.0:8086", ["127.0.0.1:8080"])]
    assert listened(made["nginx-hostile"])[0][0] == "[::]:8080"
    (first, servers), (second, others) = listened(made["nginx-three"])
    assert (first, second) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert (len(servers), len(others)) == (2, 1)
    assert [len(servers) for _, servers in listened(made["nginx-teams"])] == [1, 1]


def test_only_the_paths_that_clients_need_are_let_through(made: dict[str, Deployed]) -> None:
    def paths(name: str) -> dict[str, str]:
        text = made[name].text("contest.conf")
        places = re.findall(r'location = "(.*)" \{\n *set \$allow "(.*)";\n.*"\^\((.*)\)\$"', text)
        assert all(allow.split(", ") == pattern.split("|") for _, allow, pattern in places)
        return {path: allow for path, allow, _ in places}

    engines = paths("nginx-three")
    assert engines["/v1/chat/completions"] == "POST"
    assert {path for path, allow in engines.items() if allow == "GET, HEAD"} == {
        *("/v1/models", "/health", "/ping"),
    }
    opened = paths("nginx-hostile")
    assert set(opened) - set(engines) == {"/ready", "/tokenize", "/~x.y-z/v1"}
    assert opened["/tokenize"] == "GET, HEAD, POST"


def test_nginx_waits_and_takes_as_much_as_the_proxy(made: dict[str, Deployed]) -> None:
    text = made["nginx-limits"].text("contest.conf")
    # 20 x 1,048,576 bytes; 20 minutes, 30 s of waiting for a slot, and one minute more
    assert "client_max_body_size 20971520;" in text
    assert "proxy_read_timeout 1290s;" in text
    # another proxy's answer is waited for, 30 s
    assert "proxy_read_timeout 720s;" in made["nginx"].text("contest.conf")
    assert "proxy_read_timeout 3600s;" in made["nginx-three"].text("contest.conf")
    assert made["nginx-limits"].steps[0].startswith("sudo cp contest.conf /etc/nginx/conf.d/")
    assert any("any address of this machine at port 8086" in x for x in made["nginx-limits"].steps)


# --- systemd ------------------------------------------------------------------------------------------

UNIT = "toolkit-contest.service"


def settings(found: Deployed) -> dict[str, list[str]]:
    """Key -> its values, comments left out."""
    told: dict[str, list[str]] = {}
    for line in found.text(UNIT).splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            told.setdefault(key, []).append(value)
    return told


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("unit")])
def test_systemd_takes_the_unit_without_a_word(name: str, made: dict[str, Deployed]) -> None:
    command = [program("systemd-analyze", "systemd"), "verify", "--man=no"]
    # it exits 0 for a misspelt key: only its words count
    done = subprocess.run(
        [*command, made[name].folder / UNIT], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""


def test_the_unit_runs_what_serve_runs_until_all_that_an_end_takes_is_over(
    made: dict[str, Deployed],
) -> None:
    command = str(Path(sys.executable).parent / "toolkit")
    found = settings(made["unit"])
    assert found["ExecStart"] == [f"{command} serve /etc/toolkit/contest.toml"]
    assert settings(made["unit-open"])["ExecStart"][0].endswith("contest.toml --host 0.0.0.0")
    # serve refuses that option where there is no proxy
    assert settings(made["unit-bare"])["ExecStart"][0].endswith("contest.toml")
    assert any("each engine's `host`" in each for each in made["unit-bare"].steps)
    assert found["Environment"][0].startswith(f"PATH={Path(command).parent}:/usr/local/sbin:")
    assert (found["Type"], found["WatchdogSec"], found["Restart"]) == (
        ["notify"],
        ["60s"],
        ["always"],
    )
    assert (found["KillMode"], found["OOMPolicy"]) == (["mixed"], ["continue"])
    assert found["WorkingDirectory"] == ["/var/lib/toolkit-contest"]
    # 45 s for answers, 20 s for an engine, 60 s for memory; 30 s and 10 s are usual
    assert settings(made["unit-keys"])["TimeoutStopSec"] == ["125s"]
    assert settings(made["unit-bare"])["TimeoutStopSec"] == ["100s"]
    assert not {"PrivateDevices", "DevicePolicy", "ProtectClock"} & set(found)
    assert made["unit-keys"].text("contest.toml") == KEYS


def test_the_unit_opens_what_is_written_to_and_no_way_out_that_is_not_needed(
    made: dict[str, Deployed],
) -> None:
    assert settings(made["unit-odd"])["ReadWritePaths"] == [
        *('"-/srv/50%% of it"', '"-/srv/50%% of it/proxy-cache.db"'),
    ]
    assert any("`/srv/50% of it` is written to" in each for each in made["unit-odd"].steps)
    assert settings(made["unit-shut"])["IPAddressDeny"] == ["any"]
    # its models come from Hugging Face
    assert "IPAddressDeny" not in settings(made["unit"])
    assert any("`/home/ann/model` lies in a home" in each for each in made["unit-homes"].steps)
    assert not any("/srv/m` lies in a home" in each for each in made["unit-shut"].steps)


def test_keys_of_the_unit_are_named_and_stand_nowhere(made: dict[str, Deployed]) -> None:
    keys = made["unit-keys"]
    assert settings(keys)["EnvironmentFile"] == ["/etc/toolkit/contest.env"]
    assert settings(made["unit"])["EnvironmentFile"] == ["-/etc/toolkit/contest.env"]
    lines = keys.text("contest.env.example").splitlines()
    assert [x for x in lines if not x.startswith("#")] == ["VLLM_API_KEY=", "RED_KEY=", "REDIS="]
    modes = {name: (keys.folder / name).stat().st_mode & 0o777 for name in keys.files}
    assert modes.pop("contest.env.example") == 0o600
    assert set(modes.values()) == {0o644}
    (step,) = [each for each in keys.steps if "env.example" in each]
    assert step.startswith("sudo test -e /etc/toolkit/contest.env || sudo install -m 0600 ")


# --- Prometheus ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("prometheus")])
def test_promtool_takes_configuration_and_rules(name: str, made: dict[str, Deployed]) -> None:
    folder = made[name].folder
    if name == "prometheus":
        found = promtool("check", "config", folder / "prometheus.yml")
        # it names the file of a key that is not there yet
        assert (found.returncode == 0, "keys/BIG_KEY" in found.stderr) == (False, True)
        (folder / "keys").mkdir()
        (folder / "keys/BIG_KEY").write_text("secret\n")
    found = promtool("check", "config", folder / "prometheus.yml")
    assert found.returncode == 0, found.stdout + found.stderr
    rules = promtool("check", "rules", "--lint=all", "--lint-fatal", *folder.glob("rules/*.yml"))
    assert rules.returncode == 0, rules.stdout + rules.stderr


def test_both_places_of_an_engine_are_looked_at_and_the_proxys_admin(
    made: dict[str, Deployed],
) -> None:
    told = made["prometheus"].document("prometheus.yml")
    assert told["scrape_configs"] == [
        {
            "job_name": "engine",
            "static_configs": [
                {"targets": ["127.0.0.1:8101"], "labels": {"host": "qwen", "slot": "a"}},
                {"targets": ["127.0.0.1:8102"], "labels": {"host": "qwen", "slot": "b"}},
            ],
        },
        {
            "job_name": "engine-BIG_KEY",  # names of jobs can't stand twice
            "authorization": {"credentials_file": "keys/BIG_KEY"},
            "static_configs": [
                {
                    "targets": ["[::1]:8105"],
                    "labels": {"job": "engine", "host": "big", "team": "red"},
                }
            ],
        },
        {"job_name": "proxy", "static_configs": [{"targets": ["127.0.0.1:8002"]}]},
    ]
    assert told["global"]["external_labels"] == {"site": "contest"}
    assert (told["global"]["scrape_interval"], told["global"]["scrape_timeout"]) == ("5s", "4s")
    bare = made["prometheus-bare"].document("prometheus.yml")["scrape_configs"]
    assert [each["job_name"] for each in bare] == ["engine"]
    assert bare[0]["static_configs"][0]["labels"] == {"host": "a"}
    (team,) = {
        target["labels"]["team"]
        for target in made["prometheus-hostile"].document("prometheus.yml")["scrape_configs"][0][
            "static_configs"
        ]
    }
    assert team == 'red"} # {{ x }} \\'
    assert any("--web.listen-address=[::1]:9090" in x for x in made["prometheus-hostile"].steps)


def test_without_a_proxy_no_rule_asks_for_one(made: dict[str, Deployed]) -> None:
    for name in ("rules/recording.yml", "rules/alerts.yml"):
        text = made["prometheus-bare"].text(name)
        assert not re.search(r"toolkit_proxy|proxy:|Proxy[A-Z]|the proxy", text)
        assert len(text) > 1000
    assert "ProxyRedisLost" not in made["prometheus-hostile"].text("rules/alerts.yml")
    assert "ProxyRedisLost" in made["prometheus"].text("rules/alerts.yml")


def test_the_next_step_writes_a_key_for_its_owner_alone(
    made: dict[str, Deployed], tmp_path: Path
) -> None:
    command = made["prometheus"].steps[0].split("`")[1]
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, env={"BIG_KEY": "sk-1"}, check=True)
    file = tmp_path / "keys" / "BIG_KEY"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("sk-1\n", 0o600)


# --- Grafana ------------------------------------------------------------------------------------------

BOARDS = ["grafana", "grafana-bare", "grafana-unmarked"]


def board(found: Deployed) -> dict[str, Any]:
    assert found.code == 0, found.err
    told: dict[str, Any] = json.loads(found.text("dashboards/contest/toolkit.json"))
    return told


def titles(found: Deployed) -> dict[str, list[str]]:
    """Row -> its panels."""
    rows: dict[str, list[str]] = {}
    for panel in board(found)["panels"]:
        if panel["type"] == "row":
            rows[panel["title"]] = []
        else:
            rows[list(rows)[-1]].append(panel["title"])
    return rows


def test_rows_are_what_clients_see_then_engines_then_the_cache(made: dict[str, Deployed]) -> None:
    engine_rows = [
        *("Answers", "Running and waiting", "KV blocks in use", "Preemptions", "Prefix cache"),
        *("Tokens", "Queue", "Prompt length", "Answer length", "Tokens a step", "Steps"),
        *("Turned away by the engine", "Running for"),
    ]
    answers = [
        *("Requests of engines", "Time to first token, in the engine"),
        "Seconds an output token, in the engine",
    ]
    assert titles(made["grafana-bare"]) == {
        "Clients": ["Errors", "End to end", *answers],
        "Engines": engine_rows,
    }
    with_proxy = titles(made["grafana"])
    assert with_proxy == {
        "Clients": [
            *("Requests", "Errors", "Time to first token", "End to end", "Output tokens"),
            "Seconds an output token",
        ],
        "Engines": [*engine_rows, *answers],
        "Cache and proxy": [
            *("Hit ratio", "Hits by layer", "Not cached, and why", "Room in the cache"),
            *("Turned away, and why", "Queue of the proxy", "Time in the proxy's queue"),
            *("Engines, as the proxy sees them", "Calls that failed", "What happened"),
        ],
    }
    assert titles(made["grafana-unmarked"]) == with_proxy


@pytest.mark.parametrize("name", BOARDS)
def test_panels_are_laid_out_without_gaps_and_bear_numbers_of_their_own(
    name: str, made: dict[str, Deployed]
) -> None:
    panels = board(made[name])["panels"]
    assert [each["id"] for each in panels] == list(range(1, len(panels) + 1))
    taken = {
        (x, y)
        for box in (each["gridPos"] for each in panels)
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    }
    # none lies on another, none begins where the one above it has not ended, all within 24 columns
    assert len(taken) == sum(each["gridPos"]["w"] * each["gridPos"]["h"] for each in panels)
    assert max(x for x, _ in taken) == 23
    assert {y for _, y in taken} == set(range(max(y for _, y in taken) + 1))
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"].endswith((".", ")")), panel["title"]
            for asked in (panel, *panel["targets"]):
                assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("name", BOARDS)
def test_what_a_query_leaves_open_can_be_chosen_and_prometheus_takes_it(
    name: str, made: dict[str, Deployed], tmp_path: Path
) -> None:
    found = board(made[name])
    text = json.dumps([found["panels"], found["annotations"], found["templating"]])
    used = set(re.findall(r"\$\{?([a-z_]+)", text)) - {"__rate_interval", "__from", "__to", "__all"}
    assert used == {each["name"] for each in found["templating"]["list"]}
    queries = [
        asked["expr"]
        for each in (*found["panels"], *found["annotations"]["list"])
        for asked in (each, *each.get("targets", []))
        if "expr" in asked
    ]
    rules = [
        {
            "record": f"q{number}",
            "expr": re.sub(r"\$[a-z]+", "x", expr.replace("$__rate_interval", "1m")),
        }
        for number, expr in enumerate(dict.fromkeys(queries))
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    checked = promtool("check", "rules", file)
    assert (checked.returncode, f"{len(rules)} rules found" in checked.stdout) == (0, True), checked


def test_marks_are_asked_of_the_stacks_database_where_there_is_one(
    made: dict[str, Deployed],
) -> None:
    def marks(name: str) -> list[dict[str, Any]]:
        return [x for x in board(made[name])["annotations"]["list"] if x["name"] == "Marks"]

    (asked,) = marks("grafana")
    assert asked["datasource"] == {"type": "frser-sqlite-datasource", "uid": "${marks}"}
    assert asked["target"]["queryText"] == asked["target"]["rawQueryText"]
    assert marks("grafana-bare") == [asked]
    assert marks("grafana-unmarked") == []
    sources = "provisioning/datasources/toolkit-contest.yml"
    folder = made["grafana"].folder.parent
    prometheus, other = made["grafana"].document(sources)["datasources"]
    assert (prometheus["url"], prometheus["uid"]) == ("http://127.0.0.1:9090", "prometheus-contest")
    assert (other["jsonData"]["path"], other["uid"]) == (
        f"{folder}/data/toolkit.db",
        "marks-contest",
    )
    (alone,) = made["grafana-unmarked"].document(sources)["datasources"]
    assert alone == prometheus
    assert made["grafana-bare"].document(sources)["datasources"][0]["url"] == "http://[::1]:9090"
    assert any("frser-sqlite-datasource" in each for each in made["grafana"].steps)


def test_what_is_marked_and_chosen_follows_the_proxy(made: dict[str, Deployed]) -> None:
    def names(name: str) -> tuple[list[str], list[str]]:
        found = board(made[name])
        return (
            [each["name"] for each in found["annotations"]["list"]],
            [each["label"] for each in found["templating"]["list"]],
        )

    events = ["Annotations & Alerts", "Engine starts", "Alerts"]
    of_proxy = ["Proxy starts", "Engines left", "Stored answers ended"]
    chosen = ["Prometheus", "Job", "Engine", "Model"]
    assert names("grafana") == ([*events, *of_proxy, "Marks"], [*chosen, "Proxy", "Marks"])
    assert names("grafana-bare") == ([*events, "Marks"], [*chosen, "Marks"])
    assert names("grafana-unmarked") == ([*events, *of_proxy], [*chosen, "Proxy"])
    found = board(made["grafana"])
    assert (found["title"], found["uid"]) == ("LLM serving: contest", "toolkit-contest")
    (provider,) = made["grafana"].document("provisioning/dashboards/toolkit-contest.yml")[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards/contest"
    assert made["grafana"].steps[0].startswith("Put them where Grafana looks: `cp -r provisioning")
