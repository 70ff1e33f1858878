"""
The Recorder watches a training that knows nothing of it and turns it into a Trace.

It listens at a few places of torch (see `listen`), tells its watchers what happens, and makes one
Step of what they answer for each step of an optimizer. It draws no random number and changes no
tensor: a recorded run is bit for bit the run that it would have been.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from trainguard.events.base import Event, Plain
from trainguard.events.trace import Trace
from trainguard.observe.loop import hooks
from trainguard.observe.loop.curves import UlpPerturbation
from trainguard.observe.loop.faults import Faults
from trainguard.observe.loop.functional_steps import FunctionalSteps
from trainguard.observe.loop.live_looks import LiveLooks
from trainguard.observe.loop.locate_nonfinite import tensors_in
from trainguard.observe.loop.manual_steps import ManualSteps
from trainguard.observe.loop.reads import Reads
from trainguard.observe.loop.stopped import Stopped
from trainguard.observe.loop.thinning import EventStore, end_spans
from trainguard.observe.loop.training_thread import TrainingThread
from trainguard.observe.loop.watch.gradients.scaling import Scaling
from trainguard.observe.loop.watch.runs.conditions import Conditions
from trainguard.observe.loop.watch.watcher import Columns, Watcher, listeners
from trainguard.observe.loop.watchers import watchers
from trainguard.observe.loop.window import Forward, Window, count_alike, is_looked_at_closer, trains
from trainguard.observe.tools.module_names import ModuleNames
from trainguard.observe.tools.patches import Patches, graphless
from trainguard.observe.tools.user_line import caller
from trainguard.subjects.relation import Relation

W = TypeVar("W", bound=Watcher)
_graph_task: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001 no public name
_SPARE = 8  # evaluations that are seen one after another, after as long without any
_MOST_STAGES = 16  # of a run whose optimizers are made again and again
_MANY = 32  # optimizers: more are made anew for each task or client


class Recorder:
    """
    A recording, as a context manager; `trace` is there once it is over.

    steps: after so many optimizer steps the training is stopped; None lets it go on.
    probe: whether watchers may copy live objects and try them out.
    nudge: what moves the parameters a little before the first step, for a run of curves alone.
    relations: what a team has declared of its steps.
    thorough: whether edits of steps are drawn, until the smallest that matters is known.
    components: whether to see how the user's own losses, models and schedules are called.
    """

    def __init__(
        self,
        name: str,
        *,
        steps: int | None = None,
        probe: bool = True,
        promises: Mapping[str, Plain] | None = None,
        nudge: UlpPerturbation | None = None,
        relations: Sequence[Relation] = (),
        thorough: bool = False,
        components: bool = False,
    ) -> None:
        self.name, self.limit, self.probe, self.nudge = name, steps, probe, nudge
        self.relations, self.thorough, self.promises = relations, thorough, dict(promises or {})
        self.steps = 0  # of all optimizers; may be read from another thread
        self.stages = [0]  # the steps at which optimizers began that were not there before
        self.names, self.patches = ModuleNames(), Patches()
        # Where there are many, those of optimizers that are gone are closed.
        self.windows, self._closed = list[Window](), list[Window]()
        self.going: list[Window] = []  # of those optimizers that still stepped at the latest step
        self.called: set[int] = set()  # ids of modules called, outermost or inside
        self.graphless: set[int] = set()  # of those called without a graph in a call with one
        self.calling = self.backward = False  # whether an outermost call or a backward is going on
        self.woken = False  # whether something is wrong in a step that would not be watched
        self.times = 1  # how many steps this one stands for where a fifth of them is watched
        self.unheard = False  # whether nobody watched when what goes backward was computed
        self._evaluating = False  # whether all is seen for an evaluation alone
        self._evaluated = 0  # the step up to which evaluations have used up their share
        self.thread = TrainingThread(self)
        self.hand, self.functional = ManualSteps(self), FunctionalSteps(self)
        self.recent: list[Forward] = []  # the latest calls of outermost modules
        self.given: list[torch.Tensor] = []  # to the call that is told of; none of numbers alone
        self.asks: Callable[..., None] | None = None  # told before a module is called
        self.before_pass: list[Callable[[nn.Module], None]] = []  # told so as well
        self.live: LiveLooks | None = None  # what looks at the trace so far, now and then
        self.leave: Callable[[BaseException | None], NoReturn] | None = None  # ends a child
        self.at_unwatched: list[Callable[[], None]] = []  # told of backwards nobody watches
        self.trace: Trace[Event] = Trace(name)
        self._by_kind: dict[type[Watcher], Any] = {}
        self.watchers = [make(self) for make in watchers(nudge is not None, components)]
        self.scaling = self.watcher(Scaling)
        self.faults = Faults(self.watchers, self.patches)
        self._told = listeners(self.watchers)
        self.looks_closer = True  # in this step all watchers are told, and not the usual ones
        self._counting = Lock()
        self._by_optimizer: dict[int, Window] = {}
        self.reads = Reads(self.faults)
        self.store = EventStore(self.faults, self.reads, self.keep)
        self._bare: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._clock = count()
        self._began, self.ended = 0.0, "finished"

    def __enter__(self) -> "Recorder":
        """Install every hook and patch."""
        if self._began:
            raise RuntimeError(f"the recording {self.name!r} was begun before: make another one")
        self.patches.active = True
        try:
            self.faults.look(hooks.install, self)
            for watcher in self.watchers:
                self.faults.call(watcher, watcher.install, self.patches)
        except BaseException:
            self.patches.undo()
            raise
        self._began = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Put everything back and write the trace; an end that we asked for is no error."""
        if self.leave is not None:
            self.leave(error)
        self.thread.end()
        seconds = perf_counter() - self._began
        stopped = isinstance(error, Stopped)
        self.ended = "finished" if kind is None else "stopped" if stopped else "failed"
        try:
            self.limit = None  # the last step may turn out only now to have been one, by hand
            self.hand.look(ends=True)
        finally:
            self.patches.undo()
        self._write(seconds)
        return stopped

    def tell_only(self, *watchers: Watcher) -> None:
        """In a forked child: go on for a few watchers, one of which ends the child."""
        self._told = listeners(watchers)
        self.limit = self.asks = self.live = None
        self.before_pass = []
        self.patches.active = self.patches.watching = True

    def dismiss(self, watcher: Watcher) -> None:
        """Tell a watcher of nothing any more but the end: it has seen all that it wants."""
        self._told = {
            instant: [method for method in methods if method.__self__ is not watcher]
            for instant, methods in self._told.items()
        }

    def is_looking(self) -> bool:
        """Say whether what happens now, in this thread, is to be recorded."""
        return self.patches.live and not self.thread.is_elsewhere()

    @property
    def age(self) -> int:
        """The steps since the latest optimizer began: what is made after that may be another."""
        return self.steps - self.stages[-1]

    def watcher(self, kind: type[W]) -> W:
        """Return the watcher of a class; some are asked for in each step."""
        if kind not in self._by_kind:
            self._by_kind[kind] = next(one for one in self.watchers if isinstance(one, kind))
        return cast("W", self._by_kind[kind])

    def tick(self) -> int:
        """Return the next number of the run's clock."""
        return next(self._clock)

    def keep(self, event: Event) -> None:
        """Take an event into the trace, which stays bounded in a long run."""
        if self.live is not None:
            self.live.notice(event)
        self.store.keep(event)

    def forward_ends(
        self,
        module: nn.Module,
        inputs: tuple[Any, ...],
        output: Any,
        keywords: tuple[str, ...] = (),
    ) -> None:
        """Tell that an outermost module was called; one without parameters is part of the loss."""
        self.hand.look()
        self.faults.look(self._take_forward, module, inputs, output, keywords)

    def _take_forward(
        self, module: nn.Module, inputs: tuple[Any, ...], output: Any, keywords: tuple[str, ...]
    ) -> None:
        """Make a Forward of a call, and tell the watchers of it."""
        if self.is_bare(module):
            return
        seen = Forward(
            self.names.add(module, renames=not self.steps),
            self.tick(),
            trains(module),
            torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
            step=self.steps,
            keywords=keywords,
        )
        self.functional.meet(module, seen.module)
        self.recent = [*self.recent[-7:], seen]
        for window in self.windows:
            window.did("forward" if seen.gradients else "evaluate")
            if len(window.forwards) < 64:
                window.forwards.append(seen)
        with suppress(Exception):  # whatever somebody's inputs do when they are looked at
            self.given = [tensor for tensor in tensors_in(inputs) if tensor.dim()]
        self._tell("forward", seen, module, inputs, output)
        if not seen.gradients:
            self._tell("evaluate", seen, module, inputs, output)
        self.given = []

    def backward_begins(self, loss: torch.Tensor) -> None:
        """Tell that something is handed to backward."""
        self.hand.look()
        self.faults.look(self._take_loss, loss)

    def _take_loss(self, loss: torch.Tensor) -> None:
        """Remember what the gradients are before a backward, and tell the watchers of it."""
        for window in self.windows:
            window.hold()
            window.mark()
        self._tell("before_backward", loss)

    def backward_ends(self, loss: torch.Tensor, *returned: Any) -> None:
        """Tell that gradients have arrived, or were returned with what they belong to."""
        self.faults.look(self._tell, "after_backward", loss)
        self.faults.look(self.hand.wait, loss, returned)

    def step_begins(self, window: Window) -> Columns:
        """Ask the watchers about the step that is about to be made; the first may come late."""
        self.looks_closer |= not window.place
        return self.faults.look(graphless, self._tell, "before_step", window) or {}

    def step_ends(self, window: Window, columns: Columns, skipped: bool = False) -> None:
        """Make a Step of what the watchers saw, and count it."""
        self.faults.look(self._make_step, window, columns, skipped)
        self.step_passes(window, skipped)

    def _tell(self, instant: str, *what: Any) -> Columns:
        """Tell the watchers what happens, and return the columns that they answer with."""
        return self.faults.tell(self._told[instant, self.looks_closer], *what)

    def _make_step(self, window: Window, columns: Columns, skipped: bool) -> None:
        """Make a Step of what the watchers saw before it, and see now."""
        if window.is_surveyed:
            window.source = caller(4)
        optimizer = window.optimizer() if window.optimizer is not None else None
        window.name = window.name or self.names.unique(type(optimizer).__name__)
        columns |= graphless(self._tell, "after_step", window)
        columns |= {
            "step": window.index,
            "optimizer": window.name,
            "clock": self.tick(),
            "source": window.source,
            "span": window.stride,
            "skipped": skipped,
            "order": tuple(window.order),
        }
        self.store.keep_step(columns)

    def step_passes(self, window: Window, skipped: bool = False) -> None:
        """Close the window of a step, watched or not, and count it."""
        if self.nudge is not None:
            self.nudge.move_parameters(window.parameters)
        if self.steps and not window.index and len(self.stages) < _MOST_STAGES:
            self.stages.append(self.steps)
        window.close(self.steps)
        self.woken = self._evaluating = False
        going = self.going = self._going()
        self.patches.watching = any(w.is_listened_to for w in going)
        self.times = count_alike(going) if self.patches.watching else 1
        if not skipped:
            self.count_step()
        if self.patches.watching:
            self._choose_look()
        if self.live is not None:
            self.live.after_step(self)

    def _going(self) -> list[Window]:
        """Return the windows of those optimizers that still step."""
        return [w for w in self.windows if w.index and not w.has_stopped(self.steps)]

    def _choose_look(self) -> None:
        """Say how closely is looked up to the next step; one that never comes is not waited for."""
        near = (window.place for window in self.windows if not window.has_stopped(self.steps))
        counts = (self.steps, self.age, *near)
        self.looks_closer = any(map(is_looked_at_closer, counts))

    def passes_by(self, builds: bool) -> bool:
        """
        Say whether nobody is told of an outermost call; builds: whether it builds a graph.

        Where no step is watched, an evaluation is seen as a whole, up to the next call that builds
        a graph: nothing is told of a part of a step.
        """
        if builds and self._evaluating and not self.thread.is_elsewhere():
            self._evaluating = False
            self.patches.watching = self.woken
        if self.patches.live:
            return self.thread.is_elsewhere()
        return builds or not self._wakes_for_evaluation()

    def _wakes_for_evaluation(self) -> bool:
        """
        Say whether a call that builds no graph is to be seen though no step is watched now.

        Such that come with every step, as those of a teacher do, are seen as seldom as steps are
        watched.
        """
        patches = self.patches
        if not patches.active or patches.blind or _graph_task() != -1 or self.thread.is_elsewhere():
            return False
        self.hand.look()  # a step made by hand before it is known only now
        if patches.watching:
            return True
        stride = min((window.stride for window in self._going()), default=1)
        due = max(self._evaluated, self.steps - _SPARE * stride) + stride
        if due > self.steps:
            return False
        self._evaluated, patches.watching, self._evaluating = due, True, True
        self._choose_look()
        return True

    def count_step(self) -> None:
        """Count a step, of whatever thread; raises Stopped once it was the last wanted one."""
        with self._counting:
            self.steps += 1
        if self.limit is not None and self.steps >= self.limit:
            raise Stopped(f"{self.steps} steps were asked for")

    def window_of(self, optimizer: Optimizer) -> Window:
        """Return the window of an optimizer, opened when it is first met."""
        window = self._by_optimizer.get(id(optimizer))
        if window is not None and window.optimizer is not None and window.optimizer() is optimizer:
            return window
        window = Window("", weakref.ref(optimizer), source=caller(2))
        weakref.finalize(optimizer, window.release).atexit = False
        self._by_optimizer[id(optimizer)] = window
        self.meet_window(window)
        window.hold()
        self.hand.leave_to(window)
        return window

    def meet_window(self, window: Window) -> None:
        """Take in a window, the first step of which is looked at more closely; not of very many."""
        if len(self._closed) + sum(each.is_used for each in self.windows) >= _MANY:
            self._closed += [each for each in self.windows if each.released]
            self.windows = [each for each in self.windows if not each.released]
            window.before, window.is_surveyed = self.steps, is_looked_at_closer(self.steps)
        self.windows.append(window)
        window.latest, self.looks_closer = self.steps, self.looks_closer or not window.place

    def is_bare(self, module: nn.Module) -> bool:
        """Say whether a module has no parameters; looked up once."""
        bare = self._bare.get(module)
        if bare is None:
            bare = self._bare[module] = next(nn.Module.parameters(module), None) is None
        return bare

    def _write(self, seconds: float) -> None:
        """Make the trace of all that was kept and of what the watchers add up."""
        self.faults.look(self.store.drain)
        self.faults.look(self.reads.end)
        added = self.faults.finish_all(self.watchers)
        windows = self._closed + self.windows
        conditions: dict[str, Plain] = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "steps": self.steps,
            "optimizers": tuple(w.name for w in windows if w.index and w.name),
            "seconds": seconds,
            "ended": self.ended,
            "probe": self.probe,
            "looked": tuple(sorted(set[str]().union(*(w.looked for w in self.watchers)))),
            **self.watcher(Conditions).seen,
        }
        conditions |= self.faults.as_conditions()
        kept = end_spans(self.store.in_order(), windows)
        self.trace = Trace(self.name, (*kept, *added), conditions, self.promises)
        # The recorder may be kept for its trace: nothing of the training is kept with it.
        self.windows, self._closed, self.going, self.watchers, self.recent = [], [], [], [], []
        self._by_kind, self._by_optimizer, self._told = {}, {}, {}
        self.hand, self.functional = ManualSteps(self), FunctionalSteps(self)
        self.faults = Faults((), self.patches)
        self.reads = Reads(self.faults)
        self.store = EventStore(self.faults, self.reads, self.keep)
