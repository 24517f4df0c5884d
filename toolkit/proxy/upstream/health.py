"""Probes every upstream each second, each on its own: its load, its health, its identity. It touches sockets and the clock.

What it reads it hands to routing and the fingerprints; it decides nothing. No client's request waits for it. A server that hangs, drips or
sends without end costs its own probe and nobody else's. Only paths of a fixed list are asked, at the configured addresses.
"""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import orjson

from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import read_page
from toolkit.proxy.errors import Fault, FaultKind
from toolkit.proxy.upstream.connection import Page, Upstream
from toolkit.proxy.upstream.fingerprint import Fingerprints, read_facts
from toolkit.proxy.upstream.routing import EngineLoad, Routing, ScrapeFailure

METRICS, MODELS, VERSION = "/metrics", "/v1/models", "/version"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HEALTH: Final = "/health"
LITELLM_ALIVE: Final = "/health/liveliness"
"""LiteLLM calls all of its models at /health, and answers 500 there while it has no database; here it says that it lives."""
STEPS = "iteration_tokens_total_count"
"""vLLM's histogram of tokens a step: how many steps its engine made."""
METRICS_BYTES: Final = 16 * 2**20
"""Sixteen engines behind one address: 16 times the recorded 56 KB is 0.9 MB."""
PAGE_BYTES: Final = 2**20
"""Of any other page. 2,000 LoRA adapters at the recorded 449 bytes a model are 0.9 MB."""
LONG_PAGE_BYTES: Final = 2**16
"""Longer ones are read in a thread: 56 KB take 0.7 to 1 ms, which hits that come meanwhile wait."""
READING_SHARE: Final = 0.1
"""Parsing a server's pages takes no more than this share of the time: a page that takes 1 s is asked for each 10 s."""
PAGE_LIMIT_S: Final = 1.0
"""How long an upstream may take to answer a client's request for /metrics; after that its last page is used."""
STALE_SCRAPES: Final = 2
"""A page older than so many scrapes, and the time that one may take, is not used any more."""
PAGE_PAUSE_S = 0.1
"""Shortest time between two such rounds over the upstreams, however often clients ask."""
WORKER_LABEL: Final = "WorkerId"
"""By which Ray tells its replicas apart: who reads replicas' pages adds them up and takes no two for one."""


# --- one engine's pages ------------------------------------------------------------------------------------


