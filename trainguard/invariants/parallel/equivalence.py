"""Judgements of what a step comes to on several processes: the loss, the gradients, the update."""

from collections.abc import Iterator
from math import sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Place, number
from trainguard.events.parallel import Likeness
from trainguard.events.trace import Trace

SHARE = 1e-3  # of the quantity: float32 adds up a batch in another order to some parts in 1e6
# Of all parameters together: gradients that cancel, such as that of a bias before a normalisation,
# are nothing but rounding.
ROUNDING = 1e-5
COARSE = 4  # of the spacing of numbers, where more than float32 is rounded
PROPORTIONAL = 1e-2  # what may be left of a difference that is said to be a factor
STATISTICS = (
    "BatchNorm takes its statistics from the rows of each rank: SyncBatchNorm shares them,"
    " where it is meant to be the same"
)


@invariant("parallel")
def loss_equals_one_process(trace: Trace[Likeness]) -> Iterator[Finding]:
    """
    The loss over all processes equals that of one process with the same batch.

    Judges: the mean of the losses of all ranks, their sum, and that of the first rank, with each
        batch that is drawn: of the declared sizes, cut into parts of unequal counts where these may
        be. The smallest one that fails is told.
    Allows: 0.1 % (limit), for one of the three. It is a note where the gradients agree, so that
        only what is reported differs.
    Misses: what float32 rounds away; dropout, for a step that draws random numbers is skipped.
    Why: a mean over ranks of means over unequal counts of tokens gives rare tokens more weight on
        one rank than on the other, and another loss for each number of GPUs.
    Source: huggingface/transformers issues 34242 and 34373 (losses of several devices and of
        accumulation were means of means).
    """
    share = trace.limit("loss_equals_one_process", SHARE)
    wrong = [e for e in trace if e.quantity == "loss" and _differs(e, share)]
    for event in wrong[:1]:
        apart = _list_differing(trace, "gradient", event.world, event.case)
        alone = any(each.lone_statistics for each in trace)
        yield Finding(
            f"the loss of `{trace.subject}` differs between one and several processes",
            f"{event.world} ranks",
            number(event.value, form=".6g") + ", the mean over ranks",
            number(event.reference, form=".6g") + " on one process",
            why=STATISTICS if alone else _explain_loss(event, bool(apart)),
            rank=Rank.BROKEN if apart and not alone else Rank.NOTE,
            event=event,
        )


def _lacks_gradients(trace: Trace[Likeness]) -> str:
    """Return why no gradient can be held against that of one process, or nothing."""
    compared = any(event.quantity == "gradient" for event in trace)
    return "" if compared else "no gradient can be put together from what the ranks hold"


@invariant("parallel", evidence=_lacks_gradients)
def gradients_equal_one_process(trace: Trace[Likeness]) -> Iterator[Finding]:
    """
    Each gradient the optimizer gets equals that of one process with the same batch.

    Judges: the gradient of each parameter on each rank after the step has gone backward, put
        together where it is sharded.
    Allows: 0.1 % of its norm (limit) and 1e-5 of the norm over all parameters; more in
        bfloat16 and float16. Where BatchNorm
        takes its statistics from each rank's rows, a difference is a note.
    Misses: parameters whose parts cannot be put together (FSDP1 without use_orig_params, ZeRO of
        DeepSpeed), those of pipeline stages under other names, what differs only after the first
        step, and what a group of one gets wrong as well. SyncBatchNorm does not run on the CPU.
    Why: a sum in place of a mean trains at another rate with each number of GPUs, a reduction that
        is missing lets the replicas drift apart; the loss falls all the same.
    Source: modelscope/FunASR issue 3472 (no_sync on the wrong micro-batch); pytorch/pytorch issue
        104336; huggingface/transformers issue 34242.
    """
    yield from _judge(trace, "gradient", "gradients_equal_one_process")


def _lacks_agreement(trace: Trace[Likeness]) -> str:
    """Return why no update can be held against that of one process, or nothing."""
    return _lacks_gradients(trace) or (
        "" if _find_agreement(trace) else "the gradients differ already"
    )


@invariant("parallel", evidence=_lacks_agreement)
def update_equals_one_process(trace: Trace[Likeness]) -> Iterator[Finding]:
    """
    Given equal gradients, the optimizer updates each parameter as on one process.

    Judges: the elements whose gradients agree, where those of all parameters do.
    Allows: 0.1 % of the update's norm (limit) and 1e-5 of the norm over all parameters; more in
        bfloat16 and float16. A rate that
        grows with the number of processes is a note.
    Misses: what differs only after the first step.
    Why: an optimizer that was made before the model was sharded moves what nobody trains any more.
    Source: PyTorch, the tutorial of FSDP2 (the optimizer is made after fully_shard).
    """
    agreed = _find_agreement(trace)
    events = tuple(e for e in trace if (e.world, e.case) in agreed)
    kept = Trace(trace.subject, events, trace.conditions, trace.promises)
    yield from _judge(kept, "update", "update_equals_one_process")


