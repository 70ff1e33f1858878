"""The event of a component: a loss, a model or a schedule of the user's own that a run has used."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Event):
    """
    What a guard file can declare, from how it was called.

    kind: "loss", "model", "schedule" or "loader".
    name, module: what it is imported by, or is called in the script that has it.
    source: where it is defined.
    arguments: (parameter, value as code) of what the object, or what builds it, was made with;
        built: whether there is anything to call with them.
    imports: further (module, name) that this code needs.
    inputs: (name, kind, dimensions, lowest, highest, whether it has a gradient, value as code).
        Kinds are those of domains, and "value" for what is no tensor.
    sizes: (dimension, least, most) of those that have a name.
    rate: the rate of the optimizer that a schedule was given.
    splits: (name, the call that makes it, samples of a batch, "shuffled" or "in order") of those of
        a loader; without a call where one makes them all.
    obstacle: why nothing can be declared; empty where something can.
    """

    kind: str
    name: str
    module: str
    source: str
    arguments: tuple[tuple[str, str], ...] = ()
    built: bool = False
    imports: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, str, str, float, float, bool, str], ...] = ()
    sizes: tuple[tuple[str, int, int], ...] = ()
    rate: float = 0.0
    splits: tuple[tuple[str, str, int, str], ...] = ()
    obstacle: str = ""