class Engine:
    """One engine: fetches its pages, asks it for a token, and holds what is known of it.

    Every method raises Fault, and TimeoutError where the caller's time is over; each page has its longest length. Pages of a
    stranger: what can't be understood is None. All times are monotonic.
    """

    def __init__(self, upstream: Upstream, *, user_agent: bytes, number: int = 0) -> None:
        """`number`: among all upstreams."""
        self.upstream, self.number, self._user_agent = upstream, number, user_agent
        self.model = upstream.setting.model
        """A model that it serves, for the request for one token; the caller may set it."""
        self.health: str | None = None
        """Where it says whether it is well; None: not known yet."""
        self._completions = COMPLETIONS
        self.numbers: EngineNumbers | None = None
        """What its /metrics said when it was asked last, as `load`; None: there is no page of a known engine."""
        self.load = EngineLoad()
        self.reading_s = 0.0
        """Time that its last /metrics took to be read, once it had come."""
        self.page: bytes | None = None
        """Its last good /metrics, and when that came."""
        self.page_s = -math.inf
        self.without_metrics_s: float | None = None
        """When there was no /metrics last; None: there is."""
        self.version_page: bytes | None = None
        self.identified_s = -math.inf
        self.started_at: float | None = None
        self.is_well = self.was_refused = False
        """The last scrape succeeded; a connection was refused since the last one that did."""
        self.was_seen = asyncio.Event()
        """It was scraped once, successfully or not."""

    async def fetch(
        self,
        path: str,
        most_bytes: int = PAGE_BYTES,
        *,
        body: bytes = b"",
        user_agent: bytes | None = None,
    ) -> Page:
        """A page, asked for by GET, or by POST with a JSON body."""
        headers = [
            (b"user-agent", user_agent or self._user_agent),
            # another cache before the engine must not answer for it
            (b"cache-control", b"no-cache, no-store"),
        ]
        if body:
            headers.append((b"content-type", b"application/json"))
        return await self.upstream.fetch(path, headers=headers, body=body, most_bytes=most_bytes)

    async def metrics(self) -> Page | None:
        """Read /metrics; the page, if it is a known engine's."""
        self.numbers, self.load = None, EngineLoad()
        page = await self.fetch(METRICS, METRICS_BYTES)
        if page.status != 200:
            return None
        began_s = time.monotonic()
        try:
            if len(page.body) > LONG_PAGE_BYTES:
                self.numbers, self.load = await asyncio.to_thread(read_metrics, page)
            else:
                self.numbers, self.load = read_metrics(page)
        finally:
            # too late, too: the thread reads on
            self.reading_s = time.monotonic() - began_s
        return page if self.numbers else None

    async def is_ill(self) -> bool:
        """Whether /health answers 5xx: the engine is dead, or loads still."""
        if self.health is None:
            page = await self.fetch(LITELLM_ALIVE)
            is_litellm = page.status == 200 and b"I'm alive!" in page.body
            self.health = LITELLM_ALIVE if is_litellm else HEALTH
        return (await self.fetch(self.health)).status >= 500

    async def token(self, limit_s: float) -> bool | None:
        """Whether it makes a token in time; None: it can't be asked, or the answer says nothing of the engine, e.g., that too many ask."""
        prompts: dict[str, dict[str, object]] = {
            COMPLETIONS: {"prompt": "ping"},
            CHAT: {"messages": [{"role": "user", "content": "ping"}]},
        }
        try:
            async with asyncio.timeout(limit_s):
                if self.model is None:
                    models = read_facts(None, await self.fetch(MODELS), None).models
                    self.model = models[0].id if models else None
                if self.model is None:
                    return None
                asked = {"model": self.model, "max_tokens": 1, "temperature": 0}
                while True:
                    body = orjson.dumps(asked | prompts[self._completions])
                    page = await self.fetch(
                        self._completions, body=body, user_agent=b"llm-serving-toolkit-probe"
                    )
                    if page.status not in (404, 405) or self._completions == CHAT:
                        break
                    self._completions = CHAT
        except TimeoutError:
            return False
        except Fault as fault:
            return None if fault.kind in ("connect", "tls") else False
        if page.status in (0, 429, 503) or 300 <= page.status < 500:
            return None
        with contextlib.suppress(ValueError):
            told = orjson.loads(page.body)
            return page.status == 200 and isinstance(told, dict) and bool(told.get("choices"))
        return False


def read_metrics(page: Page) -> tuple[EngineNumbers | None, EngineLoad]:
    """What a /metrics page says; None: it is no known engine's."""
    series = read_page(page.body.decode("utf-8", "replace"))
    numbers = read_numbers(series, page.content_type)
    if numbers is None:
        return None, EngineLoad()
    steps = next((name for name in series.lines if name.endswith(STEPS)), None)
    signs = (
        numbers.prompt_tokens_total,
        numbers.generation_tokens_total,
        None if steps is None else series.total(steps),
        numbers.kv_cache_usage,
    )
    return numbers, EngineLoad(running=numbers.running, waiting=numbers.waiting, signs=signs)


# --- all of them -------------------------------------------------------------------------------------------


