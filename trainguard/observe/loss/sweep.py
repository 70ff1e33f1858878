"""The probe `sweep`: the loss and its gradient at every point."""

from collections.abc import Iterator

from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.search import Key, Measured
from trainguard.observe.tools.points import Points


def sweep(made: Evaluator, points: Points) -> Iterator[tuple[Key, Measured]]:
    """
    Measure the loss and every input's gradient.

    "value": the loss; worst where it is not finite, else where it is largest.
    "gradient": an input's gradient at its worst coordinate, worst where it is not finite.
    "largest_gradient": the same among the points at which the gradient is finite.
    """
    gradients, values = made.gradients(points)
    wrong = ~values.isfinite()
    yield Key("value"), Measured(values, values.abs(), bad=wrong)
    for name, gradient in gradients.items():
        elements = gradient.flatten(1) if gradient.ndim > 1 else gradient.unsqueeze(1)
        size = elements.abs().amax(1)
        wrong = ~size.isfinite()
        yield Key("gradient", name), Measured(size, size, elements=elements, bad=wrong)
        if bool(wrong.any()):
            elements = elements.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            size = elements.abs().amax(1)
        yield Key("largest_gradient", name), Measured(size, size, elements=elements.abs())