def _judge(trace: Trace[Likeness], quantity: str, name: str) -> Iterator[Finding]:
    """Yield a finding for the smallest world that differs: its worst parameter, and the others."""
    share = trace.limit(name, SHARE)
    wrong = [e for e in trace if e.quantity == quantity and _differs(e, share)]
    first = [e for e in wrong if (e.world, e.case) == (wrong[0].world, wrong[0].case)]
    if not first:
        return
    worst = max(first, key=lambda e: (e.apart != e.apart, e.apart))
    scaled = quantity == "update" and "that grows" in _explain_update(worst)
    yield Finding(
        f"the {quantity} of `{trace.subject}` differs between one and several processes",
        _locate(worst),
        number(worst.value) + f", {number(worst.ratio)} times that of one process",
        number(worst.reference)
        + f" on one process, to {number(100 * max(share, COARSE * worst.precision))} %",
        why=_explain_gradient(worst, share) if quantity == "gradient" else _explain_update(worst),
        rank=Rank.NOTE if worst.lone_statistics or scaled else Rank.BROKEN,
        event=worst,
        elsewhere=tuple(_locate(e) for e in first if e is not worst),
    )


def _locate(event: Likeness) -> Place:
    """Return where it differs: how many ranks, the parameter, and on which rank."""
    return Place(f"{event.place}, rank {event.rank} of {event.world}", rank=event.rank)


def _allow(event: Likeness, share: float) -> float:
    """Return how far off a quantity may be."""
    relative = max(share, COARSE * event.precision)
    rounding = max(ROUNDING, event.precision) * event.whole + event.rounding
    return relative * abs(event.reference) + rounding


def _differs(event: Likeness, share: float) -> bool:
    """Say whether a quantity is not that of one process; nor is what is no number."""
    return not event.apart <= _allow(event, share)


def _list_differing(trace: Trace[Likeness], quantity: str, world: int, case: int) -> list[Likeness]:
    """Return what of a quantity differs with one batch on so many processes."""
    share = trace.limit(f"{quantity}s_equal_one_process", SHARE)
    own = (e for e in trace if (e.quantity, e.world, e.case) == (quantity, world, case))
    return [event for event in own if _differs(event, share)]


def _find_agreement(trace: Trace[Likeness]) -> set[tuple[int, int]]:
    """Return for how many processes, and with which batch, all gradients agree."""
    every = {(e.world, e.case) for e in trace}
    return {
        (world, case)
        for world, case in every
        if not _list_differing(trace, "gradient", world, case)
    }


def _explain_loss(event: Likeness, apart: bool) -> str:
    """Guess why the loss differs."""
    if not apart:
        return "the gradients agree: it may be only what is reported"
    factor = _name_factor(event)
    if factor:
        return f"it is {factor} times as large: a sum may stand where a mean does, or the reverse"
    return "it may be the mean of each rank's mean, over unequal counts of rows or tokens"


def _explain_gradient(event: Likeness, share: float) -> str:
    """Guess why a gradient differs."""
    allowed = _allow(event, share)
    if event.lone_statistics:
        return STATISTICS
    if event.between > allowed:
        if event.mean <= allowed or event.sum <= allowed:
            return (
                "each rank keeps the gradient of its own rows: nothing reduces it, as where"
                " model.module(x) is called, the last micro-batch is under no_sync, or a parameter"
                " without a gradient holds up DistributedDataParallel"
            )
        return "the ranks have different gradients: a part of them may not be reduced"
    reasons = {
        "N": "a sum over ranks may stand where the mean does",
        "1/N": "each rank has a sum, or a share of the whole, and the mean over ranks is taken",
        "sqrt(N)": "it may be clipped or scaled by the norm of each rank's part",
        "1/sqrt(N)": "it may be clipped or scaled by a norm that counts each rank's part again",
    }
    if event.shards and max(event.shards) > (1 + PROPORTIONAL) * min(event.shards):
        return "what each rank holds has a factor of its own: it is clipped by the norm of that"
    factor = _name_factor(event)
    if factor:
        return f"it is {factor} times as large: {reasons[factor]}"
    if event.stray <= PROPORTIONAL:
        return "it is the same but for a factor: perhaps of clipping, or of a count of tokens"
    return (
        "the rows of the ranks have unequal weights: perhaps a mean of each rank's mean, over"
        " unequal counts of rows or tokens; or those of other ranks are left out"
    )


def _explain_update(event: Likeness) -> str:
    """Guess why an update differs."""
    if event.lone_statistics:
        return STATISTICS
    if event.value == 0:
        return "the optimizer of this rank may not hold it, or hold it from before it was wrapped"
    if _name_factor(event) in ("N", "sqrt(N)"):
        return "a rate that grows with the number of processes is meant for a batch that does too"
    return "the optimizer may have another rate, or other groups, on several processes"


def _name_factor(event: Likeness) -> str:
    """Return by which factor of the number of processes, N, a quantity is off; "" by none."""
    n = float(event.world)
    known = {"N": n, "1/N": 1 / n, "sqrt(N)": sqrt(n), "1/sqrt(N)": 1 / sqrt(n)}
    if event.stray > PROPORTIONAL:
        return ""
    near = (word for word, f in known.items() if abs(event.ratio - f) <= PROPORTIONAL * f)
    return next(near, "")
