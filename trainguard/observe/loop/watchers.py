"""The watchers of a recording, in the order in which they are told what happens."""

from trainguard.observe.loop.watch.averaged_copies import Averages
from trainguard.observe.loop.watch.batches import Batches
from trainguard.observe.loop.watch.broadcast_losses import Pairs
from trainguard.observe.loop.watch.clipping import Clipping
from trainguard.observe.loop.watch.conditions import Conditions
from trainguard.observe.loop.watch.forwards import Forwards
from trainguard.observe.loop.watch.future_probe import Lookahead
from trainguard.observe.loop.watch.gradient_reads import Reads
from trainguard.observe.loop.watch.gradients import Gradients
from trainguard.observe.loop.watch.labels import Targets
from trainguard.observe.loop.watch.logged import Logged
from trainguard.observe.loop.watch.loss_functions import Terms
from trainguard.observe.loop.watch.losses import Losses
from trainguard.observe.loop.watch.mixing_probe import Mixing
from trainguard.observe.loop.watch.parameters import Parameters
from trainguard.observe.loop.watch.rates import Rates
from trainguard.observe.loop.watch.repeat_probe import Repeats
from trainguard.observe.loop.watch.scaling import Scaling
from trainguard.observe.loop.watch.shared_layers import Sharing
from trainguard.observe.loop.watch.term_gradients import Shares
from trainguard.observe.loop.watch.time_memory import Times
from trainguard.observe.loop.watch.update_norms import Updates
from trainguard.observe.loop.watch.watcher import Watcher

# Gradients are measured before others look at norms.
_ALL: tuple[type[Watcher], ...] = (
    Conditions,
    Scaling,
    Gradients,
    Losses,
    Clipping,
    Rates,
    Updates,
    Forwards,
    Terms,
    Shares,
    Pairs,
    Repeats,
    Mixing,
    Lookahead,
    Sharing,
    Batches,
    Targets,
    Averages,
    Parameters,
    Times,
    Logged,
    Reads,
)
# Those that make the columns of curves: all that a run needs which is made for them alone.
_OF_CURVES = {Conditions, Scaling, Gradients, Losses, Rates, Updates, Times}


def watchers(of_curves: bool = False) -> list[type[Watcher]]:
    """Return the classes of watchers, in the order in which they are told: all, or a few."""
    return [kind for kind in _ALL if not of_curves or kind in _OF_CURVES]
