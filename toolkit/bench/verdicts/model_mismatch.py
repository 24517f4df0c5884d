"""Whether a host serves the model it is listed with, else its rivals' model: by its own model list and by the name in its answers.

Names are compared by what they say of the model: family, version, size. Who made it, how it is quantised and how
the name is spelled are no difference, and an alias or a path that says nothing of a model accuses nobody.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from toolkit.bench.evidence import quoted
from toolkit.bench.verdicts.case import Case, Found
from toolkit.records import Host, ServedModel
from toolkit.units import whole

SAID_OF_WEIGHTS = frozenset(
    "fp bf f nvfp mxfp int awq gptq gguf ggml bnb nf hqq exl aqlm marlin bit"
    " quantized quant dynamic static channel tensor torchao mlx w a q k m s l xs xl e kv"
    " autoround imatrix unsloth".split()
)
"""Words of a quantisation. Letters and digits are split, so `Int4` is `int` and 4."""
SAID_OF_TUNING = frozenset(
    "instruct it chat base hf model models latest preview thinking meta the main snapshot".split()
)
"""Words that a served name leaves out or adds without meaning another model."""
LISTED = 4
"""Of many served models only the first few are named."""
LEAST_RIVALS = 2
"""Of two hosts with two models nobody can say which is the other one."""
LARGEST_VERSION = 99
"""`Qwen3-2507` and `R1-0528` carry dates."""
_SIZE = re.compile(r"(?<![a-z0-9.])([ae]?)((?:\d+x)?\d+(?:\.\d+)?[bm])(?![a-z0-9])")
"""`35b`, `8x7b`, `135m`; `a3b` are the active ones of a mixture of experts, `e4b` the effective ones of a Gemma."""
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)*")


def model_mismatch(case: Case) -> Found | None:
    """Accuse a host that serves another model than it is listed with, names, or began the run with.

    Where none is listed, than all of its rivals, if these agree.
    """
    host, ledger = case.host, case.ledger
    served = ledger.models_after or ledger.models_before
    named = list(dict.fromkeys(each.model for each in case.records if each.ok and each.model))
    ours = _asked(host, served, named)

    # what changed during the run at the model that we asked; others may come and go, as adapters do
    exact: list[str] = []
    before = _asked(host, ledger.models_before, named)
    if before is not None and ledger.models_after:
        now = next((model for model in ledger.models_after if model.id == before.id), None)
        if now is None:
            exact.append(f"{quoted(before.id)} was no longer served after the run")
        else:
            for what in ("root", "max_model_len"):
                new, old = getattr(now, what), getattr(before, what)
                if new != old:
                    exact.append(
                        f"{what} of {quoted(now.id)} became {_value(new)} during the run,"
                        f" it was {_value(old)}"
                    )
    if ours is not None:
        # the root and the limit that the hosts file names are meant literally, quantisation included
        limit, root = ours.max_model_len, ours.root
        if None not in (host.max_model_len, limit) and limit != host.max_model_len:
            exact.append(
                f"it serves up to {whole(limit)} tokens, listed are {whole(host.max_model_len)}"
            )
        # a folder or an organisation in front of the name is no difference
        if host.root is not None and root is not None and _last(host.root) != _last(root):
            exact.append(f"its weights come from {quoted(root)}, listed is {quoted(host.root)}")

    listed: list[str] = []
    names = [name for model in served for name in _names(model)]
    if (
        host.model is not None
        and served
        and not any(_is_same(host.model, name) for name in names)
        # an alias that is listed must be served by that very name; a model may be served by any
        and (_differs_from_all(host.model, names) or not _tells(host.model))
    ):
        ids = _list(model.id for model in served)
        listed.append(f"listed is {quoted(host.model)}, served is {ids}")
    if ours is not None and ours.root is not None and differ(ours.id, ours.root):
        listed.append(f"{quoted(ours.id)} comes from {quoted(ours.root)}")

    # the name in the answers differs from all that could be meant, or from itself
    answered: list[str] = []
    expected = names if host.model is None else [*names, host.model]
    other = next((name for name in named if _differs_from_all(name, expected)), None)
    if other is not None:
        answered.append(f"answers name {quoted(other)}")
    elif any(differ(named[0], name) for name in named[1:]):
        answered.append(f"answers name several models, {_list(named)}")

    # what all rivals serve, where nobody listed a model and this host's is certainly another one
    alone: list[str] = []
    theirs = _rivals_names(case.rivals)
    if host.model is None and ours is not None and theirs:
        telling = [name for name in _names(ours) if _tells(name)]
        if telling and all(differ(name, other) for name in telling for other in theirs):
            alone.append(
                f"it serves {quoted(ours.id)}, where all other hosts serve {quoted(theirs[0])}"
            )

    if not exact and not listed and not answered and not alone:
        return None
    sure = bool(exact or (listed and answered))
    return "high" if sure else "medium", [*exact, *listed, *answered, *alone]


def why_unseen(case: Case) -> str | None:
    """Nobody can tell from what the host says that it serves the listed model, else that of its rivals."""
    served = case.ledger.models_after or case.ledger.models_before
    if not served:
        return "no list of models"
    expected = _rivals_names(case.rivals) if case.host.model is None else [case.host.model]
    is_told = any(
        _tells(name) or any(_is_same(other, name) for other in expected)
        for model in served
        for name in _names(model)
    )
    if is_told or not expected:
        return None
    return "the names that it serves do not say which model they mean"


def _asked(host: Host, served: Sequence[ServedModel], named: Sequence[str]) -> ServedModel | None:
    """The entry that our requests went to: the one the answers name, else the listed one, else the first."""
    meant = [model for model in served if model.id in named]
    listed = [model for model in served if host.model and host.model in (model.id, model.root)]
    return next(iter([*meant, *listed, *served]), None)


def _rivals_names(rivals: Mapping[str, Sequence[ServedModel]]) -> list[str]:
    """What the first rival calls its model, if that says which it is and every other serves the same one; else nothing."""
    served_names = [
        [name for model in served for name in _names(model)] for served in rivals.values()
    ]
    served_names = [names for names in served_names if names]
    if len(served_names) < LEAST_RIVALS:
        return []
    names = [name for name in served_names[0] if _tells(name)]
    for others in served_names[1:]:
        if not any(_tells(b) and not differ(a, b) for a in names for b in others):
            return []
    return names


def _value(found: str | int | None) -> str:
    return "unknown" if found is None else quoted(found) if isinstance(found, str) else whole(found)


def _list(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in islice(names, LISTED))


def _differs_from_all(name: str, others: Iterable[str]) -> bool:
    """Whether a name certainly means another model than all others that say which they mean."""
    telling = [other for other in others if _tells(other)]
    return bool(telling) and all(differ(name, other) for other in telling)


def _names(model: ServedModel) -> list[str]:
    return [name for name in (model.id, model.root) if name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a name says of its model; sets are empty where it says nothing."""

    families: frozenset[str]
    versions: frozenset[str]
    sizes: frozenset[str]
    active: frozenset[str]
    """Of a mixture of experts, the part that a token goes through."""

    @property
    def has_size(self) -> bool:
        return bool(self.sizes or self.active)


