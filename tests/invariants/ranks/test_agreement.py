"""What the judges say about several processes, by digests that are written by hand."""

from dataclasses import replace
from math import nan

import pytest

from trainguard.core.catalogue import catalogue, find_invariants
from trainguard.core.finding import Finding, Rank
from trainguard.events.joined import join, share_columns
from trainguard.events.ranks import (
    RankCourse,
    RankEvaluations,
    RankRun,
    SavedFile,
    SavedShards,
    write_sums,
)
from trainguard.events.trace import Trace

LOOKS = (-1, 0, 1, 2, 3, 4, 8)


def course(rank: int, world: int = 2, **more) -> RankCourse:
    """Write the steps of one of several healthy replicas, with some columns replaced."""
    count = 24
    healthy = RankCourse(
        rank=rank,
        optimizer="AdamW",
        source="/home/me/train.py:12",
        made=count,
        steps=tuple(range(count)),
        rates=((1e-3,),) * count,
        norms=tuple(1.0 + 0.01 * i for i in range(count)),
        updates=(0.01,) * count,
        scales=(1.0,) * count,
        fingerprints=tuple((1000 * (rank + 1) + i,) for i in range(count)),
        waiting=0.01,
        names=("Net.fc1.weight", "Net.fc2.weight"),
        replicas=f"0:{world}:1",
        exchanged=count - 1,
        looks=LOOKS,
    )
    sums = more.pop("sums", tuple((7 * look, 11 * look) for look in LOOKS))
    return replace(healthy, sums=tuple(map(write_sums, sums)), **more)


def joined(*courses: RankCourse, missing: dict[int, str] | None = None) -> Trace:
    """Join the digests of some processes, as the first one does."""
    digests = [
        Trace("train", (RankRun(rank=own.rank, world=len(courses), steps=own.made), own))
        for own in courses
    ]
    return join(digests, missing or {})


def judge(name: str, *courses: RankCourse) -> list[Finding]:
    """Judge some processes with one invariant; what lacks evidence may find nothing."""
    made, trace = find_invariants(f"ranks.{name}")[0], joined(*courses)
    found = list(made.judge(trace))
    assert not (found and made.evidence(trace))
    return found


def unjudged(name: str, *courses: RankCourse) -> str:
    """Return why one invariant has nothing to judge."""
    assert judge(name, *courses) == []
    return find_invariants(f"ranks.{name}")[0].evidence(joined(*courses))


def test_healthy_replicas_agree() -> None:
    """Three replicas with batches of their own: nothing is found, and most had evidence."""
    three = [course(rank, 3) for rank in range(3)]
    names = [made.name for made in catalogue("ranks")]
    assert [name for name in names if judge(name, *three)] == []
    assert [name for name in names if unjudged(name, *three)] == [
        "processes_exchange_gradients",
        "buffers_agree",
        "replicated_parameters_agree",
        "replicated_activations_agree",
        "scale_is_shared",
        "decisions_are_shared",
        "collectives_match",
        "timeouts_are_sane",
        "reduction_keeps_its_dtype",
        "epochs_are_reshuffled_on_all_ranks",
        "random_numbers_differ_between_ranks",
        "splits_are_the_same",
        "batch_is_shared_by_the_world",
        "gradients_keep_their_size",
        "one_rank_writes",
    ]


def test_other_parameters() -> None:
    """The first look, the parameter and its process are told; what else differs is the reason."""
    sums = tuple((7 * look, 11 * look + (look > 2)) for look in LOOKS)
    norms = tuple(1.0 + 0.01 * i + 0.1 * (i > 2) for i in range(24))
    odd = course(1, 3, sums=sums, norms=norms)
    (found,) = judge("replicas_agree", course(0, 3), odd, course(2, 3))
    assert found.at == "step 3 of AdamW, rank 1, Net.fc2.weight"
    assert (found.at.step, found.at.rank, found.rank) == (3, 1, Rank.BROKEN)
    assert found.measured == "3 of 7 looks found different bits"
    assert "gradients differ" in found.why
    (found,) = judge("gradients_agree", course(0, 3), odd, course(2, 3))
    assert found.measured == "21 of 24 steps, first with norms 1.03 and 1.13"