class Prober:
    """Probes the upstreams whose setting says so; `run` it in the loop that they were opened in."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        routing: Routing,
        fingerprints: Fingerprints,
        *,
        event: Callable[[str, dict[str, object]], None],
        clock: Callable[[], float] = time.monotonic,
        limit_s: float = 2.0,
        identity_s: float = 10.0,
        tick_s: float = 0.25,
    ) -> None:
        """`limit_s`: of one scrape, and of reading the pages that say who it is.

        `identity_s`: how often those are read while nothing happens, and /metrics where there was none. `tick_s`: how often it is
        asked whether somebody wants a token: its delay counts towards the time until a stuck engine is left.
        """
        self._routing, self._fingerprints = routing, fingerprints
        self._event, self._clock = event, clock
        self._limit_s, self._identity_s, self._tick_s = limit_s, identity_s, tick_s
        self._engines = {
            name: Engine(each, user_agent=b"llm-serving-toolkit-watch", number=number)
            for number, (name, each) in enumerate(upstreams.items())
            if each.setting.is_watched
        }
        self._reasons: dict[str, str | None] = {}
        """As they were last reported."""
        self._asking = asyncio.Lock()
        self._pages, self._page_began_s = 0, -math.inf
        """How often upstreams were asked for their /metrics for others, and when last."""
        self._last_page = 0, ""
        """What came of it, and of which time."""

    async def run(self) -> None:
        """Probe until cancelled; this ends every scrape, too."""
        async with asyncio.TaskGroup() as tasks:
            for number, engine in enumerate(self._engines.values()):
                tasks.create_task(self._scrape_on(engine, number / len(self._engines)))
            while True:
                for name in self._routing.wants_probe(self._clock()):
                    asking = self._ask_for_token(self._engines[name])
                    tasks.create_task(self._guarded(asking, name))
                self._report_changes()
                await asyncio.sleep(self._tick_s)

    async def first_scrape(self) -> None:
        """Wait until each upstream was scraped once, so that no stored answer of another engine can be found."""
        for engine in self._engines.values():
            await engine.was_seen.wait()

    def version_page(self) -> bytes | None:
        """The last /version page of the first upstream that has one."""
        return next(
            (each.version_page for each in self._engines.values() if each.version_page), None
        )

    async def _scrape_on(self, engine: Engine, phase: float) -> None:
        """Scrape again and again; several upstreams' scrapes do not fall together."""
        interval_s = self._routing.setting.look_s
        due_s = self._clock()
        while True:
            await self._guarded(self._scrape(engine), engine.upstream.name)
            engine.was_seen.set()
            if engine.is_well and phase:
                due_s, phase = due_s + phase * interval_s, 0.0
            pause_s = max(interval_s, engine.reading_s / READING_SHARE)
            due_s = max(due_s + pause_s, self._clock())
            await asyncio.sleep(due_s - self._clock())

    async def _guarded(self, work: Awaitable[None], name: str) -> None:
        """Report an unexpected exception instead of letting it end the prober."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 (reported, not hidden)
            self._event(
                "watch_failed", {"upstream": name, "error": f"{type(error).__name__}: {error}"}
            )

    async def _scrape(self, engine: Engine) -> None:
        name = engine.upstream.name
        page: Page | None = None
        failure: ScrapeFailure | None = None
        try:
            async with asyncio.timeout(self._limit_s):
                # one that had no /metrics is asked for it now and then, and where it was away
                without_s = engine.without_metrics_s
                is_due = without_s is None or self._clock() - without_s >= self._identity_s
                if is_due or not engine.is_well:
                    page = await engine.metrics()
                    engine.without_metrics_s = None if page else self._clock()
                if page is None and await engine.is_ill():
                    failure = "unhealthy"
        except TimeoutError:
            failure = "timeout"
        except Fault as fault:
            found: dict[FaultKind, ScrapeFailure] = {
                "connect": "refused",
                "timeout_connect": "timeout",
            }
            failure = found.get(fault.kind, "other")
        if failure is not None:
            # another server may answer there next
            engine.health, engine.is_well = None, False
            engine.was_refused |= failure == "refused"
            self._routing.scrape_failed(name, failure, self._clock())
            self._report_changes()
            return

        # who it is comes first: no request is to meet another engine under an old word
        numbers = engine.numbers
        if page is not None:
            engine.page, engine.page_s = page.body, self._clock()
        if engine.was_refused:
            self._fingerprints.came_back(name)
        self._fingerprints.saw(name, read_facts(None, None, numbers))
        started_at = numbers.started_at if numbers else None
        is_new = not engine.is_well or started_at != engine.started_at
        engine.is_well, engine.was_refused, engine.started_at = True, False, started_at
        self._routing.scraped(name, engine.load, self._clock())
        self._report_changes()

        if not is_new and self._clock() - engine.identified_s < self._identity_s:
            return
        engine.identified_s = self._clock()
        with contextlib.suppress(TimeoutError, Fault):
            async with asyncio.timeout(self._limit_s):
                listed = await engine.fetch(MODELS)
                version = await engine.fetch(VERSION)
            if version.status == 200:
                engine.version_page = version.body
            facts = read_facts(version, listed, numbers)
            self._fingerprints.saw(name, facts)
            names = [model.id for model in facts.models or ()]
            if engine.upstream.setting.model is None:
                # the metrics name the base model, /v1/models the adapters, too
                labels = numbers.models if numbers else ()
                engine.model = next(iter(labels or names), engine.model)
            if facts.models is not None:
                load = replace(engine.load, models=frozenset(names))
                self._routing.scraped(name, load, self._clock())

    async def _ask_for_token(self, engine: Engine) -> None:
        made: bool | None = None
        try:
            made = await engine.token(self._routing.setting.probe_s)
        finally:
            self._routing.probed(engine.upstream.name, made, self._clock())
        self._event("probe", {"upstream": engine.upstream.name, "token": made})

    def _report_changes(self) -> None:
        """Send an event for each upstream that was left or is back."""
        for each in self._routing.states(self._clock()):
            before, self._reasons[each.name] = self._reasons.get(each.name), each.reason
            if (before is None) != (each.reason is None):
                kind = "upstream_back" if each.reason is None else "upstream_left"
                self._event(kind, {"upstream": each.name, "reason": each.reason or before})

    # --- the engines' metrics, for whoever wants them now ---------------------------------------------------

    async def metrics_page(self) -> str:
        """Return the engines' current /metrics as one page, with the last page of an engine that does not answer in time.

        The last scrape would do for a person, but not for who compares counters before and after a run: bench would find requests
        that no engine counted, and accuse the host of hiding one. All who ask while upstreams are being asked share the next
        answer, and never get one that began before they asked.
        """
        asked = self._pages
        async with self._asking:
            number, page = self._last_page
            if number > asked:
                return page
            # one who leaves here takes nobody's answer away: the next one asks
            await asyncio.sleep(self._page_began_s + PAGE_PAUSE_S - self._clock())
            self._page_began_s = self._clock()
            number = self._pages = self._pages + 1
            await asyncio.gather(*map(self._fetch_metrics, self._engines.values()))
            oldest_s = self._clock() - STALE_SCRAPES * self._routing.setting.look_s - PAGE_LIMIT_S
            pages = {
                engine.number: engine.page.decode("utf-8", "replace")
                for engine in self._engines.values()
                if engine.page is not None and engine.page_s >= oldest_s
            }
            # one of several keeps its number while the others are away: its series go on
            page = one_page(pages) if len(self._engines) > 1 else "".join(pages.values())
            self._last_page = number, page
            return page

    def metrics_age_s(self, name: str) -> float | None:
        """How long ago an upstream's page came last; None: never."""
        engine = self._engines.get(name)
        if engine is None or engine.page is None:
            return None
        return max(0.0, self._clock() - engine.page_s)

    async def _fetch_metrics(self, engine: Engine) -> None:
        with contextlib.suppress(TimeoutError, Fault):
            async with asyncio.timeout(PAGE_LIMIT_S):
                page = await engine.fetch(
                    METRICS, METRICS_BYTES, user_agent=b"llm-serving-toolkit-scrape"
                )
            texts = ("text/plain", "application/openmetrics-text")
            if page.status == 200 and page.content_type.startswith(texts):
                engine.page, engine.page_s = page.body, self._clock()


