"""Judgements of what is saved and what is copied."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import integer
from trainguard.events.trace import Pass, Trace
from trainguard.invariants.model.wording import format_place, worst
from trainguard.invariants.wording import number, of

_ROUNDING = 1e-5


@invariant("model", probe="state")
def state_dict_round_trips(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    A saved and reloaded state dict reproduces the model.

    Judges: a model that is saved, by torch.save, and loaded strictly into one from another seed: as
        it was built, and after a few calls in training mode. Dtypes and values of all entries,
        parameters that share their memory, and the outputs in evaluation mode.
    Allows: a difference of the outputs of 1e-5 of the largest (limit); frozen parameters that are
        left out of the state dict on purpose.
    Misses: a given module, which cannot be built from another seed, is loaded into a copy of itself
        with other parameters: what is random and not saved is the same in both.
    Why: a buffer that is not persistent, or a tensor that is a plain attribute, is drawn anew after
        a restart; the checkpoint loads without a word and predicts something else.
    Source: PyTorch, notes on saving and loading models; Module.register_buffer (persistent).
    """
    for seen in list(of(trace, "unloadable"))[:1]:
        yield Finding(
            f"the state dict of `{trace.subject}` cannot be loaded",
            seen.at,
            seen.detail,
            "a strict load into a model that is built alike",
            why="perhaps a buffer that is registered, or grows, in forward",
            event=seen,
        )
    entries = list(_entries(trace))
    yield from entries
    limit = trace.limit("state_dict_round_trips", _ROUNDING)
    for seen in worst(of(trace, "restored"), lambda seen: seen.measured)[:1]:
        if not seen.measured <= limit and not entries:
            yield Finding(
                f"`{trace.subject}` gives other outputs after its state dict is loaded",
                f"{format_place(seen)}, {seen.at}",
                "differs by " + number(seen.measured) + " of the largest output",
                "differs by " + number(limit) + " of the largest output",
                why=f"`{seen.detail}` differs and is not in the state dict"
                if seen.detail
                else "something that differs is not in the state dict",
                event=seen,
            )


def _entries(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for an entry of another dtype, another value, and a tie that is lost."""
    for seen in list(of(trace, "state dtype"))[:1]:
        yield Finding(
            f"the state dict of `{trace.subject}` has another dtype than the model",
            f"{format_place(seen)}, {seen.at}",
            seen.detail,
            "the dtype of the model",
            why="perhaps state_dict casts what is saved",
            event=seen,
        )
    for seen in worst(of(trace, "state value"), lambda seen: seen.measured)[:1]:
        yield Finding(
            f"a value of `{trace.subject}` is lost when its state dict is loaded",
            f"{format_place(seen)}, {seen.at}",
            "differs by " + number(seen.measured) + " of its largest element",
            "differs by " + integer(0) + " of its largest element",
            why="perhaps a state_dict or load_state_dict of its own drops or changes it",
            event=seen,
        )
    for seen in list(of(trace, "untied"))[:1]:
        yield Finding(
            f"parameters of `{trace.subject}` are no longer tied when its state dict is loaded",
            f"{format_place(seen)}, {seen.at}",
            "each with memory of its own",
            "one memory, as before",
            why="perhaps a parameter is replaced by a new one in loading; tie it again after that",
            event=seen,
        )


@invariant("model", probe="copies")
def copies_are_independent(trace: Trace[Pass]) -> Iterator[Finding]:
    """
    A deep copy of a model equals it, and shares no trained state with it.

    Judges: copy.deepcopy, as averages of weights and teachers are made: the memory of trained
        parameters and saved buffers, ties within the copy, its outputs, and its outputs after the
        parameters of the original were changed.
    Allows: a difference of the outputs of 1e-5 of the largest (limit); frozen parameters that are
        shared.
    Misses: models that refuse to be copied, which nobody can overlook; what is shared and used in
        training mode only.
    Why: a function kept in an attribute, such as lambda x: self.head(x), is not copied but goes on
        calling the original, so that an average follows its student exactly.
    Source: PyTorch, torch.optim.swa_utils.AveragedModel, which is a deep copy of the model.
    """
    yield from _find_shared_memory(trace)
    limit = trace.limit("copies_are_independent", _ROUNDING)
    for quantity, summary, why in (
        ("copied", "a copy of `{}` is not the same model", "something is lost in copying it"),
        (
            "follows",
            "a copy of `{}` still uses the original",
            "perhaps a function in an attribute or a hook that calls it; a method is copied along",
        ),
    ):
        for seen in worst(of(trace, quantity), lambda seen: seen.measured)[:1]:
            if not seen.measured <= limit:
                yield Finding(
                    summary.format(trace.subject),
                    format_place(seen),
                    "differs by " + number(seen.measured) + " of the largest output",
                    "differs by " + number(limit) + " of the largest output",
                    why=why,
                    event=seen,
                )


def _find_shared_memory(trace: Trace[Pass]) -> Iterator[Finding]:
    """Yield a finding for memory that is shared with the original, and for ties that are lost."""
    for seen in list(of(trace, "shared"))[:1]:
        yield Finding(
            f"a copy of `{trace.subject}` shares memory with the original",
            format_place(seen),
            "the same memory in both",
            "memory of its own",
            why="perhaps a __deepcopy__ of its own, or a tensor that is held outside the module",
            event=seen,
        )
    for seen in list(of(trace, "copy untied"))[:1]:
        yield Finding(
            f"parameters of `{trace.subject}` are no longer tied in a copy",
            format_place(seen),
            "each with memory of its own",
            "one memory, as in the original",
            why="perhaps a __deepcopy__ of its own copies them one by one",
            event=seen,
        )
