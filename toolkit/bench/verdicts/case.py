"""What every rule looks at: one host in one run, and what the rules before it found. It decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from toolkit.bench.counters import Account, account
from toolkit.bench.evidence import beside
from toolkit.bench.summary import HostSummary
from toolkit.bench.verdicts.replays import Replays, replays
from toolkit.records import Confidence, Host, Ledger, RequestRecord, ServedModel, Verdict

Found = tuple[Confidence, Sequence[str]]
"""What a rule says against a host: how sure it is, and the clauses of the one sentence that says why."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One host in one run; what follows from its facts is worked out once, when a rule asks for it."""

    records: Sequence[RequestRecord]
    """All requests to this host."""
    ledger: Ledger
    host: Host
    peers: Mapping[str, Sequence[RequestRecord]] = field(default_factory=dict)
    """The requests to the other hosts of the run."""
    rivals: Mapping[str, Sequence[ServedModel]] = field(default_factory=dict)
    """The models that these serve."""
    levels: Sequence[HostSummary] = ()
    is_shared: bool = False
    """Requests of ours to another address move this host's counters, too; `ledger` is then its share."""
    accused: dict[str, Verdict] = field(default_factory=dict)
    """What the rules before found, by code: one cause is reported once."""

    @cached_property
    def account(self) -> Account:
        """Our requests beside the counters."""
        return account(self.records, self.ledger)

    @cached_property
    def replays(self) -> Replays:
        """What of the answers came from memory."""
        return replays(self.records, self.account, self.ledger.rtt_ms)

    @cached_property
    def generated(self) -> list[RequestRecord]:
        """The answers that the engine wrote, as far as anybody can tell."""
        return [each for each in self.records if each.ok and each not in self.replays.records]

    @cached_property
    def beside_peers(self) -> list[tuple[RequestRecord, list[RequestRecord]]]:
        """Each of these answers with the peers' to the same prompt."""
        return beside(self.generated, chain.from_iterable(self.peers.values()))

    @property
    def no_counters(self) -> str:
        """Why the counters say nothing, where they don't."""
        if self.ledger.restarted:
            return "the server started anew during the run"
        return self.ledger.error or "the server does not count it"