def test_models_apart_that_step_with_the_same_gradients() -> None:
    """Who averages gradients by hand trains one model; another one from the beginning is none."""
    apart = tuple((7 * look + 1, 11 * look + 3) for look in LOOKS)
    own, other = course(0, replicas=""), course(1, replicas="", sums=apart)
    (found,) = judge("replicas_agree", own, other)
    assert found.at == "before the first step, rank 1, Net.fc1.weight"
    assert (found.rank, found.measured) == (Rank.BROKEN, "7 of 7 looks found different bits")
    assert "nobody broadcast" in found.why
    for norms in ((1.0,) * 24, tuple(1.0 + 0.02 * i for i in range(24)), (nan,) * 24):
        reason = unjudged("replicas_agree", own, replace(other, norms=norms))
        assert reason == "no two processes are replicas of each other"
    constant = [replace(each, norms=(1.0,) * 24) for each in (own, other)]
    assert unjudged("replicas_agree", *constant)


def test_bits_that_a_rounding_explains_are_a_note() -> None:
    """Where norms and updates are alike, a bit more or less fails nobody."""
    odd = course(1, sums=tuple((7 * look, 11 * look + (look > 2)) for look in LOOKS))
    (found,) = judge("replicas_agree", course(0), odd)
    assert found.rank is Rank.NOTE


def test_different_beginnings() -> None:
    """Replicas that begin apart are told so, before anything else."""
    sums = tuple((7 * look + 1, 11 * look) for look in LOOKS)
    (found,) = judge("replicas_agree", course(0), course(1, sums=sums, updates=(0.02,) * 24))
    assert found.at.startswith("before the first step, rank 1, Net.fc1.weight")


@pytest.mark.parametrize("more", [{"sharded": True}, {"lone": True}])
def test_what_cannot_be_told_is_not_judged(more) -> None:
    """Shards, and processes that go their own way for a while, are no replicas that differ."""
    sums = tuple((look, look) for look in LOOKS)
    pair = course(0, **more), course(1, sums=sums, norms=(nan,) * 24, **more)
    assert unjudged("replicas_agree", *pair)
    assert unjudged("gradients_agree", *pair)


def test_two_groups_of_replicas_are_two() -> None:
    """Two data-parallel groups of tensor-parallel pairs: what differs between groups is meant."""
    other = tuple((3 * look, 5 * look) for look in LOOKS)
    four = [course(0, replicas="0:3:2"), course(1, replicas="1:4:2", sums=other)]
    same = four[0].fingerprints  # a pair sees the same data
    four += [course(2, replicas="0:3:2"), course(3, replicas="1:4:2", sums=other)]
    four[1] = replace(four[1], fingerprints=same)
    four[3] = replace(four[3], fingerprints=four[2].fingerprints)
    for name in ("replicas_agree", "gradients_agree", "ranks_see_different_data"):
        assert judge(name, *four) == []


def test_steps_that_one_leaves_out() -> None:
    """Different numbers of steps are told once: what is then compared by number means nothing."""
    short = course(1, made=20, norms=(9.0,) * 24, rates=((1.0,),) * 24)
    (found,) = judge("ranks_make_the_same_steps", course(0), short)
    assert found.measured == "20 steps against 24"
    assert judge("optimizers_agree", course(0), short) == []
    assert judge("ranks_make_the_same_steps", course(0, lone=True), replace(short, lone=True)) == []


def test_rates_and_scales() -> None:
    """The first step at which a rate or a factor differs, and both of its values."""
    rates = tuple((1e-3 if i < 5 else 2e-3,) for i in range(24))
    (found,) = judge("optimizers_agree", course(0), course(1, rates=rates))
    assert found.measured == "19 of 24 steps, first 0.002 against 0.001"
    scaled = course(0, scales=(1024.0,) * 24)
    (found,) = judge("scale_is_shared", scaled, course(1, scales=(512.0,) * 24))
    assert found.measured == "24 of 24 steps, first 512 against 1024"
    assert unjudged("scale_is_shared", scaled, course(1, scales=(1024.0,) * 24)) == ""


