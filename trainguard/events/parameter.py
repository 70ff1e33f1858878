"""The event that tells what became of a parameter."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Event):
    """
    What became of one parameter over the whole run.

    name: "Net.fc1.weight"; module: the module that holds it, "Net.fc1"; elements: its size.
    dimensions: how many it has. own: whether a class of the user's made it, not a layer of torch.
    source: where the user's innermost class that it is in computes.
    hidden: whether the model that uses it does not register it: its layer is kept in a list, say.
    trainable: whether it required a gradient in every step; False where it did so in none.
    thawed: whether that changed in the course of the run; learns: whether it requires one at the
        end.
    held: whether an optimizer holds it; orphan: held, and part of no module that was called.
    called: whether its module was called in a pass that learned.
    received: how many times backward gave it a gradient; gradient: the largest norm of those.
    dead: how many watched steps in a row, up to the end, gave it a gradient of exactly zero.
    astray: the gradients that it got since it was thawed, where an optimizer had held it before,
    none that steps has held it since, and it has not moved since.
    moved: whether it differs at the end of the run from its beginning.
    moved_frozen: whether an optimizer's step moved it while it required no gradient.
    unheard: the attribute that was to freeze it, and that torch does not know ("require_grad"),
    where it has moved since that was set.
    rate: the highest learning rate that its parameter group had.
    copy: whether it belongs to a copy of a trained module (an average, a teacher).
    drawn: whether it is a weight that no optimizer holds, or a frozen one, of a layer that is not
    asked without a graph, and has the distribution that torch draws for a new one.
    loaded: whether a state dict was loaded into it.
    """

    name: str
    module: str = ""
    elements: int = 1
    dimensions: int = 2
    own: bool = False
    source: str = ""
    hidden: bool = False
    trainable: bool = True
    thawed: bool = False
    learns: bool = True
    held: bool = True
    orphan: bool = False
    called: bool = True
    received: int = 0
    gradient: float = 0.0
    dead: int = 0
    astray: int = 0
    moved: bool = True
    moved_frozen: bool = False
    unheard: str = ""
    rate: float = 0.0
    copy: bool = False
    drawn: bool = False
    loaded: bool = False
