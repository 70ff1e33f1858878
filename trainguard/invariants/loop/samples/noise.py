"""Judgements of models that tell noise from data: whether it is there, its mean and its size."""

from collections.abc import Iterator
from math import sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events
from trainguard.invariants.wording import number

_LOOKS = 4  # at step 8 or later
_KEPT = {
    "kept noise": (
        "the noise of `{}` is the same in every step",
        "others for other samples",
        Rank.BROKEN,
    ),
    "kept mask": (
        "a mask of `{}`, like one of dropout, is the same in every step",
        "another one in each pass",
        Rank.NOTE,
    ),
}
_ROWS = 500  # of random times: of a tenth of all there are fewer than 20 once in 10^7 trainings
_LITTLE = 0.7  # as a deviation: beside it the data are as large, and samples begin without any
_RELATED = 0.2  # of ranks: as the watcher has it
_SPREAD_OF_RAND, _NEAR_RAND = 0.5 / sqrt(3), 0.01  # of 27,778 numbers: five deviations
_MEAN_OF_NOISE = 1.5  # deviations: the numbers of torch.rand have a mean of 1.73


@invariant("loop", evidence=has_probe("noise", "no noise was predicted in vain"))
def noise_is_in_the_input(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The noise that a denoising model predicts is the noise in its input.

    Judges: steps in which the target of an error is a tensor that the script calls noise, or rows
        of it that are scaled, all of them: whether any input of its shape correlates with it, where
        the last quarter of the errors is no smaller than that of predicting its mean.
    Allows: five deviations of what independent numbers would have, of so many that these are 0.03
        or less; models that are given the noise itself, as generators are.
    Misses: noise without a name; targets that are mixed of noise and data; steps that are too few.
    Why: where one function draws the noise of the target and another that of the input, there is
        nothing to learn: the loss stays at the variance of the noise.
    Source: Ho et al. 2020, algorithm 1 (one noise for both); denoising-diffusion-pytorch, whose
        q_sample draws its own where it is given none.
    """
    for probe in events(trace, Probe):
        if probe.probe == "noise" and probe.measured <= probe.reference:
            yield Finding(
                f"the noise that the model of `{trace.subject}` is to predict is not in its input",
                f"`{probe.label}`, in {probe.step} of {probe.step} steps",
                number(probe.measured, "of correlation")
                + ", and an error as large as that of predicting zero",
                "above " + number(probe.reference) + ", which independent numbers may have",
                why="perhaps other noise is drawn for the input: give"
                f" `{probe.label}` to what makes it",
                event=probe,
            )


@invariant("loop", evidence=has_probe("noise mean", "no noise was predicted"))
def noise_has_no_mean(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The noise that a denoising model predicts has zero mean.

    Judges: steps in which the target of an error is a tensor that the script calls noise: its mean
        over all of them, of 27,778 numbers or more. Broken where its mean and its deviation are
        those of torch.rand, and an evaluation has an input of its shape that has a mean of 0 and a
        deviation of 1, as samples begin from.
    Notes: the same without such an evaluation: noise may be like that on purpose.
    Allows: a mean of 1.5 deviations: that of the numbers of torch.rand is 1.73, that of the size of
        normal numbers 1.32.
    Misses: noise without a name; uniform numbers around nothing.
    Why: `rand` differs from `randn` by a letter: the model learns to take away a shift that is
        never there where samples begin from normal noise, while its loss is lower than it would be.
    Source: Ho et al. 2020, algorithm 1; documentation of torch.rand_like and torch.randn_like.
    """
    normal = any(p.probe == "normal start" for p in events(trace, Probe))
    for probe in events(trace, Probe):
        if probe.probe == "noise mean" and abs(probe.measured) > _MEAN_OF_NOISE * probe.reference:
            drawn = (abs(probe.measured - 0.5), abs(probe.reference - _SPREAD_OF_RAND))
            yield Finding(
                f"the noise that the model of `{trace.subject}` predicts does not have zero mean",
                f"`{probe.label}`, in {probe.step} of {probe.step} steps",
                number(abs(probe.measured) / max(probe.reference, 1e-30), "deviations from zero"),
                number(_MEAN_OF_NOISE, "deviations"),
                why="perhaps it is drawn with rand instead of randn",
                rank=Rank.BROKEN if normal and max(drawn) <= _NEAR_RAND else Rank.NOTE,
                event=probe,
            )


@invariant("loop", evidence=has_probe("noise scale", "no sum of data and noise was given"))
def noise_keeps_the_variance(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Diffusion mixes data and noise with weights whose squares sum to one.

    Judges: what a model is given that is to tell the noise, where it is a * data + b * noise, by
        16 pairs of a and b between 0.05 and 0.95: whether a * a + b is 1 in all of them, or
        a + b * b, within 0.01. The first is a note: the sub-VP process of Song et al. is like that.
    Allows: any other pairs, such as those of flows, where a + b is 1.
    Misses: noise and data without a name in the script; samplers; accelerators.
    Why: `1 - share` is the variance of the noise. Without its root there is less noise than the
        sampler takes away, which begins from what the model has never seen.
    Source: Ho et al. 2020, equation 4; Song et al. 2021, equation 29.
    """
    for probe in events(trace, Probe):
        if probe.probe != "noise scale":
            continue
        of_noise = probe.label == "a * a + b"
        what = "noise" if of_noise else "data"
        yield Finding(
            f"the {what} in the input of `{trace.subject}`"
            f" {'is' if of_noise else 'are'} scaled without the root",
            f"a * data + b * noise, {integer(probe.reference, 'pairs')} of a and b",
            number(probe.measured, f"at most between `{probe.label}` and one"),
            "that of `a * a + b * b`, which keeps the variance",
            why=f"scale {what} by the root of {'1 - the share' if of_noise else 'the share'}"
            + (", unless this is the sub-VP process" if of_noise else ""),
            rank=Rank.NOTE if of_noise else Rank.BROKEN,
            event=probe,
        )


@invariant("loop", evidence=has_probe("kept noise", "nothing learned was multiplied by constants"))
def noise_is_drawn_anew(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Noise that a training loss depends on is drawn anew in each step.

    Judges: constants of 32 numbers or more that something learned is multiplied by, or targets of
        a distance of torch, that are the same, to the last bit, at 4 looks or more, of steps 1, 2,
        4, 8, 16, 32, 64 and 128. Broken
        where they have a row for each sample and the moments of a normal distribution, while the
        inputs are others in each look. A note where they are zeros and one number that makes their
        mean 1, as a mask of dropout.
    Allows: noise in full batches; masks of zeros and ones, as of connections; what is drawn for an
        evaluation, or for one batch that comes again.
    Misses: noise that is only added, or uniform; a few tensors that are used in turns.
    Why: a latent that is always drawn in the same place of a batch is no distribution, and a unit
        that is always dropped is no regularisation.
    Source: Kingma and Welling (arXiv 1312.6114), whose noise is drawn for each sample and step; Gal
        and Ghahramani (arXiv 1512.05287), on masks that stay for one sequence only.
    """
    for probe in events(trace, Probe):
        if probe.probe in _KEPT and probe.measured >= _LOOKS:
            summary, allowed, rank = _KEPT[probe.probe]
            yield Finding(
                summary.format(trace.subject),
                f"numbers of shape {probe.label} that the loss is made with",
                "the same at " + integer(probe.measured, "looks"),
                allowed,
                why="it is perhaps drawn where the module is made; draw it in forward(), or in the"
                " loop over batches",
                rank=rank,
                event=probe,
            )


@invariant("loop", evidence=has_probe("noise levels", "no mixtures of several levels were seen"))
def noisiest_inputs_are_noise(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A diffusion model's noisiest training inputs are nearly pure noise, as in sampling.

    Judges: distances whose target is noise, its data or a sum of both, where a tensor in the
        functions that run is a * data + b * noise with a * a + b * b = 1, in 500 rows or more of
        different b. Broken where b * b is what `betas` have for the time of each row, or one less
        what a table has whose products the script has as well, at 2 looks. Else a note.
    Allows: a b of 0.7 or more: in a tenth of the rows, or, as a note, in any. Other laws, as of
        flows (a + b = 1) and of processes whose variance grows (a = 1); one b for a whole batch.
    Misses: what is mixed of noise already; tables of one column; distances by hand that are
        weighed; accelerators; what has other names than noise, or eps, and is not the only normal
        one of the two.
    Why: alphas[t] is what one step leaves of the data. All steps leave their product: without it
        the model sees nearly clean samples at every time, and pure noise is new to it.
    Source: Ho et al. 2020, equation 4; Lin et al. (arXiv 2305.08891), on schedules that end before
        there is nothing but noise; ermongroup/ddim issue 44.
    """
    for probe in events(trace, Probe):
        if probe.probe != "noise levels" or probe.reference < _ROWS or probe.measured >= _LITTLE:
            continue
        single = probe.label == "one step"
        yield Finding(
            f"the noisiest inputs that `{trace.subject}` learns from are nearly clean",
            f"a * data + b * noise, {integer(probe.reference, 'rows')}",
            number(probe.measured, "of noise (b) at most")
            + (" in 9 of 10 rows, that of a single step" if single else ""),
            number(_LITTLE, "and more, as samples begin from noise alone"),
            why="scale by the product of all steps up to a time, cumprod(1 - betas, dim=0)[t], and"
            " not by `alphas[t]` or `betas[t]` of that step alone"
            if single
            else "perhaps a product over the steps is missing (torch.cumprod), or the schedule ends"
            " early; where samples begin from what is less noisy it is meant",
            rank=Rank.BROKEN if single else Rank.NOTE,
            event=probe,
        )


@invariant("loop", evidence=has_probe("noise times", "no model was told times beside mixtures"))
def times_tell_the_noise(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The time step given to a diffusion model matches the noise level of its input.

    Judges: distances whose target is noise, its data or a sum of both, where what is given to a
        module, or what the functions that run call by a name, is a * data + b * noise with
        a * a + b * b = 1: the correlation of the ranks of b and of the input that the module calls
        a time (t, time, timestep, sigma, level), over 512 rows: whether it is below 0.2.
    Allows: times that run either way, or by any law that rises or falls; one time for a batch;
        models that are told none.
    Misses: times that are joined to what is given, or told in another function's variables; other
        laws, as of flows (a + b = 1); accelerators.
    Why: a time that is drawn twice, or permuted, tells the model nothing: it learns the mean over
        all times, and samples come out blurred.
    Source: Ho et al. 2020, algorithm 1: one t for the mixture and for the model.
    """
    for probe in events(trace, Probe):
        if probe.probe == "noise times":
            yield Finding(
                f"the time steps given to `{trace.subject}` are unrelated to the noise level",
                f"`{probe.label}`, beside a * data + b * noise",
                number(abs(probe.measured), "of correlation with the noise (b)")
                + f", over {integer(probe.reference, 'rows')}",
                number(_RELATED, "and more: both rise and fall together"),
                why="mix with the very times that the model is told: draw t once, and hand it on",
                event=probe,
            )