def differ(name: str, other: str) -> bool:
    """Whether two names certainly mean two models: another size, or another family or version and both with sizes.

    `Qwen/Qwen3.5-35B-A3B-GPTQ-Int4` is `qwen3.5-35b`; `contest` and `/models/snapshot` may be anything.
    """
    one, two = _said(name), _said(other)
    if not one.has_size or not two.has_size:
        return False
    both_whole = one.sizes and two.sizes
    same = one.sizes & two.sizes if both_whole else one.active & two.active
    if not same or not one.families & two.families:
        return True
    return bool(one.versions and two.versions) and not any(
        _is_within(a, b) or _is_within(b, a) for a in one.versions for b in two.versions
    )


def _is_within(short: str, long: str) -> bool:
    """Version 3 is a short way to say 3.1."""
    return long == short or long.startswith(f"{short}.")


def _is_same(name: str, other: str) -> bool:
    """Whether two names are equal but for organisation, quantisation, spelling and words without meaning."""
    if name == other:
        return True
    one, two = _bare(name), _bare(other)
    return bool(one) and one == two


def _tells(name: str) -> bool:
    """Whether a name says which model it is; a size is what aliases and paths lack."""
    return _said(name).has_size


def _said(name: str) -> _Said:
    last = _last(name)
    found = _SIZE.findall(last)
    rest = _bare(_SIZE.sub(" ", last))
    return _Said(
        families=frozenset(word for word in rest if word.isalpha() and len(word) > 1),
        versions=frozenset(
            word
            for word in rest
            if not word.isalpha() and float(word.partition(".")[0]) <= LARGEST_VERSION
        ),
        sizes=frozenset(size for mark, size in found if mark != "a"),
        active=frozenset(size for mark, size in found if mark == "a"),
    )


def _bare(name: str) -> tuple[str, ...]:
    """The words of a name without organisation, quantisation and filling."""
    words: list[str] = []
    quantised = False
    for word in _WORD.findall(_last(name)):
        of_weights = quantised and word[0].isdigit()  # the 4 of `int4`
        quantised = word in SAID_OF_WEIGHTS
        if not (of_weights or quantised or word in SAID_OF_TUNING):
            words.append(word)
    return tuple(words)


def _last(name: str) -> str:
    """A name without its organisation or folder; the hub's cache keeps it three folders up."""
    cached = re.search(r"models--[^/]+--([^/]+)", name)
    return (cached[1] if cached else name.rstrip("/").rpartition("/")[2]).lower()
