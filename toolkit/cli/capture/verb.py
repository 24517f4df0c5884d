"""`toolkit capture`: read what clients really send, live or from capture files, and keep it."""

import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.capture.options import ANY, KEEP, ROTATE, CaptureOptions
from toolkit.cli.options import DURATION, SIZE, database_option

PORT = 8000
ENGINES = ("scapy", "ring", "tcpdump")
BUFFER = "64MiB"

EXAMPLES = """
Read the requests that clients send to an LLM server: from packets on this machine, or from
capture FILES (pcap, pcapng, gzipped or not; `-` is a pipe from tcpdump). Nothing is sent and
nothing stands in the way: the server does not notice. Only hashes and lengths are kept, and
prompts' text with --store-prompts alone. What was lost on the way is always told, by class.

\b
  toolkit capture                               port 8000, live, until Ctrl-C
  toolkit capture --iface eth0 --port 8000 --port 8001 --duration 10m --full
  toolkit capture monday.pcap tuesday.pcap.gz   no rights needed
  ssh gpu1 sudo tcpdump -i any -s 0 -U -w - tcp port 8000 | toolkit capture -
  toolkit capture monday.pcap --json --bodies   one object a request
  toolkit workload
      what follows from what was captured
"""


@click.command(
    "capture", help=EXAMPLES, short_help="Read what clients really send, live or from files."
)
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=suggestions.file)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    multiple=True,
    default=(PORT,),
    show_default=True,
    help="The server's TCP port; may be repeated.",
)
@click.option(
    "--iface",
    metavar="NAME",
    shell_complete=suggestions.interface,
    help=f"Interface, or `any` or `lo`.  [default: {ANY}]",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="How packets are taken from the kernel; `ring` is scapy by its old name.  [default: scapy]",
)
@click.option(
    "--buffer", type=SIZE, help=f"Kernel memory for packets that wait.  [default: {BUFFER}]"
)
@click.option(
    "--full",
    is_flag=True,
    help="Follow the answers, too: status, TTFT, latency, tokens, finish reason, in flight.",
)
@click.option("--duration", type=DURATION, help="End after so long.  [default: Ctrl-C ends it]")
@click.option("--follow", is_flag=True, help="Go on with what is appended to FILE.")
@click.option("--path", metavar="GLOB", help="Only requests for such a path, e.g. `/v1/*`.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a request, and one of all."
)
@click.option("--bodies", is_flag=True, help="With --json: print each body in full.")
@click.option(
    "--jsonl",
    metavar="FILE",
    shell_complete=suggestions.file,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append one JSON object a request to this file.",
)
@click.option("--rotate", type=SIZE, help=f"Move FILE to FILE.1 at this size.  [default: {ROTATE}]")
@click.option("--keep", type=click.IntRange(0), help=f"Old files kept.  [default: {KEEP}]")
@click.option("--store-prompts", is_flag=True, help="Keep prompts' text, not only its hash.")
@click.option("--show-clients", is_flag=True, help="Keep clients' addresses, not only a hash.")
@database_option
@click.option("--no-store", is_flag=True, help="Keep nothing in the database.")
def command(**options: Any) -> None:
    """Capture requests (the help text is EXAMPLES)."""
    chosen = CaptureOptions(**options)
    contradiction = _contradiction(chosen)
    if contradiction:
        raise click.UsageError(contradiction)
    from toolkit.cli.capture.run import run_capture

    sys.exit(run_capture(chosen))


def _contradiction(options: CaptureOptions) -> str | None:
    """Say which two words cannot both be meant: one of them would be passed over in silence."""
    files, live = options.files, options.is_live
    cases = (
        (
            not live and options.iface is not None,
            "--iface is where packets are taken from; a FILE has its own",
        ),
        (not live and options.engine is not None, "--engine takes packets from an interface"),
        (not live and options.buffer is not None, "--buffer is for packets from an interface"),
        (files.count("-") > 1, "`-` stands twice; there is one standard input"),
        (
            options.follow and (len(files) != 1 or "-" in files),
            "--follow goes with one FILE that grows",
        ),
        (
            options.duration is not None and options.ends_by_itself,
            "--duration ends what has no end; a FILE has one",
        ),
        (options.bodies and not options.as_json, "--bodies goes with --json"),
        (options.rotate is not None and options.jsonl is None, "--rotate goes with --jsonl"),
        (options.keep is not None and options.jsonl is None, "--keep goes with --jsonl"),
        (
            options.jsonl is not None and any(_same(name, options.jsonl) for name in files),
            f"--jsonl would write into `{options.jsonl}`, which is to be read",
        ),
    )
    return next((message for is_so, message in cases if is_so), None)


def _same(name: str, path: Path) -> bool:
    try:
        return Path(name).samefile(path)
    except OSError:
        return False
