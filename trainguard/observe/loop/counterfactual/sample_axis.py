"""Tells of how many samples inputs have a row: samples drawn at random, and no steps in time."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from trainguard.observe.loop.counterfactual.question import ModuleCall, is_editable
from trainguard.observe.loop.watch.models.mixing_probe import PLAIN, draws_samples
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.window import Window
from trainguard.observe.tools.user_line import user_frames, variables_of

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

_LEAST_ROWS = 4
FRAMES = 4  # of the user's code whose variables are looked at
_LOOKED = 12  # rows that are looked for in a pool: ordered by chance once in 479,001,600
_MOST = 2**24  # numbers in a pool
_VALUES = 64  # entries of a variable that are looked at
_TABLES = 3  # dimensions of what is a table for each sample
_COLUMNS = 1024  # of each row that are compared
_MOST_ROWS = 256  # that are compared with each other
_ORDERS = 40  # that are drawn: a series is below all, and what has none below a tenth by chance
_PADDED = 4  # one row in so many has padding, at least
Pool = Any  # a tensor or an array


def count_samples(call: ModuleCall) -> int:
    """Return of how many samples, drawn at random, all inputs have a row; 0 if not for sure."""
    recent = call.recorder.watcher(Batches).recent
    sampler = draws_samples(recent[-1].iterator()) if recent else None
    if sampler is not None:
        return sampler.batch_size if _has_rows_only(call, sampler.batch_size) else 0
    tensors = with_rows(call)
    rows = len(tensors[0]) if tensors else 0
    known = rows and _has_rows_only(call, rows) and any(map(_are_samples, tensors))
    return rows if known else 0


def count_rows(call: ModuleCall) -> tuple[int, bool]:
    """Return of how many samples all inputs seem to have a row, and whether a loader drew them."""
    drawn = count_samples(call)
    if drawn:
        return drawn, True
    tokens = [t for t in call.tensors() if t.dim() == 2 and t.dtype in (torch.int64, torch.int32)]
    rows = len(tokens[0]) if tokens else 0
    return (rows, False) if rows and _has_rows_only(call, rows) else (0, False)


def count_unordered(call: ModuleCall) -> int:
    """
    Return of how many rows in no order all inputs seem to be, each of them a table itself; or 0.

    What is drawn by hand comes from no loader and no table. Neighbours in time are alike, so that
    rows are put in other orders: in steps of time those beside each other differ less.
    """
    tensors = with_rows(call)
    if not tensors or not all(t.is_floating_point() and t.dim() >= _TABLES for t in tensors):
        return 0
    served = call.recorder.watcher(Batches)
    if any(served.origin(tensor) is not None for tensor in tensors):
        return 0  # a loader that does not shuffle may serve what belongs together
    rows, columns = tensors[0].shape[:2]
    is_series = tensors[0].dim() == _TABLES and columns == 1  # of one sample, in time
    alone = rows not in tensors[0].shape[1:] and not is_series and _has_rows_only(call, rows)
    return rows if alone and all(map(_is_in_no_order, tensors)) else 0


def _is_in_no_order(tensor: torch.Tensor) -> bool:
    """Say whether rows beside each other differ as much as in some orders that are drawn."""
    if len(tensor) > _MOST_ROWS:
        return False
    table = tensor.detach().reshape(len(tensor), -1)[:, :_COLUMNS].cpu().double().numpy()
    table = table - table.mean(0)
    sizes = np.square(table).sum(1)
    apart = sizes[:, None] + sizes - 2 * table @ table.T  # squared distances, and no larger table
    if not np.isfinite(apart).all():
        return False
    random = np.random.RandomState(0)
    orders = (random.permutation(len(table)) for _ in range(_ORDERS))
    drawn = sorted(apart[order[1:], order[:-1]].sum() for order in orders)
    return bool(apart.diagonal(1).sum() >= drawn[_ORDERS // 10])


def _has_rows_only(call: ModuleCall, rows: int) -> bool:
    """Say whether all inputs have so many rows, none of them one for each pair, as graphs have."""
    tensors = with_rows(call)
    given = (*call.args, *call.kwargs.values())
    plain = all(isinstance(value, (torch.Tensor, *PLAIN)) for value in given)
    own = {len(tensor) for tensor in tensors} == {rows} and rows >= _LEAST_ROWS
    related = any(tuple(tensor.shape[:2]) == (rows, rows) for tensor in tensors)
    return (
        bool(windows_of(call.recorder))
        and not related
        and plain
        and own
        and all(map(is_editable, tensors))
    )


def with_rows(call: ModuleCall) -> list[torch.Tensor]:
    """Return the tensors among the arguments of a call that have dimensions."""
    return [tensor for tensor in call.tensors() if tensor.dim()]


def windows_of(recorder: "Recorder") -> list[Window]:
    """Return the windows of the optimizers that hold parameters of modules that were called."""
    known = {id(p) for p in recorder.names.parameters()}
    return [window for window in recorder.windows if window.belongs_to(known)]


def _are_samples(tensor: torch.Tensor) -> bool:
    """Say whether an input shows that its first axis is that of samples."""
    return _is_padded_by_rows(tensor) or any(
        _is_drawn_from(tensor, pool) for pool in pools_of(tensor)
    )


def _is_padded_by_rows(tokens: torch.Tensor) -> bool:
    """Say whether each row of a table of tokens ends, or begins, with padding of its own length."""
    if tokens.dim() != 2 or tokens.is_floating_point() or min(tokens.shape) < 2:
        return False
    table = tokens.detach().cpu().numpy()
    for turned in (table, table[:, ::-1]):
        pads = turned == _pad_of(turned)
        lengths = pads.sum(1)
        has = lengths > 0
        often = has.sum() * _PADDED >= len(table) and len(np.unique(lengths)) > 1
        if often and _only_at_the_end(pads) and not _only_at_the_end(pads.T):
            return True
    return False


def _pad_of(table: Any) -> Any:
    """Return the token that is most often the last one."""
    values, counts = np.unique(table[:, -1], return_counts=True)
    return values[counts.argmax()]


def _only_at_the_end(pads: Any) -> bool:
    """Say whether nothing follows padding in any row."""
    return bool((pads[:, 1:] >= pads[:, :-1]).all())


def _is_drawn_from(tensor: torch.Tensor, pool: Pool) -> bool:
    """Say whether the first rows stand in a larger table, each once, and in no order."""
    rows = tensor.detach()[:_LOOKED].reshape(min(len(tensor), _LOOKED), -1).cpu()
    table = torch.as_tensor(pool).detach().reshape(len(pool), -1)
    if rows.is_floating_point() != table.is_floating_point():
        return False
    table = table.to(rows.dtype)
    places = []
    for row in rows:
        found = (table[:, 0] == row[0]).nonzero()[:, 0]
        found = found[(table[found] == row).all(1)]
        if len(found) != 1:
            return False
        places.append(int(found))
    steps = np.diff(places)
    return bool((steps > 0).any() and (steps < 0).any() and len(set(steps.tolist())) > 2)


def pools_of(
    tensor: torch.Tensor, variables: Iterable[dict[str, Any]] | None = None
) -> Iterator[Pool]:
    """Yield what the user's variables have with rows of the same shape, and more of them."""
    seen = {id(tensor)}
    for each in map(variables_of, user_frames(FRAMES)) if variables is None else variables:
        for table in (table for value in each.values() for table in tables_in(value)):
            own = tuple(table.shape[1:]) == tuple(tensor.shape[1:]) and table.ndim > 1
            if own and id(table) not in seen and 2 * len(tensor) <= len(table) and _fits(table):
                seen.add(id(table))
                yield table


def tables_in(value: Any) -> Iterator[Pool]:
    """Yield the tensors and arrays in a variable, in a list of them, or in a data set."""
    if isinstance(value, DataLoader):
        value = value.dataset
    if isinstance(value, Dataset):
        value = vars(value)
    if type(value) is dict:
        value = list(value.values())
    for each in value[:_VALUES] if type(value) in {list, tuple} else [value]:
        if _is_table(each):
            yield each
        elif type(each) is tuple and type(value) in {list, tuple}:
            yield from filter(_is_table, each[:_VALUES])


def _is_table(value: Any) -> bool:
    """Say whether something has rows of numbers that have sizes."""
    if isinstance(value, torch.Tensor):
        return not value.is_nested
    return isinstance(value, np.ndarray)


def _fits(pool: Pool) -> bool:
    """Say whether a table can be searched at once."""
    if isinstance(pool, torch.Tensor):
        plain = pool.is_cpu and pool.layout == torch.strided and type(pool) is torch.Tensor
        return plain and 0 < pool.numel() <= _MOST
    return 0 < pool.size <= _MOST and pool.dtype.kind in "iuf"
