"""The samples that mixed ones were made of, found among all of a data set."""

import numpy as np

from trainguard.observe.tools.least_squares import Table

_EXACT = 1e-3  # of the spread of a sample: what is left of it where its parts are found


def unmix(mixed: Table, data: Table, share: float) -> list[int] | None:
    """
    Return of which row's first sample the rest of each row is.

    mixed: (B, D), data: (N, D). A row is `share * data[i] + (1 - share) * data[j]`. Both are looked
    for among the sums along one direction, of which those that agree are few, and then compared.
    None where a row is no such mixture, or the rest of one is of a sample that is not in the batch.
    """
    drawn = np.random.Generator(np.random.PCG64(0))
    ways = drawn.standard_normal((data.shape[1], 2)) / np.sqrt(data.shape[1])
    sums, wanted = data @ ways, mixed @ ways
    order = np.argsort(sums[:, 0])
    rising = sums[order, 0]
    firsts: list[int] = []
    rests: list[int] = []
    for row, (along, across) in zip(mixed, wanted, strict=True):
        needed = (along - share * sums[:, 0]) / (1 - share)  # of the rest, for each first part
        above = np.searchsorted(rising, needed).clip(1, len(data) - 1)
        closer = needed - rising[above - 1] < rising[above] - needed
        rest = order[above - closer]
        off = np.abs(share * sums[:, 0] + (1 - share) * sums[rest, 0] - along)
        off += np.abs(share * sums[:, 1] + (1 - share) * sums[rest, 1] - across)
        first = int(np.argmin(off))
        blend = share * data[first] + (1 - share) * data[rest[first]]
        spread = max(float(((row - row.mean()) ** 2).sum()), 1e-30)
        if float(((row - blend) ** 2).sum()) > _EXACT**2 * spread:
            return None
        firsts.append(first)
        rests.append(int(rest[first]))
    places = {sample: place for place, sample in enumerate(firsts)}
    if len(places) < len(firsts) or not places.keys() >= set(rests):
        return None
    return [places[sample] for sample in rests]
