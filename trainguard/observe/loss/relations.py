"""The probe of declared relations of a loss."""

from collections.abc import Iterator

import torch

from trainguard.core.errors import SubjectError, is_ours
from trainguard.observe.loss.evaluate import Evaluator, count
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points
from trainguard.subjects.relation import Relation


def relations(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Hold the loss of drawn inputs against that of the same inputs edited, by each relation.

    "relation": the sum of what the loss returns for the edited inputs, `reference` for those as
    they are; `scale` is 1 where the relation is broken, else 0.
    """
    for relation in made.loss.relations:
        rows = [_try(made, relation, made.single(points, i)) for i in range(count(points))]
        after, before, broken = torch.tensor(rows, dtype=torch.float64).T
        found = Measured(after, broken, before, scale=broken, bad=broken > 0)
        yield Key("relation", label=relation.name), found


def _try(
    made: Evaluator, relation: Relation, point: dict[str, torch.Tensor]
) -> tuple[float, float, float]:
    """Return the loss of edited inputs, that of the inputs, and 1 where the relation is broken."""
    try:
        edited = relation.edit_inputs(point)
        before = made.component.total(point).detach()
        after = made.component.total(edited).detach()
        broken = float(bool(relation.find_breach(before, after)))
    except Exception as error:
        if is_ours(error) or isinstance(error, SubjectError):
            raise
        raise SubjectError(
            f"its relation {relation.name!r} raised {type(error).__name__}: {error}",
            "look at edit= and then= of tg.Relation",
        ) from error
    return float(after.sum()), float(before.sum()), broken