@pytest.mark.parametrize(("gradients", "found"), [(0, 0), (3, 0), (5, 1), (24, 1)])
def test_states_that_follow_from_gradients(gradients, found) -> None:
    """Momenta that part after other gradients are told by these alone."""
    states = tuple(look + 100 for look in LOOKS)
    sums = tuple((7 * look, 11 * look + (look > 2)) for look in LOOKS)
    norms = tuple(1.0 + 0.01 * i + 0.1 * (i >= gradients) for i in range(24))
    odd = tuple(state + (look > 2) for state, look in zip(states, LOOKS, strict=True))
    pair = course(0, states=states), course(1, states=odd, norms=norms, sums=sums)
    assert len(judge("optimizers_agree", *pair)) == found


def test_a_step_that_only_one_begins() -> None:
    """One ends as it should, the other fails in a pass of the next step: the first ended early."""

    def judged(*ends: str) -> list[Finding]:
        """Judge two processes that end so."""
        runs = [RankRun(rank=rank, world=2, ended=end) for rank, end in enumerate(ends)]
        trace = Trace("train", (*runs, course(0, begun=True), course(1)))
        return list(find_invariants("ranks.ranks_make_the_same_steps")[0].judge(trace))

    (found,) = judged("failed", "finished")
    assert (found.measured, found.at.rank) == ("24 steps against 24 and one that was begun", 1)
    assert judged("finished", "finished") == []  # a look at something afterwards
    assert judged("failed", "failed") == []  # it took the other one with it


def test_who_left_and_who_waits() -> None:
    """The first process is told although it came to its end, and the line where the other waits."""
    place = "/home/me/train.py:9, in forward"
    waiting = RankRun(rank=1, world=2, ended="failed", standing=place)
    gone = RankRun(rank=0, world=2)
    trace = Trace("train", (gone, waiting, course(0), course(1)))
    (found,) = find_invariants("ranks.ranks_make_the_same_steps")[0].judge(trace)
    assert found.at == "step 24 of AdamW, rank 0"
    assert found.why.startswith("rank 0 had left, rank 1 waits at train.py:9, in forward: perhaps")
    between = replace(waiting, standing="/home/me/train.py:9, in all_reduce")  # of no pass
    trace = Trace("train", (gone, between, course(0), course(1)))
    assert list(find_invariants("ranks.ranks_make_the_same_steps")[0].judge(trace)) == []


def test_metrics_of_one_process() -> None:
    """They break where a rate has followed them, and are a note before; roundings are nothing."""
    one, other = course(0, metrics=(2.0, 1.5, 1.25), metric="val"), (2.0, 1.0, 2.0)
    (found,) = judge("decisions_are_shared", one, course(1, metrics=other))
    assert (found.rank, found.at) == (Rank.NOTE, "val of AdamW's scheduler, ranks 0 and 1")
    assert found.measured == "2 of 3 times, first 1 and 1.5"
    rates = ((1e-3,),) * 12 + ((5e-4,),) * 12
    (found,) = judge("decisions_are_shared", one, course(1, metrics=other, rates=rates))
    assert found.rank is Rank.BROKEN
    rounded = course(1, metrics=(2.0, 1.50001, 1.25))
    assert unjudged("decisions_are_shared", one, rounded) == ""
    assert unjudged("decisions_are_shared", one, course(1))  # who decides tells the others
    assert judge("decisions_are_shared", one, course(1, metrics=(9.0,))) == []


@pytest.mark.parametrize(
    ("second", "rank"),
    [
        ({}, Rank.BROKEN),
        ({"steps": (0, 16)}, Rank.NOTE),
        ({"steps": (4, 12)}, None),
        ({"name": "last_1.pt"}, None),
        ({"folder": "b:1:2"}, None),
    ],
)
def test_files_of_several_processes(second, rank) -> None:
    """The same file of the same folder after the same step; before any step it may be a cache."""
    saved = SavedFile(name="last.pt", folder="a:1:2", steps=(0, 8))
    other = replace(saved, rank=1, **second)
    trace = Trace("train", (saved, other))
    found = list(find_invariants("ranks.one_rank_writes")[0].judge(trace))
    assert [one.rank for one in found] == ([rank] if rank else [])


