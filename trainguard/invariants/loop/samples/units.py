"""Judgements of the numbers that inputs are made of: measured, and scaled by what scales them."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events
from trainguard.invariants.wording import number

_MISTAKES = {
    "exchanged": "the mean and the deviation are exchanged: (x - mean) / std",
    "twice": "they are scaled twice: once in what the data are made by, and once more",
    "squared": "they are divided by the variance: by its root, the deviation",
    "the mean": "they are divided by the mean: by the deviation",
    "multiplied": "they are multiplied by the deviation: divide by it",
}


@invariant("loop", evidence=has_probe("stand-in", "no table of numbers was learned from"))
def missing_values_are_not_measured(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Missing values are not encoded as an extreme number such as -9999.

    Judges: inputs of a learning module with a column for each thing, of 2 or 3 axes: whether a
        number comes 4 times or more in a column, alone and beyond all others, and further from them
        than 20 times what they reach. Broken where the column was scaled with it: its mean is near
        zero, and the others deviate by less than a tenth; else a note.
    Allows: rows that have one number in all of several columns, as padding has; a number in more
        than a quarter of a column; columns with fewer than 8 others.
    Misses: stand-ins among the others, as -1 and 0; those that come once or twice.
    Why: -9999 is not a temperature. A mean and a deviation that are taken with it make all real
        differences too small to be seen, and each gap the loudest thing in the data.
    Source: stanfordmlgroup/methane-gapfill-ml pull 10 (-9999 for what is not known).
    """
    for probe in events(trace, Probe):
        if probe.probe == "stand-in":
            value, low, high, scaled = map(float, probe.label.split())
            yield Finding(
                f"an input of `{trace.subject}` encodes missing values as an extreme number",
                portion(probe.measured, probe.reference, "columns") + " that a module learns from",
                number(value) + ", again and again",
                number(low) + f" to {high:.4g}, what the others reach in the first of them",
                why="set it to nan, take the mean and the deviation of the rest (nanmean), and then"
                " fill the gaps, with zero and a column that says so",
                rank=Rank.BROKEN if scaled else Rank.NOTE,
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("misread scale", "no input of a scale with a name was seen"))
def scales_are_what_their_names_say(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Inputs are standardised by subtracting the mean and dividing by the standard deviation.

    Judges: what a module learns from, in batches of 256 rows or more together, beside a variable
        with the name of a mean and one of a deviation or a variance, of the same words otherwise
        and of as many numbers as there are columns, channels, or one: whether each column has the
        mean and the deviation that it would have if the two were exchanged, used twice, or if it
        were divided by the variance or the mean, or multiplied.
    Allows: inputs with a mean near zero and a deviation near one by any of them; inputs that none
        of these mistakes explains; means that are zero.
    Misses: scales in functions that have ended, and those of other data.
    Why: the columns then have neither a mean of zero nor one scale, and one of them may drown the
        others; weights that were learned with the right scale see other data.
    Source: XiaLiPKU/EMANet issue 7 (divided by the mean); ActiveVisionLab/CrossScore issue 3 (the
        mean for both); soumith/imagenet-multiGPU.torch pull 18 (twice).
    """
    for probe in events(trace, Probe):
        if probe.probe == "misread scale":
            mistake, used, spread = probe.label.rsplit(" ", 2)
            yield Finding(
                f"an input of `{trace.subject}` is not scaled as the names of its scale say",
                f"by a mean of {float(used):.4g} and a deviation of {float(spread):.4g}",
                number(probe.measured) + f" in the mean, and {probe.reference:.4g} around it",
                number(0.0) + " in the mean, and 1 around it",
                why=_MISTAKES[mistake],
                event=probe,
                source=probe.source,
            )


@invariant("loop", evidence=has_probe("wrapped", "no operation on two arrays of bytes was seen"))
def bytes_do_not_wrap(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Arithmetic on uint8 arrays does not overflow.

    Judges: differences, sums and products of two arrays of bytes (uint8) in the functions that make
        steps, those that they name, and what serves the samples of data sets in their variables:
        whether any of what is computed of their first rows, or of neighbours in one array, is below
        0 or above 255. The arrays are those that live then.
    Allows: arrays whose largest number is 16 or less, as of masks; operations in where(), minimum()
        or maximum(), or under %, &, | and ^, which know of it; what always fits.
    Misses: bytes beside single numbers, as for brightness; arrays that functions return.
    Why: 3 - 5 is 254 in bytes. A picture that got a little darker looks as if it had become white,
        and nothing says so.
    Source: dwave-examples/image-segmentation issue 10; mahmoudnafifi/Deep_White_Balance issue 15;
        waveform80/picamera pull request 263.
    """
    for probe in events(trace, Probe):
        if probe.probe == "wrapped":
            yield Finding(
                f"`{trace.subject}` computes with uint8 arrays, and the results overflow",
                f"`{probe.label}`",
                portion(probe.measured, probe.reference, "results")
                + " begin anew, below 0 or above 255",
                number(0.0) + " to 255, or numbers of another type",
                why="make them numbers that fit first: .astype(np.float32), or .float() of tensors",
                event=probe,
                source=probe.source,
            )
