"""Judgements of the keys by which batches and settings are read."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events


@invariant("loop", evidence=has_probe("missed key", "no dictionary was asked for a key"))
def keys_are_there(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Dictionary and attribute lookups use keys that exist, not misspelt ones.

    Judges: `x.get("key")`, `"key" in x`, `getattr(x, "key", ...)` and `hasattr`, beside the
        dictionaries and namespaces in the variables of the functions that run at steps 1, 4 and 16:
        of the same name, or with all other keys that the function reads. Broken where none ever has
        the key, and one has another, which is nowhere in the user's files but where it is set, and
        which is the same but for a letter, two letters in the other order, the order of words, or
        its initials.
    Allows: whatever else is not there; keys that the user's files set somewhere; dictionaries that
        are read whole, as by `**x` or a loop.
    Misses: keys that are put together; dictionaries that no running function has.
    Why: `get` returns None, or its default, and says nothing: a mask is never applied, and a
        setting is never set.
    Source: huggingface/lerobot issues 1707 and 1736 (`actions_id_pad` for `action_is_pad`).
    """
    for probe in events(trace, Probe):
        if probe.probe == "missed key":
            asked, _, there = probe.label.partition("\n")
            yield Finding(
                f"`{trace.subject}` asks for a key that is never there",
                f"`{asked}`",
                integer(0, "times there") + f"; `{there}` is there, and nothing reads it",
                integer(1, "time there, at least"),
                why=f"perhaps `{there}` is meant",
                event=probe,
                source=probe.source,
            )