STEPS = (8, 16, 24, 32, 40, 48)
OWN = ((5.0, 4.0, 6.0, 3.0, 6.0, 7.0), (5.0, 6.0, 4.0, 9.0, 3.0, 8.0))  # mean: 8, 24 and 40
LOWEST = ((8, 16, 32), (8, 24, 40))


@pytest.mark.parametrize(
    ("saved", "rank"),
    [
        ([("best.pt", LOWEST[0]), ("best.pt", LOWEST[1])], Rank.BROKEN),
        ([("best0.pt", LOWEST[0]), ("best1.pt", LOWEST[1])], Rank.NOTE),
        ([("best.pt", LOWEST[0])], Rank.NOTE),
        ([("best.pt", (8, 24, 40))], None),  # by the mean of all
        ([("best.pt", (8, 24, 40)), ("best.pt", (8, 24, 40))], None),
        ([("even.pt", (8, 24, 40)), ("even.pt", (16, 32, 48))], None),  # in turns
        ([("last.pt", STEPS)], None),
    ],
)
def test_models_chosen_by_own_losses(saved, rank) -> None:
    """Broken where several save one file so, a note where one does or each has its own file."""
    runs = [RankRun(rank=n, world=2, steps=48) for n in range(2)]
    made = [
        RankEvaluations(rank=n, module="Net", steps=STEPS, losses=losses)
        for n, losses in enumerate(OWN)
    ]
    files = [
        SavedFile(rank=n, name=name, folder="a:1:2", steps=steps)
        for n, (name, steps) in enumerate(saved)
    ]
    decided = find_invariants("ranks.decisions_are_shared")[0]
    trace = Trace("train", (*runs, course(0), course(1), *made, *files))
    assert decided.evidence(trace) == ""
    assert [one.rank for one in decided.judge(trace)] == ([rank] if rank else [])
    same = [replace(one, losses=OWN[0]) for one in made]  # each evaluates the whole data
    trace = Trace("train", (*runs, course(0), course(1), *same, *files))
    assert list(decided.judge(trace)) == []


def test_an_evaluation_after_which_one_leaves() -> None:
    """A note of who left at once after it, where the losses of the others were others."""
    runs = [RankRun(rank=0, world=2, steps=16), RankRun(rank=1, world=2, steps=16, ended="failed")]
    made = [
        RankEvaluations(rank=n, module="Net", steps=STEPS[:2], losses=losses[:2])
        for n, losses in enumerate(OWN)
    ]
    decided = find_invariants("ranks.decisions_are_shared")[0]
    more = course(0, made=16), course(1, made=24)
    runs[1] = replace(runs[1], steps=24)
    (found,) = decided.judge(Trace("train", (*runs, *more, *made)))
    assert (found.rank, found.at) == (Rank.NOTE, "the evaluation after 16 steps, rank 0")
    same = [replace(one, losses=OWN[0][:2]) for one in made]
    assert list(decided.judge(Trace("train", (*runs, *more, *same)))) == []
    # The other one waits in the very next step, which it does not make.
    runs[1] = replace(runs[1], steps=16, standing="/home/me/train.py:9, in backward")
    alike = course(0, made=16), course(1, made=16)
    (found,) = decided.judge(Trace("train", (*runs, *alike, *made)))
    assert found.at == "the evaluation after 16 steps, rank 0"


@pytest.mark.parametrize(
    ("lost", "changed", "rank"),
    [(1, False, Rank.BROKEN), (1, True, Rank.NOTE), (0, False, None)],
)
def test_shards_that_are_not_there(lost, changed, rank) -> None:
    """Each process tells of the same folder; where that has changed since, it is a note."""
    shards = SavedShards(
        name="last",
        folder="a:1:2",
        shards=2,
        lost=lost,
        missing=("__1_0.distcp",) * lost,
        changed=changed,
    )
    trace = Trace("train", (shards, replace(shards, rank=1)))
    found = list(find_invariants("ranks.one_rank_writes")[0].judge(trace))
    assert [one.rank for one in found] == ([rank] if rank else [])
    assert all(one.at == "last, __1_0.distcp" for one in found)


