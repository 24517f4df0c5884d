"""`toolkit report`: the lab report of a run, with pass criteria and what each rests on."""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import host_from, open_input
from toolkit.cli.named_run import chosen_run, verdicts_of
from toolkit.cli.options import FILE, HOSTS, PRICE, VARIABLE, database_option, run_word
from toolkit.cli.output import print_json, say, writing
from toolkit.cli.places import command_on
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.units import milliseconds

if TYPE_CHECKING:
    from toolkit.records import Event, Run, Tally
    from toolkit.store import Store
    from toolkit.tuning.criteria import Costs, Outcome
    from toolkit.tuning.lab_report import HostReport

CALL_S = 60.0
MAX_TOKENS = 32
MOST_EVENTS = 200


@click.command(
    "report", cls=Command, short_help="The lab report of a run: criteria, evidence, plots."
)
@click.argument("run", metavar="RUN", type=run_word("blast", "bench"))
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report with plots."
)
@click.option(
    "--log",
    metavar="FILE",
    type=FILE,
    help="The request log of `toolkit proxy --log`, `-` for standard input.",
)
@advanced(
    "--call", metavar="URL", type=HOSTS, help="Make one chat call there with OpenAI's own client."
)
@advanced(
    "--call-key-env",
    metavar="VAR",
    type=VARIABLE,
    help="The variable that holds the key for --call.",
)
@click.option(
    "--gpu-hour",
    type=click.FloatRange(min=0),
    metavar="PRICE",
    help="Price of one GPU for an hour.",
)
@advanced(
    "--gpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of GPUs that served the run.",
)
@click.option(
    "--api-price",
    type=PRICE,
    metavar="PRICE",
    help="An API's price per million tokens: `0.15/0.60` for prompt/answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@database_option
def command(
    run: str,
    html: Path | None,
    log: str | None,
    call: str | None,
    call_key_env: str | None,
    gpu_hour: float | None,
    gpus: int,
    api_price: tuple[float, float] | None,
    as_json: bool,
    database: Path,
) -> None:
    """Write the lab report of a run: seven criteria (model loading, API compatibility, stability, cost,
    observability, boundaries, admission), each met, not met or unknown, with the evidence and what
    would settle it, and the run's figures over time. RUN is an id as `toolkit runs` lists it, of a
    blast or a bench, or `RUN:HOST` for one host of it.

    \b
      toolkit report 3f9c2a7b1d04
      toolkit report 3f9c2a7b1d04 --html report.html
          one file with plots, to send around
      toolkit report 3f9c2a7b1d04:alice --log requests.jsonl --gpu-hour 2.00 \\
          --api-price 0.15/0.60
    \f
    \b
      toolkit report 3f9c2a7b1d04 --call http://10.0.0.4:8000
          and make one call with OpenAI's client
      toolkit report 3f9c2a7b1d04 --json

    Starts, warm-ups and settings are what `toolkit serve` recorded in the same database.
    """
    if call_key_env and not call:
        raise click.UsageError("--call-key-env goes with --call")
    from toolkit.bench.summary import window_s
    from toolkit.board.standings import why_not_valid
    from toolkit.plan.catalog import table
    from toolkit.records import RequestRecord
    from toolkit.store import Store
    from toolkit.tuning.cells import second_of
    from toolkit.tuning.criteria import RequestLog, criteria
    from toolkit.tuning.lab_report import Report, host_report, text_lines

    run_id, _, name = run.partition(":")
    with waiting_for("Reading"), Store.open_readonly(database) as store:
        found = chosen_run(store, run_id, database)
        records: list[Tally | RequestRecord] = [
            *store.tallies(found.id, kind="ranked", name=name or None)
        ]
        if not records:
            requests = store.shots(found.id, name=name or None)
            records = [each for each in requests if each.kind != "warmup"]
        if not records and name:
            raise ToolkitError(
                f"run `{found.id}` has no host `{name}` that was asked anything",
                f"`{command_on(database, 'report', found.id)}` reports on all of its hosts",
            )
        if not records:
            raise ToolkitError(
                f"run `{found.id}`, of `toolkit {found.verb}`, holds no timed request",
                "Report on a blast or a bench; `toolkit runs` lists them, `toolkit sweep --show` shows a sweep",
            )
        verdicts = verdicts_of(store, found)
        serve = _stack_of(store, found)
        events = _events_of(store, found, serve, name)
        # a worker that came late left a mark alone; a run of an earlier release its settings alone
        not_valid = why_not_valid(event for _, event in store.events(found.id))
        not_valid = not_valid or found.plan.get("non_neutral")
        refused = _rejected(store, found)

    by_host: dict[tuple[str, str], list[Tally | RequestRecord]] = {}
    for each in records:
        by_host.setdefault((each.name, each.url), []).append(each)
    # a blast's run begins with its load, a bench's with looks and a warm-up
    requests = [each for each in records if isinstance(each, RequestRecord)]
    sent = [each.sent_at for each in requests if each.sent_at]
    began = min(sent, default=math.inf) if requests else found.started_at
    ends = [second_of(each) for each in records]
    seconds = range(int(min(began, *ends)), max(ends) + 1)
    hosts = []
    for key, mine in by_host.items():
        # a bench tells each host's rate from its first planned send to its last end: so does a report on it
        window = window_s([each for each in mine if isinstance(each, RequestRecord)])
        hosts.append(host_report(mine, seconds, verdicts.get(key, ()), duration_s=window))
    costs = _costs(hosts, gpu_hour, gpus, api_price)

    # what the user adds: a call, a log
    called = logged = None
    if call is not None:
        host = host_from(call)
        with waiting_for(f"Calling {host.url}"):  # the client's import takes as long as many a call
            called = _call(host.url, call_key_env or host.api_key_env)
    if log is not None:
        logged = RequestLog("standard input" if log == "-" else log)
        with (
            open_input(log, "Name the file of `toolkit proxy --log`") as file,
            waiting_for("Reading the log"),
        ):
            for line in _log_lines(file, logged.name):
                logged.add(line)

    # what was planned, in a few words, and what speaks against the figures
    plan = found.plan
    words = []
    if plan.get("profile"):
        words.append(f"the prompts of {plan['profile']}")
    if isinstance(plan.get("users"), int):
        words.append(f"{plan['users']:,} users")
    if plan.get("concurrency"):
        words.append(f"{plan['concurrency']} requests at once")
    notes = []
    if found.client_ok is False:
        notes.append(
            "The measuring machine was the limit for a part of the run: figures describe it, too."
        )
    if not_valid:
        why = str(not_valid).replace("`", "")
        notes.append(f"Not valid for ranking: {why}; the load took CPU from what it measured.")
    if found.ended_at is None:
        notes.append("The run has no end: it is still running, or was cut off.")
    if len(hosts) > 1:
        notes.append(
            f"Of the {len(hosts)} hosts the criteria name the one that fares worst; cost is shown of one host alone: "
            "`RUN:HOST`."
        )
    report = Report(
        run=found.id,
        verb=found.verb,
        started_at=found.started_at,
        ended_at=found.ended_at,
        plan=", ".join(words),
        hosts=hosts,
        criteria=criteria(
            table("criteria"),
            [(host.name, host.whole) for host in hosts],
            events=events,
            serve=serve,
            call=called,
            costs=costs,
            log=logged,
            rejected=refused,
        ),
        costs=costs,
        events=events,
        notes=tuple(notes),
    )

    if as_json:
        print_json(report.as_json())
    elif html is None:
        for text in text_lines(report):
            say(text)
    if html:
        from toolkit.tuning.pages import report_page

        with writing("Report", html, "--html"), waiting_for("Drawing"):
            html.write_text(report_page(report), encoding="utf-8")


def _costs(
    hosts: "Sequence[HostReport]",
    gpu_hour: float | None,
    gpus: int,
    api_price: tuple[float, float] | None,
) -> "Costs | None":
    """The GPU hour against the API at the run's own rate and tokens; what several hosts answered together is no one GPU's work."""
    from toolkit.plan.capacity import cost
    from toolkit.tuning.criteria import Costs
    from toolkit.tuning.figures import ratio

    if gpu_hour is None or len(hosts) != 1:
        return None
    whole = hosts[0].whole
    prompt, output = ratio(whole.prompt_tokens, whole.ok), ratio(whole.output_tokens, whole.ok)
    reckoned = cost(
        gpu_hour,
        api_price,
        gpus=gpus,
        requests_per_s=whole.figure("rps") or None,
        prompt_tokens=prompt,
        output_tokens=output,
        request_tokens=(prompt or 0) + (output or 0) or 1.0,
    )
    # of no answer the mix of tokens is unknown, and so the API's price for it; one is given all the same
    api = reckoned.api_per_million_tokens if whole.ok or api_price is None else api_price[1]
    return Costs(
        gpu_hour=gpu_hour,
        gpus=gpus,
        per_million_tokens=reckoned.per_million_tokens,
        api_per_million_tokens=api,
        per_thousand_requests=reckoned.per_thousand_requests,
        api_per_thousand_requests=reckoned.api_per_thousand_requests,
        even_rps=reckoned.even_rps,
    )


def _log_lines(lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    """A line an object; a last one that is torn is left out."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                return
            raise ToolkitError(
                f"`{name}` line {number} is not JSON", "Give a log of `toolkit proxy --log FILE`"
            ) from error
        if isinstance(found, dict):
            yield found


def _rejected(store: "Store", run: "Run") -> int | None:
    """Requests that a proxy's rows of the run's time tell to have been answered 429."""
    found: int | None = None
    end = run.ended_at or float("inf")
    for other in store.runs(verb="proxy"):
        if other.started_at <= end and (other.ended_at or float("inf")) >= run.started_at:
            rows = store.seen(other.id, from_ts=run.started_at, to_ts=min(end, 1e12), texts=False)
            found = (found or 0) + sum(each.status == 429 for each in rows)
    return found


def _stack_of(store: "Store", run: "Run") -> "Run | None":
    """The serve that was on when the run began, the last begun of several; one that was killed never said its end."""
    before = [each for each in store.runs(verb="serve") if each.started_at <= run.started_at]
    for place, each in enumerate(before):
        if each.ended_at is None and place:
            continue  # another one began after it: it was killed
        if each.ended_at is None or each.ended_at >= run.started_at:
            return each
    return None


def _events_of(store: "Store", run: "Run", serve: "Run | None", name: str) -> "tuple[Event, ...]":
    """The run's own, and the stack's up to the run's end, in the order of time, each once; `name`: of this host alone."""
    from toolkit.board.reveal import (
        without_steps,  # its secrets' import takes 10 ms of every `--help`
    )

    found = list(without_steps(event for _, event in store.events(run.id)))
    if name:
        found = [event for event in found if event.name in (None, name)]
    if serve is not None:
        end = run.ended_at or float("inf")
        found += [event for _, event in store.events(serve.id) if event.at <= end]
    # serve tells the board of a restart, too, under the address that clients know and with the engine's name before it
    boards = {(event.at, event.kind, f"{event.name}: {event.text}") for event in found}
    found = [event for event in found if (event.at, event.kind, event.text) not in boards]
    once = {(event.at, event.kind, event.name, event.text): event for event in found}
    return tuple(sorted(once.values(), key=lambda event: event.at))[-MOST_EVENTS:]


def _call(url: str, key_env: str | None) -> "Outcome":
    """One chat call with OpenAI's own client, where it is installed: the plainest proof that it works."""
    try:
        import openai
    except ImportError as error:
        raise ToolkitError(
            "OpenAI's client is not installed here", "Install it: `pip install openai`"
        ) from error
    key = os.environ.get(key_env, "").strip() if key_env else "none"
    if not key:
        raise ToolkitError(
            f"`{key_env}` is not set, which holds the key for `--call`",
            f"Set it, e.g., `export {key_env}=...`",
        )
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=CALL_S, max_retries=0)
    began_s = time.monotonic()
    try:
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Write a sample pytest fixture."}],
            max_tokens=MAX_TOKENS,
        )
        choice = answer.choices[0]
    except (openai.OpenAIError, LookupError, TypeError, AttributeError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return "client_failed", {"problem": f"failed at {url}: {first_line}"}
    took = milliseconds(1000 * (time.monotonic() - began_s))
    if not choice.finish_reason or not choice.message.content:
        return "client_failed", {"problem": f"got an answer without a text from {url}"}
    return "client_answered", {"version": openai.__version__, "model": model, "took": took}
