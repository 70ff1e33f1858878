"""Counts ends of rows of tokens: whether they are learned, or left out as padding is."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from trainguard.observe.tools.owners import find_owners, words_in

_SHORTEST = 4  # tokens of a row
_SEARCHES = 3  # steps in which a name is looked for
_ENDED = 4  # rows with padding, of which a token tells the ends
_ENDS = {"eos", "eot", "endoftext", "eod"}  # words in the names of what ends a sequence


@dataclass(slots=True)
class RowEnds:
    """
    The last places of rows, of each of which the next token is learned.

    steps: that were looked at; left_out: those in which all rows, the longest too, end with one
    token, and the target before is learned, but that never is; widths: of the rows of these;
    marked: those in which a mask says that the first of them is no padding. token: what they end
    with; is_named: whether something in the script that is called an end is that number.
    """

    source: str
    steps: int = 0
    left_out: int = 0
    marked: int = 0
    widths: set[int] = field(default_factory=set)
    token: int = -1
    is_named: bool = False

    def count(
        self,
        rows: torch.Tensor,
        target: torch.Tensor,
        ignored: int,
        masks: Iterable[torch.Tensor] = (),
    ) -> None:
        """Count a step by what was read, what was to be learned after each place, and masks."""
        many, width = rows.shape
        if width < _SHORTEST or target.numel() not in (many * width, many * (width - 1)):
            return
        after = target.reshape(many, -1)[:, : width - 1]
        is_learned = after != ignored
        if not is_learned.any() or (after != rows[:, 1:])[is_learned].any():
            return
        self.steps += 1
        end = rows[0, -1]
        ends = (rows == end).flip(1).int().cumprod(1).sum(1)  # how often it comes at the end
        if int(ends.min()) != 1 or int(ends.max()) == 1 or int(ends.max()) > width - 2:
            return
        before = is_learned.gather(1, (width - 2 - ends)[:, None])  # the last token before the end
        if before.all() and not (rows[:, 1:] == end)[is_learned].any():
            self.left_out += 1
            self.token = int(end)
            self.is_named = self.is_named or (self.left_out <= _SEARCHES and _is_an_end(self.token))
            self.widths.add(width)
            real = torch.arange(width) <= (width - ends)[:, None]
            self.marked += any(torch.equal(mask.bool(), real) for mask in masks)

    @property
    def are_left_out(self) -> bool:
        """Whether it is so in all steps; of rows as wide, a mask or a name must tell the ends."""
        certain = len(self.widths) > 1 or self.marked == self.steps or self.is_named
        return certain and self.left_out == self.steps > 0


def _is_an_end(token: int) -> bool:
    """Say whether something in the variables of the script that is called an end is a number."""
    for _, _, values in find_owners():
        words = [each for each in values.values() if type(each) is dict]  # vocabularies may be wide
        for name, value in (pair for each in (values, *words) for pair in each.items()):
            if type(value) is int and value == token and words_in(str(name)) & _ENDS:
                return True
    return False


def ends_of(rows: torch.Tensor, token: int, *, known: bool = False) -> torch.Tensor | None:
    """
    Return how often a token comes at the end of each row; None where it may be no padding.

    known: whether it is said to be. What is not comes at ends alone, and not as often in all rows.
    """
    there = (rows == token).int()
    ends = there.flip(1).cumprod(1).sum(1)
    if not known:
        if int((there.sum(1) - ends).max()) or int(ends.max()) < 2:
            return None  # it comes inside too
        ends = ends - ends.min()  # the first may be a token that tells the end
    return ends if int(ends.min()) < int(ends.max()) < rows.shape[1] else None


def find_padding(rows: torch.Tensor, said: int = -1) -> int:
    """Return the number of padding: what it is said to be, or else what most rows end with."""
    return said if said >= 0 else int(rows[:, -1].mode().values)


def are_told(ends: torch.Tensor, width: int, given: Iterable[torch.Tensor]) -> bool:
    """
    Say whether something given beside rows of a width tells their ends: lengths, or a mask.

    ends: how much longer the padding of each row is than that of another, as `ends_of` says it.
    """
    for each in (tensor.detach() for tensor in given if tensor.is_cpu):
        lengths = each
        if each.shape == (len(ends), width) and bool(((each == 0) | (each == 1)).all()):
            marks = each.bool() if bool((each[:, 0] != 0).any()) else ~each.bool()
            lengths = marks.sum(1)
            if not torch.equal(marks, torch.arange(width) < lengths[:, None]):
                continue
        if lengths.shape == ends.shape and not lengths.is_complex():
            sums = lengths + ends
            if bool((sums == sums[0]).all()) and 0 < float(sums[0]) <= width:
                return True
    return False


def are_ended(rows: torch.Tensor, padding: torch.Tensor) -> bool:
    """Say whether one and the same token, which comes nowhere else, tells the end of each row."""
    lengths = rows.shape[1] - padding.sum(1)
    ended = (lengths > 0) & (lengths < rows.shape[1])
    if int(ended.sum()) < _ENDED:
        return False
    last = rows[ended].gather(1, lengths[ended, None] - 1)
    alike = bool((last == last[0]).all())
    return alike and int((rows == last[0]).sum()) <= len(rows)