@pytest.mark.parametrize(
    ("shared", "found"),
    [(24, True), (13, True), (12, False), (0, False)],
)
def test_the_same_batches(shared, found) -> None:
    """More than half of the steps from inputs of another rank is no coincidence."""
    prints = tuple((1000 + i if i < shared else 5000 + i,) for i in range(24))
    assert (
        bool(judge("ranks_see_different_data", course(0), course(1, fingerprints=prints))) == found
    )


def test_inputs_that_never_change_are_a_benchmark() -> None:
    """The same random batch in all steps of all processes is meant."""
    pair = course(0, fingerprints=((5,),) * 24), course(1, fingerprints=((5,),) * 24)
    assert "no inputs" in unjudged("ranks_see_different_data", *pair)


@pytest.mark.parametrize(
    ("drawn", "shared", "found"),
    [(24, 0, True), (24, 24, False), (3, 0, False), (24, 10, True)],
)
def test_the_same_random_numbers(drawn, shared, found) -> None:
    """A note where most steps that draw draw the same, for inputs that differ."""
    draws = tuple((100 + i if i < drawn else 0, 0, 0) for i in range(24))
    prints = tuple((1000 + i if i < shared else 5000 + i,) for i in range(24))
    pair = course(0, draws=draws), course(1, draws=draws, fingerprints=prints)
    notes = judge("random_numbers_differ_between_ranks", *pair)
    assert [one.rank for one in notes] == [Rank.NOTE] * found
    other = replace(pair[1], draws=tuple((900 + i, 0, 0) for i in range(24)))
    assert judge("random_numbers_differ_between_ranks", pair[0], other) == []


def test_processes_that_train_apart() -> None:
    """Alike before the first step, different after the last, and nothing exchanged in between."""
    alone = {"replicas": "", "exchanged": 0}
    sums = tuple((7 * look + (look >= 0), 11 * look) for look in LOOKS)
    pair = course(0, **alone), course(1, sums=sums, **alone)
    (found,) = judge("processes_exchange_gradients", *pair)
    assert found.measured == "0 exchanges between 24 steps of 2 processes"
    other = replace(pair[1], exchanged=1)
    assert judge("processes_exchange_gradients", pair[0], other) == []
    ensemble = replace(pair[1], sums=tuple(write_sums((look, look - 1)) for look in LOOKS))
    assert judge("processes_exchange_gradients", pair[0], ensemble) == []


def test_buffers_that_nobody_broadcasts() -> None:
    """They are a note where they differ in the end; broadcast ones are not compared."""
    (found,) = judge("buffers_agree", course(0, buffers=(1, 2)), course(1, buffers=(1, 3)))
    assert found.rank is Rank.NOTE
    assert judge("buffers_agree", course(0, buffers=(1, 3)), course(1, buffers=(2, 3))) == []


def test_one_that_others_wait_for() -> None:
    """A process that waits for data in most of a step, where the others do not."""
    late = course(1, 3, waiting=0.8)
    (found,) = judge("stragglers_are_rare", course(0, 3), late, course(2, 3))
    assert (found.rank, found.at.rank) == (Rank.NOTE, 1)
    assert judge("stragglers_are_rare", late, replace(late, rank=2)) == []


def test_a_digest_can_be_written_and_read() -> None:
    """What a process tells crosses a store as text; equal columns of two are one object then."""
    known = {}
    texts = [joined(course(rank)).to_text() for rank in range(2)]
    read = [share_columns(Trace.from_text(text), known) for text in texts]
    first, second = [e for e in join(read) if isinstance(e, RankCourse)]
    assert first == course(0)
    assert first.sums is second.sums
    assert first.fingerprints != second.fingerprints
