"""A Relation: what must hold between a call or a step as it is, and with its batch edited."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainguard.core.errors import DeclarationError, SubjectError


@dataclass(frozen=True, eq=False)
class Relation:
    """
    A relation that a team declares: flipped images flip boxes, permuted classes permute scores.

    name: what reports call it.
    edit: `edit(batch)` returns the batch edited, in the same shapes and dtypes, or edits it in
        place. A batch is {input: tensor} for a `tg.Model` or a `tg.Loss`; of a training it is the
        list of tensors that a loader has served, or else of those that the model is called with.
    then: `then(before, after)` says whether the relation holds, or asserts it. It is given what the
        model or the loss returned; of a training an object with `output` and `loss`.
    """

    name: str
    edit: Callable[[Any], Any] = field(kw_only=True)
    then: Callable[[Any, Any], Any] = field(kw_only=True)

    def __post_init__(self) -> None:
        """Check what was declared."""
        __tracebackhide__ = True
        if not isinstance(self.name, str) or not self.name.strip():
            raise DeclarationError(
                f"tg.Relation({self.name!r}) has no name. Say in a word what is edited."
            )
        for option in ("edit", "then"):
            if not callable(getattr(self, option)):
                raise DeclarationError(
                    f"tg.Relation({self.name!r}, {option}={getattr(self, option)!r}) cannot be"
                    " called. Give a function."
                )

    def edit_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs as they are edited; raises SubjectError where others come back."""
        copies = copy.deepcopy(dict(inputs))
        edited = self.edit(copies)
        edited = copies if edited is None else edited
        if not isinstance(edited, Mapping) or set(edited) != set(inputs):
            raise SubjectError(
                f"its relation {self.name!r} edits a batch into {type(edited).__name__}",
                f"return the same inputs by name: {', '.join(inputs)}",
            )
        return dict(edited)

    def find_breach(self, before: Any, after: Any) -> str:
        """Return how the relation is broken, in words; nothing where it holds."""
        try:
            holds = self.then(before, after)
        except AssertionError as error:
            return next(iter(str(error).strip().splitlines()), "") or "an assertion does not hold"
        return "" if holds is None or bool(holds) else "then(before, after) is false"


@dataclass(frozen=True)
class Outcome:
    """What a training step came to: what its model returned, and the loss handed to backward."""

    output: Any
    loss: float


def check_relations(kind: str, relations: Iterable[Relation]) -> tuple[Relation, ...]:
    """Return relations as a tuple; raises DeclarationError for what is none, or has a twin."""
    __tracebackhide__ = True
    found = (relations,) if isinstance(relations, Relation) else tuple(relations)
    for relation in found:
        if not isinstance(relation, Relation):
            raise DeclarationError(
                f"tg.{kind}(relations=...) has {relation!r}. Give tg.Relation(...)."
            )
    names = [relation.name for relation in found]
    twins = [name for name in names if names.count(name) > 1]
    if twins:
        raise DeclarationError(
            f"tg.{kind}(relations=...) has {twins[0]!r} twice. Give each a name of its own."
        )
    return found
