"""The subject `Parallel`: one training step, which is the same on one process and on several."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from trainguard.core.errors import DeclarationError
from trainguard.subjects.domain import BATCH, Domain, bounds_of, check_possible
from trainguard.subjects.subject import (
    Subject,
    check_callable,
    check_device_type,
    check_word,
    mapping_of,
)

WRAPPERS = ("ddp", "fully_shard")
_SIZE = 4  # of a dimension of which nothing is said; of the batch, on each of the most processes


@dataclass(frozen=True, eq=False, init=False)
class Parallel(Subject):
    """
    One training step, made with the same batch on one process and on several.

    Every further keyword declares the input of that name, a domain. The batch is cut along the
    dimension `B`, a part for each process; what has no such dimension is given to all. The step of
    one process is made in a group of one, wrapped alike, so that the code is the same.

    build: returns the module, the same in each process.
    loss: `loss(output, **inputs)`, called with those of the inputs that it takes.
    step: `step(model, batch)` in place of a loss: goes forward and backward and returns the loss,
        where more is done: accumulation, reductions by hand, clipping, the schedule of a pipeline,
        of which all stages but the last one return None.
    wrap: `wrap(module)` returns what is trained; "ddp" and "fully_shard" are those of torch, None
        leaves it as it is.
    ranks: how many processes; more than one are held against one.
    optimizer: `optimizer(parameters)`; SGD where not given.
    cut: False where each process gets the whole batch, as under tensor parallelism; a number where
        so many neighbouring ranks get the same part, as the pairs of a mesh of two dimensions.
    uneven: whether processes may get unequal counts of rows. The first one gets a row more than its
        share and the last one a row less; then they get as many as are drawn.
    sizes: {dimension: size or (least, most)}, of which some are drawn; 4 where nothing is said.
    devices: the type of device, of which each process takes one: "cpu", over gloo, or "cuda", over
        nccl. The module is moved there once it is built.
    """

    family: ClassVar[str] = "parallel"
    takes_inputs: ClassVar[bool] = True

    build: Callable[[], Any] = field(default=lambda: None)
    loss: Callable[..., Any] | None = None
    step: Callable[[Any, dict[str, Any]], Any] | None = None
    wrap: Callable[[Any], Any] | str | None = "ddp"
    ranks: tuple[int, ...] = (1, 2)
    optimizer: Callable[[Any], Any] | None = None
    cut: bool | int = True
    uneven: bool = False
    devices: str = "cpu"
    inputs: Mapping[str, Domain] = field(default_factory=dict)
    sizes: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)

    def __init__(
        self,
        build: Callable[[], Any],
        *,
        loss: Callable[..., Any] | None = None,
        step: Callable[[Any, dict[str, Any]], Any] | None = None,
        wrap: Callable[[Any], Any] | str | None = "ddp",
        ranks: Iterable[int] = (1, 2),
        optimizer: Callable[[Any], Any] | None = None,
        cut: bool | int = True,
        uneven: bool = False,
        devices: str = "cpu",
        inputs: Mapping[str, Domain] | None = None,
        sizes: Mapping[str, int | tuple[int, int]] | None = None,
        allow: Mapping[str, str] | None = None,
        limits: Mapping[str, float] | None = None,
        timeout: float = 60.0,
        name: str = "",
        **domains: Domain,
    ) -> None:
        """Declare a step; raises DeclarationError for what cannot be meant."""
        __tracebackhide__ = True
        counts = (ranks,) if isinstance(ranks, int) else tuple(ranks)
        own = {
            "build": build,
            "loss": loss,
            "step": step,
            "wrap": wrap,
            "ranks": counts,
            "optimizer": optimizer,
            "cut": cut,
            "uneven": uneven,
            "devices": devices,
            "inputs": {**mapping_of("Parallel", "inputs", inputs), **domains},
            "sizes": dict(sizes or {}),
            "allow": mapping_of("Parallel", "allow", allow),
            "limits": mapping_of("Parallel", "limits", limits),
            "timeout": timeout,
            "name": name or getattr(build, "__name__", type(build).__name__),
        }
        for key, value in own.items():
            object.__setattr__(self, key, value)
        _check_functions(self)
        _check_ranks(self)
        check_device_type("Parallel", devices)
        _check_batch(self)
        self.__post_init__()

    @property
    def worlds(self) -> tuple[int, ...]:
        """The numbers of processes that are held against one, the smallest first."""
        return tuple(sorted({count for count in self.ranks if count > 1}))

    @property
    def tensors(self) -> dict[str, Domain]:
        """The inputs that are tensors."""
        return {n: domain for n, domain in self.inputs.items() if domain.shape is not None}

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """The least and the largest size of every dimension, those of bounds included."""
        used = {name for domain in self.tensors.values() for name in domain.names}
        usual: dict[str, int | tuple[int, int]] = {}
        usual |= dict.fromkeys(used | bounds_of(self.tensors), _SIZE)
        usual[BATCH] = _SIZE * max(self.worlds)
        if self.uneven:
            usual[BATCH] = max(map(self.count_parts, self.worlds)), _SIZE * max(self.worlds)
        declared = {**usual, **self.sizes}
        return {n: (size, size) if isinstance(size, int) else size for n, size in declared.items()}

    @property
    def is_drawn(self) -> bool:
        """Whether batches are cut in several ways, or have several sizes."""
        return self.uneven or any(least < most for least, most in self.spans.values())

    def count_alike(self, world: int) -> int:
        """Return how many neighbours of several processes get the same rows."""
        return min(int(self.cut), world) or world

    def count_parts(self, world: int) -> int:
        """Return how many parts a batch is cut into for several processes."""
        return world // self.count_alike(world)

    def rows(self, world: int, count: int) -> tuple[int, ...]:
        """Return how many of so many rows are in each part for several processes."""
        parts = self.count_parts(world)
        ends = [count * each // parts for each in range(parts + 1)]
        if self.uneven:
            ends[1:-1] = [end + 1 for end in ends[1:-1]]
        return tuple(end - start for start, end in pairwise(ends))


def _check_functions(subject: Parallel) -> None:
    """Raise for functions that cannot be called, and for a step that is not said or said twice."""
    check_callable("Parallel", subject.build)
    if hasattr(subject.build, "named_parameters") and not isinstance(subject.build, type):
        raise DeclarationError(
            f"tg.Parallel({subject.name}) is a module, and each process needs one of its own."
            " Pass its class, or a function that builds it."
        )
    for function in (subject.loss, subject.step, subject.optimizer):
        if function is not None:
            check_callable("Parallel", function)
    if (subject.loss is None) == (subject.step is None):
        raise DeclarationError(
            f"tg.Parallel({subject.name}) needs either a loss or a step."
            " Give loss=function(output, ...), or step=function(model, batch) that goes backward."
        )
    if isinstance(subject.wrap, str):
        check_word("wrap", [subject.wrap], WRAPPERS)
    elif subject.wrap is not None:
        check_callable("Parallel", subject.wrap)


def _check_ranks(subject: Parallel) -> None:
    """Raise where there are not several processes to be held against one."""
    counts = subject.ranks
    if not subject.worlds or not all(type(count) is int and count > 0 for count in counts):
        raise DeclarationError(
            f"tg.Parallel(ranks={counts!r}) has no several processes. Give counts such as (1, 2)."
        )
    alike = subject.cut
    if not isinstance(alike, int) or alike < 0 or any(n % (alike or n) for n in subject.worlds):
        raise DeclarationError(
            f"tg.Parallel(cut={alike!r}) does not divide {subject.worlds!r} processes. Give True,"
            " False, or how many neighbouring ranks get the same rows."
        )


def _check_batch(subject: Parallel) -> None:
    """Raise for inputs that are no domains, or that cannot be cut into a part for each process."""
    for name, domain in subject.inputs.items():
        if not isinstance(domain, Domain):
            raise DeclarationError(
                f"tg.Parallel({name}={domain!r}) is no domain. Write tg.choice(...) to fix a value."
            )
    used = {name for domain in subject.tensors.values() for name in domain.names}
    check_word("sizes", subject.sizes, used | bounds_of(subject.tensors))
    check_possible("Parallel", subject.sizes)
    if BATCH not in used:
        raise DeclarationError(
            f"tg.Parallel({subject.name}) has no input with the dimension {BATCH!r}, so that no"
            f" batch can be cut. Call the batch dimension {BATCH}."
        )
    least, most = subject.spans[BATCH]
    for world in subject.worlds:
        parts = subject.count_parts(world)
        if least < parts or most < 2 * parts if subject.uneven else most % world:
            raise DeclarationError(
                f"tg.Parallel cannot cut a batch of {least if least < parts else most} for"
                f" {world} processes."
                f" Give sizes={{{BATCH!r}: {_SIZE * world}}}."
            )
