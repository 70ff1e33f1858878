"""What the parameters of one window were given: how many gradients, and of which norms."""

from math import inf

import torch

from trainguard.observe.loop.window import Window, gradient_of

_PENDING = 32  # steps whose norms are looked at together


class GradientCounts:
    """
    The counts, the largest norms and the latest zeros, while a window holds the same parameters.

    last: what each has counted in the window that goes on, as of the last call of `count`; index:
    the number of that window. The norms are compared on their device, and fetched at the end, by
    `norms()`, or by who asks for them. No parameter is kept.
    """

    def __init__(self, window: Window, last: list[int]) -> None:
        self.counts = [0] * len(window.parameters)
        self.last, self.index = last, window.index
        self._key = _key(window)
        self._list = window.received  # replaced where the window begins again
        self._largest: torch.Tensor | None = None
        self._dead: torch.Tensor | None = None  # watched steps in a row with a norm of zero
        self._pending: list[tuple[torch.Tensor, tuple[bool, ...] | None]] = []
        self._had: tuple[tuple[bool, ...], torch.Tensor] | None = None
        self._places: tuple[int, ...] = ()
        self._index: torch.Tensor | None = None
        # The norms and the zeros in a row, when last asked for on an accelerator.
        self._told: tuple[list[float], list[int]] = [], []

    def fits(self, window: Window) -> bool:
        """Say whether the window still holds these parameters."""
        return self._key == _key(window)

    def count(self, window: Window) -> None:
        """Add what has arrived since the last call; a window begins again from zero."""
        last, same = self.last, window.received is self._list
        self.last, self.index = list(window.received), window.index
        self._list = window.received
        if not same:
            last = [0] * len(self.last)
        if self.last != last:
            more = zip(self.counts, self.last, last, strict=True)
            self.counts = [count + max(0, now - before) for count, now, before in more]

    def measure(self, window: Window) -> None:
        """Keep the largest norm of each parameter; a norm that is nan says nothing."""
        norms = window.norms
        if norms is None:
            return
        if self._largest is None or self._largest.device != norms.device:
            self._settle()
            kept = norms.new_zeros(len(self.counts))
            self._largest = kept if self._largest is None else self._largest.to(norms.device)
        if len(norms) == len(self.counts):
            here = all(window.received)
            self._pending.append((norms, None if here else tuple(map(bool, window.received))))
            if len(self._pending) >= _PENDING:
                self._settle()
            return
        self._settle()
        index = self._index_of(window, norms.device)
        if len(index) == len(norms):
            self._largest[index] = torch.fmax(self._largest[index], norms)

    def _settle(self) -> None:
        """
        Take in the norms of the latest steps, of all of them at once.

        It is counted on where zeros have arrived; what was only cleared to zero says nothing.
        """
        pending, self._pending = self._pending, []
        if not pending or self._largest is None:
            return
        norms = torch.stack([norms for norms, _ in pending])
        zero = norms == 0
        for row, (_, received) in zip(zero, pending, strict=True):
            if received is not None:
                row &= self._mask_of(received, norms.device)
        self._largest = torch.fmax(self._largest, norms.nan_to_num(0.0, inf, -inf).amax(0))
        latest = zero.flip(0).long().cumprod(0).sum(0)
        before = 0 if self._dead is None else self._dead.to(norms.device)
        self._dead = torch.where(latest == len(pending), latest + before, latest)

    def dead(self) -> list[int]:
        """Fetch for each parameter how many steps in a row have ended in a gradient of zero."""
        self._settle()
        return [0] * len(self.counts) if self._dead is None else list(map(int, self._dead.tolist()))

    def norms_away(self) -> list[torch.Tensor]:
        """Return norms and zeros in a row, if they are on an accelerator: they can be asked for."""
        if self._largest is None or self._largest.is_cpu or self._largest.is_meta:
            return []
        self._settle()
        largest = self._largest
        dead = torch.zeros_like(largest) if self._dead is None else self._dead.clone()
        return [largest.clone(), dead]

    def take_norms(self, here: list[torch.Tensor]) -> None:
        """Keep what was asked for and has come."""
        self._told = here[0].tolist(), list(map(int, here[1].tolist()))

    def norms_and_zeros(self) -> tuple[list[float], list[int]]:
        """Return norms and zeros in a row as far as nothing must be waited for; none if away."""
        return self._told if self.norms_away() else (self.norms(), self.dead())

    def norms(self) -> list[float]:
        """Fetch the largest norm of each parameter; zero where none was measured."""
        self._settle()
        return [0.0] * len(self.counts) if self._largest is None else self._largest.tolist()

    def _mask_of(self, received: tuple[bool, ...], device: torch.device) -> torch.Tensor:
        """Return which parameters got a gradient, sent to the device where it is another one."""
        if self._had is None or self._had[0] != received or self._had[1].device != device:
            self._had = received, torch.tensor(received, device=device)
        return self._had[1]

    def _index_of(self, window: Window, device: torch.device) -> torch.Tensor:
        """Return the places of the parameters that have a gradient."""
        places = tuple(i for i, p in enumerate(window.parameters) if gradient_of(p) is not None)
        if self._index is None or places != self._places or self._index.device != device:
            self._places, self._index = places, torch.tensor(places, device=device)
        return self._index


def _key(window: Window) -> tuple[int, ...]:
    """Return what tells one list of parameters from another without keeping any of them."""
    held = window.parameters
    return (id(held), len(held), id(held[0]), id(held[-1])) if held else (id(held), 0)
