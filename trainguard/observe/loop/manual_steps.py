"""Steps made by hand: parameters that move after a backward though no optimizer holds them."""

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.losses import Losses
from trainguard.observe.loop.watch.watcher import Columns
from trainguard.observe.loop.window import Window, gradient_of, mark_gradient
from trainguard.observe.tools.local_values import is_transforming, local_values

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 no other way to ask
_SAMPLED = 8  # parameters looked at, and elements of each
_TELLING = 2  # parameters that have just moved, by which it is seen whether the next step is made
_FEWEST = 4  # numbers whose direction tells where they go; the directions of fewer agree by chance
_STRAIGHT = 0.999  # of a cosine, which rounding lowers where a model has all but arrived
_SURELY = 8  # moves in a row of what an optimizer holds that has never stepped: no perturbation
_Kept = tuple[torch.Tensor, torch.Tensor]  # a parameter, and some of its elements before
_Pair = tuple[torch.Tensor, torch.Tensor]  # a parameter and its gradient
_NODES = 2**12  # of a graph whose leaves are looked for


class ManualSteps:
    """
    The window of steps that are made without an optimizer, or with one that is none of torch's.

    It is met only where a backward gave a gradient to parameters that no optimizer holds, or none
    that ever steps; where there is no module either, to whatever leaves the graph has.
    """

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder
        self.window: Window | None = None
        self._columns: Columns = {}
        self._before: list[_Kept] = []
        self._telling: list[weakref.ref[torch.Tensor]] = []
        self._tells = True  # whether what has moved once has always moved so far
        self._held: list[_Kept] = []
        self._moves = 0  # of what optimizers hold, without a step of theirs
        self._away: list[torch.Tensor] = []  # of looks at it on an accelerator, whether it moved
        self._due = _SURELY  # such looks that are read together
        self._left = False  # whether steps are left to the optimizers
        self._higher = False
        self._key: tuple[int, ...] = ()
        self._known: list[weakref.ref[torch.optim.Optimizer]] = []  # when it was looked up last
        self._free: list[weakref.ref[torch.Tensor]] = []
        self._once: dict[int, tuple[weakref.ref[torch.Tensor], Window]] = {}
        self._stale: dict[int, tuple[int, int]] = {}
        self._gone = 0  # models that were deleted, when it was last seen who is left

    def leave_to_optimizers(self) -> None:
        """Take down that an optimizer steps: what it holds is moved by nobody else."""
        self._left, self._held, self._moves = True, [], 0
        self._away = []

    def leave_to(self, window: Window) -> None:
        """Take down what an optimizer holds: once it steps, nobody else does when it is gone."""
        self._once |= {id(p): (weakref.ref(p), window) for p in window.parameters}

    def takes(self, inputs: Sequence[Any], again: bool) -> bool:
        """
        Say whether gradients with respect to some tensors may be those of a step by hand.

        Where they are differentiated again, what comes next is no loss, and nothing is known.
        """
        if self._has_optimizer() or not inputs or not all(map(_is_leaf, inputs)):
            return False
        self._higher = self._higher or again
        known = {id(p) for p in self.recorder.names.parameters()}
        learned = not known or all(id(t) in known for t in inputs)
        return learned and not self._higher

    def wait(self, loss: torch.Tensor, given: Sequence[_Pair] = ()) -> None:
        """After a backward, remember what the parameters without an optimizer are worth."""
        loose = [p for p, _ in given] or self._loose() or self._leaves(loss)
        if not loose:
            if not self._left:
                held = [p for o in self._optimizers() for p in _held_by(o) if _has_gradient(p)]
                self._held = [(p, _sample(p).clone()) for p in held[:_SAMPLED]]
            return
        if self.window is None:
            self.window = self._open()
        if given or [id(p) for p in loose] != [id(p) for p in self.window.parameters]:
            self.window.parameters = list(loose)
            self.window.received = [1] * len(loose)
            self.window.fresh = False
        self.window.returned = list(given)
        watched = self.window.is_watched or self.recorder.woken
        self._columns = self.recorder.step_begins(self.window) if watched else {}
        self.window.returned = []
        self._keep()

    def _open(self) -> Window:
        """Open the window, with what is known of the backward that came before it."""
        latest = self.recorder.watcher(Losses).latest
        window = Window("by hand", order=["forward", "backward"])
        window.losses = [] if latest is None else [latest]
        window.forwards = self.recorder.recent[:]
        self.recorder.meet_window(window)
        return window

    def look(self, *, ends: bool = False) -> None:
        """
        Before the next forward or backward, or at the end, see whether they have moved since.

        At the end all that is still there is told of, and goes with the recorder.
        """
        self._look()
        gone = self.recorder.names.gone
        if self.window is not None and not (ends or self._before) and gone != self._gone:
            self._gone = gone
            self.recorder.faults.look(_let_go, self.window)

    def _look(self) -> None:
        """See whether parameters have moved since, and make a step of it."""
        if is_transforming():  # values cannot be compared there; it is seen later
            return
        behind = self._before and self.recorder.functional.is_behind
        if behind and not self.recorder.faults.look(self._find_moved, self._before):
            return
        before, self._before = self._before, []
        held, self._held = self._held, []
        columns, self._columns = self._columns, {}
        if held:
            self.recorder.faults.look(self._see_moves, held)
        if self.window is None or not before:
            return
        moved = self.recorder.faults.look(self._find_moved, before)
        if moved and self.recorder.faults.look(self._are_followers, before):
            moved = None
        if not moved:
            self._tells, self._telling = self._tells and not self._telling, []
            return
        self._telling = [weakref.ref(p) for p in moved[:_TELLING]] if self._tells else []
        if columns:
            self.recorder.step_ends(self.window, columns)
        else:
            self.recorder.step_passes(self.window)

    def count(self) -> None:
        """Count a step that is not to be recorded, before the backward of the next one."""
        if self.window is not None:
            self.look()
            if self.recorder.patches.watching:  # from this step on, which keeps them by itself
                return
            telling = [p for ref in self._telling if (p := ref()) is not None]
            self.recorder.faults.look(self._keep, telling)

    def _keep(self, telling: Sequence[torch.Tensor] = ()) -> None:
        """Remember what the parameters are worth now, or a few that tell as much."""
        if self.window is not None:
            kept = telling or self.window.parameters[:_SAMPLED]
            self._before = [(p, _sample(p).clone()) for p in kept]
            self.recorder.functional.stay(kept)

    def _find_moved(self, before: list[_Kept]) -> list[torch.Tensor]:
        """Return the parameters that differ from what they were."""
        if all(old.is_cpu for _, old in before):
            return [p for p, old in before if not torch.equal(_sample(p), old)]
        # Whether there was a step must be known now: what waits for the device comes with it.
        flags = self.recorder.store.read_now([_differs(p, old) for p, old in before])
        return [p for (p, _), flag in zip(before, flags, strict=True) if flag]

    def _are_followers(self, before: list[_Kept]) -> bool:
        """Say whether parameters were moved to, or toward, those of a model that is learned."""
        leaders = [p for optimizer in self._optimizers() for p in _held_by(optimizer)]
        followed = [_is_toward(p, old, leaders) for p, old in before]
        told = [each for each in followed if each is not None]
        return bool(told) and all(told)

    def _see_moves(self, held: list[_Kept]) -> None:
        """
        Count whether what optimizers hold has moved without a step of theirs.

        A training that adds up gradients before its first step never moves it: on an accelerator
        several looks are waited for together, and ever more of them.
        """
        if all(old.is_cpu for _, old in held):
            self._moves += bool(self._find_moved(held))
            return
        device = held[0][1].device
        self._away.append(torch.stack([_differs(p, old).to(device) for p, old in held]).any())
        if len(self._away) < self._due:
            return
        self._moves += sum(map(bool, self.recorder.store.read_now(self._away)))
        self._away = []
        self._due = max(1, _SURELY - self._moves) if self._moves else _SURELY * self._due

    def is_alone(self) -> bool:
        """Say whether this run has no optimizer, nor had one that has stepped."""
        return not self._left and not self._has_optimizer()

    def may_step(self, given: Sequence[torch.Tensor]) -> bool:
        """Say whether an optimizer may have made the steps of what has such shapes."""
        wanted = Counter(tensor.shape for tensor in given)
        return any(wanted <= Counter(p.shape for p in _held_by(o)) for o in self._optimizers())

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that there are."""
        return [o for w in self.recorder.windows if w.optimizer and (o := w.optimizer())]

    def _has_optimizer(self) -> bool:
        """Say whether this run has an optimizer."""
        windows = [w for w in self.recorder.windows if w.optimizer and w.optimizer()]
        known = {id(p) for p in self.recorder.names.parameters()} if windows else ()
        return any(window.belongs_to(known) for window in windows)

    def _loose(self) -> list[torch.Tensor]:
        """Return the parameters of known modules that have a gradient and no optimizer."""
        names = self.recorder.names
        optimizers = [] if self._moves >= _SURELY else self._optimizers()
        sizes = [sum(len(group["params"]) for group in o.param_groups) for o in optimizers]
        key = (names.met, *sizes)
        same = len(self._known) == len(optimizers) and key == self._key
        # Not by their identities alone: one that is gone leaves its own to the next.
        if not same or any(r() is not o for r, o in zip(self._known, optimizers, strict=True)):
            self._key, self._known = key, [weakref.ref(o) for o in optimizers]
            # Those that are frozen for now are held too.
            held = {id(p) for o in optimizers for p in _held_by(o)}
            own = [p for p in names.parameters() if id(p) not in held]
            self._free = [weakref.ref(p) for p in own]
            # What an optimizer has left, and is gone, is no gradient of this loss.
            self._stale = {id(p): mark_gradient(p) for p in own if optimizers and self._was_held(p)}
        free = [p for ref in self._free if (p := ref()) is not None and _has_gradient(p)]
        return [p for p in free if self._stale.get(id(p)) != mark_gradient(p)]

    def _was_held(self, parameter: torch.Tensor) -> bool:
        """Say whether an optimizer has stepped that held a parameter, and may be gone."""
        known, window = self._once.get(id(parameter), (None, None))
        return (
            known is not None and known() is parameter and window is not None and window.index > 0
        )

    def _leaves(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Return what has got a gradient where there is neither a module nor an optimizer."""
        if self.recorder.names.has_parameters() or self._has_optimizer():
            return []
        nodes = autograd_graph.below(loss.grad_fn, _NODES)
        leaves = {id(n.variable): n.variable for n in nodes if hasattr(n, "variable")}
        return [leaf for leaf in reversed(leaves.values()) if _has_gradient(leaf)]