# --- several pages as one ----------------------------------------------------------------------------------

_SAMPLE = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{[ \t]*(\})?)?")
_SUFFIXES = frozenset({"", "_total", "_bucket", "_sum", "_count", "_created", "_info"})
"""Of a family's samples."""
_END = "# EOF"


def one_page(pages: Mapping[int, str]) -> str:
    """Several engines' /metrics as if they were replicas behind one address, each family once; a page's key is its upstream's number.

    Each page's series get that number as a label: an upstream's name may be an address.
    """
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in pages.items():
        family = ""
        for line in page.split("\n"):
            words = line.split(maxsplit=3)
            if line.startswith("#"):
                # of what several pages say of a family the first word stays
                if len(words) >= 3 and words[1] in ("HELP", "TYPE", "UNIT"):
                    family = words[2]
                    heads.setdefault(family, {}).setdefault(words[1], line)
                    samples.setdefault(family, [])
                continue
            if not words:
                continue
            found, sample = _SAMPLE.match(line), line
            name = found[1] if found else ""
            is_family_s = family and name.removeprefix(family) in _SUFFIXES
            if found is not None and f'{WORKER_LABEL}="' not in line:
                # `name 1`, `name{} 1` or `name{more...`
                end = "} " if found[2] is None else "}" if found[3] else ","
                sample = f'{name}{{{WORKER_LABEL}="{number}"{end}{line[found.end() :]}'
            samples.setdefault(family if is_family_s else name, []).append(sample)
    lines = [
        line
        for family, those in samples.items()
        for line in (*heads.get(family, {}).values(), *those)
    ]
    lines += [_END] * any(_END in page for page in pages.values())
    return "".join(f"{line}\n" for line in lines)
