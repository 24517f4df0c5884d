"""One request on its way through the proxy: what is known of it so far, and what was decided. It decides nothing itself."""

from dataclasses import dataclass, field
from typing import Any

from toolkit.proxy.exchange import Reply, Request, Served, View
from toolkit.proxy.headers import NO_WISHES, Wishes
from toolkit.proxy.policy import Ruling
from toolkit.proxy.settings import TeamSetting
from toolkit.records import Asked
from toolkit.request_key import Canonical

AS_A_WHOLE = View()
NO_CACHE = Ruling(read=False, write=False, ttl_s=0.0)


@dataclass(slots=True, kw_only=True, eq=False)
class Case:
    """Filled in step by step; what a step did not reach stays as it is here."""

    request: Request
    reply: Reply
    served: Served
    taken_s: float
    """Monotonic clock, when it was whole."""
    team: TeamSetting | None = None
    endpoint: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    read: Canonical | None = None
    asked: Asked | None = None
    """Made of `read` when it is first wanted."""
    form: bytes = b""
    model: str | None = None
    generation: str | None = None
    """Model and epoch, as in the key."""
    tenant: str = ""
    wishes: Wishes = NO_WISHES
    ruling: Ruling = NO_CACHE
    view: View = AS_A_WHOLE
    name: bytes = b""
    """What its answer would be stored by."""
    key: bytes | None = None
    """The same, where policy lets it be stored or shared."""
    body: bytes = b""
    """What goes upstream."""
    usage_is_ours: bool = False
    was_shared: bool = False
    """It joined a call under way."""
    is_alone: bool = False
    """What it joined could not be shown as it wants to see it: it asks by itself now."""
    waited_s: float = 0.0
    """For a call of another proxy's, in vain: its wait for a slot begins after that."""
