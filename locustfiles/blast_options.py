"""What a blast was started with: arguments, environment, hosts list, profile. Read when the locustfile is imported.

Locust parses custom arguments only after it has built its classes, and there is a class for each host. So the command
line is read here once before, with Locust's own parser (its files and variables included), and registered again.
"""

import re
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import orjson
from locust.argument_parser import LocustArgumentParser, get_empty_argument_parser

from toolkit.blast.plan import LOAD_OPTIONS, LoadSettings
from toolkit.blast.tallying import MESSAGE_FORMAT
from toolkit.cli.catalog import profile_from
from toolkit.cli.inputs import allow_open_files, hosts_from, keys_for, tls_for
from toolkit.cli.places import DATABASE
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile
from toolkit.records import Host

HOSTS_FILE = "hosts.txt"
PROFILE = "contest"


def end_with(error: ToolkitError) -> NoReturn:
    """Say what is wrong as the toolkit does, and leave."""
    hint = f"\n\nHint: {error.hint}" if error.hint else ""
    print(f"Error: {error.message}{hint}", file=sys.stderr, flush=True)
    sys.exit(1)


def add_arguments(parser: LocustArgumentParser) -> None:
    """The blast's own arguments."""
    hidden = {"include_in_web_ui": False}
    parser.add_argument(
        "--hosts-file",
        metavar="<file>",
        env_var="TOOLKIT_HOSTS",
        help=f"Who is loaded: a line is `NAME URL`. Without it {HOSTS_FILE}, else --host",
        **hidden,
    )
    parser.add_argument(
        "--db",
        metavar="<file>",
        env_var="TOOLKIT_DB",
        default=DATABASE,
        help="The SQLite file that the master writes, made on first use",
        **hidden,
    )
    parser.add_argument("--run", metavar="<id>", help="Twelve hexadecimal digits", **hidden)
    parser.add_argument(
        "--resume", metavar="<id>", help="Go on with this run instead of a new one", **hidden
    )
    parser.add_argument(
        "--non-neutral",
        metavar="<why>",
        help="Mark the run as not valid for ranking; hosts on the load generator's machine do so unasked",
        **hidden,
    )
    # Locust's page starts loads; its own default is every address of this machine
    parser.set_defaults(web_host="127.0.0.1")
    parser.add_argument("--ca", metavar="<file>", env_var="TOOLKIT_CA", **hidden)
    parser.add_argument("--insecure", action="store_true", env_var="TOOLKIT_INSECURE", **hidden)
    usual = {field.name: field.default for field in fields(LoadSettings)}
    for option in LOAD_OPTIONS:  # in the web form, too
        parser.add_argument(
            option.name,
            type=option.kind,
            metavar=option.metavar,
            env_var=option.variable,
            default=usual[option.field],
            help=option.help,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What is known when the classes are built."""

    options: Any
    """Locust's namespace, as far as it was read."""
    hosts: tuple[Host, ...]
    keys: Mapping[str, str]
    profile: Profile | None
    """None at a worker, which gets it from its master."""
    is_worker: bool
    tls: ssl.SSLContext | None
    """That all https hosts share; None without such a host."""

    @property
    def hosts_hash(self) -> str:
        """Equal for equal lists, whatever their order."""
        lines = sorted([host.name, host.url, host.model or ""] for host in self.hosts)
        return sha256(orjson.dumps([MESSAGE_FORMAT, lines])).hexdigest()[:16]


def read_early(words: list[str] | None = None) -> Early:
    """Read the command line, the hosts and the profile, or leave with what is wrong."""
    parser = get_empty_argument_parser(add_help=False)
    # those of Locust's arguments that decide something here, or that ours might be mistaken for
    parser.add_argument("-H", "--host", env_var="LOCUST_HOST")
    parser.add_argument("--profile", env_var="TOOLKIT_PROFILE")
    parser.add_argument("--worker", action="store_true", env_var="LOCUST_MODE_WORKER")
    parser.add_argument("--master", action="store_true", env_var="LOCUST_MODE_MASTER")
    parser.add_argument("--processes", type=int, env_var="LOCUST_PROCESSES")
    parser.add_argument("--master-host", default="127.0.0.1", env_var="LOCUST_MASTER_NODE_HOST")
    parser.add_argument("--master-port", type=int, default=5557, env_var="LOCUST_MASTER_NODE_PORT")
    add_arguments(parser)
    options, _ = parser.parse_known_args(args=words)
    for name in ("run", "resume"):
        run = getattr(options, name)
        if run is not None and not re.fullmatch("[0-9a-f]{12}", run):
            what = f"`--{name} {run}` is no run's id"
            end_with(ToolkitError(what, "It has twelve hexadecimal digits"))
    try:
        hosts = tuple(_hosts(options))
        is_master_only = options.master and not options.processes
        has_tls = any(host.url.startswith("https:") for host in hosts)
        allow_open_files()
        return Early(
            options=options,
            hosts=hosts,
            keys={} if is_master_only else keys_for(hosts),
            profile=None if options.worker else profile_from(options.profile or PROFILE),
            is_worker=options.worker,
            tls=tls_for(insecure=options.insecure, ca=options.ca) if has_tls else None,
        )
    except ToolkitError as error:
        end_with(error)


def _hosts(options: Any) -> list[Host]:
    source = options.hosts_file
    if source is None and Path(HOSTS_FILE).is_file():
        source = HOSTS_FILE
    if source is None:
        if not options.host:
            raise ToolkitError(
                "no hosts to load were given",
                f"Write a `{HOSTS_FILE}`, or name a file with `--hosts-file` or `TOOLKIT_HOSTS`, or one `--host`",
            )
        return hosts_from([options.host])
    if options.host:
        raise ToolkitError(
            f"`--host {options.host}` stands beside the hosts of `{source}`: Locust would send everything to it alone",
            f"Take `--host`, `LOCUST_HOST` or `host =` away, or write that host into `{source}`",
        )
    return hosts_from((), source)  # a file, even where a listed host is called the same