def _let_go(window: Window) -> None:
    """Keep no parameter of a window alive that nobody else does: its model was deleted."""
    each = [weakref.ref(parameter) for parameter in window.parameters]
    window.parameters = []
    alive = [p for ref in each if (p := ref()) is not None]
    if len(alive) < len(each):
        window.received = [1] * len(alive)
    window.parameters = alive
    window.mark()


def _is_leaf(tensor: Any) -> bool:
    """Say whether something is a tensor that may be learned."""
    plain = isinstance(tensor, torch.Tensor) and not _wrapped(tensor)
    return plain and tensor.is_leaf and tensor.requires_grad


def _has_gradient(parameter: torch.Tensor) -> bool:
    """Say whether a parameter has a gradient."""
    return gradient_of(parameter) is not None


def _held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all that an optimizer holds."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _differs(parameter: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Return whether a parameter differs from what it was, on the device where it was."""
    now = _sample(parameter)
    if now.shape != old.shape or now.device != old.device:
        return torch.ones((), dtype=torch.bool, device=old.device)
    return (now != old).any()


def _is_toward(
    parameter: torch.Tensor, old: torch.Tensor, leaders: Sequence[torch.Tensor]
) -> bool | None:
    """Say whether a parameter has moved straight to one of others; None where few numbers tell."""
    move = _sample(parameter).double() - old.double()
    if move.numel() < _FEWEST or not bool(move.any()):
        return None
    kind = parameter.shape, parameter.device
    alike = [p for p in leaders if (p.shape, p.device) == kind and p is not parameter]
    ways = [_sample(leader).double() - old.double() for leader in alike]
    return any(float(functional.cosine_similarity(move, way, 0)) > _STRAIGHT for way in ways)


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Return the first few elements of a parameter; none of one without memory."""
    values = local_values(parameter)
    return torch.empty(0) if values is None else values.reshape(-1)[:_SAMPLED]
