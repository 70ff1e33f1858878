"""Judgements of the states that agents act on and learn from."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events

_MOVES = 3  # steps whose batches of moves agree
_STAY = 0.97  # of states: an environment moves more often, and resets put others in their place
_BATCHES = 8  # that are learned from
_FROZEN = 0.9  # of them: in the first ones of a memory a state may be there several times


@invariant("loop", evidence=has_probe("moves", "no batch of states and what follows them was seen"))
def states_move_on(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The next states in a batch of transitions are not the states themselves.

    Judges: batches with rewards, states and, by its name, what follows each, which is given to a
        network: whether 97 % of the rows are the same in both, though they differ from each other,
        over all steps that were looked at, 3 at least. By no name, what networks are asked about
        without a graph before a loss gathers, of what one returns for states, a value for each.
    Allows: states that stay where they are more often than not.
    Misses: policies whose tables have other names; accelerators; batches that are one object.
    Why: an environment that changes the array which it has handed out changes what was stored: each
        state of the memory is the one that came later.
    Source: google-deepmind/dm_control issue 34; openai/baselines pull request 418;
        Farama-Foundation/SuperSuit pull request 116.
    """
    for probe in events(trace, Probe):
        if probe.probe == "moves" and probe.step >= _MOVES and _all_stay(probe):
            yield Finding(
                f"the next states of `{trace.subject}` are the same as its states",
                "batches of moves",
                portion(probe.measured, probe.reference, "states") + " are followed by themselves",
                "some of them, where nothing can move",
                why="perhaps the environment changes the array that it has returned: store copies",
                event=probe,
            )
            return


def _all_stay(probe: Probe) -> bool:
    """Say whether hardly any state is followed by another one."""
    return probe.measured >= _STAY * probe.reference


@invariant("loop", evidence=has_probe("acted", "no module acted on states before it learned"))
def states_learned_from_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The states that an agent learns from are as varied as those that it acted on.

    Judges: the first 32 batches of a module that is given a few rows at a time, of numbers on the
        CPU, and learns from 16 or more: whether 9 of 10 of these, 8 at least, have four times as
        many rows as different ones (16 times, where it learned before it was asked), though so many
        different states were acted on, and most of them were. Broken where half as many as a batch
        has rows were acted on since the one before, as in a rollout. Else a note.
    Allows: states that come again; a step that learns from another pass too, as where each state is
        repeated for several actions, but for those that are their own next states too.
    Misses: memories in which a network of another name acts, or none; 16 environments and more at
        once; accelerators.
    Why: an environment that changes the array which it has handed out changes what was stored: all
        states of an episode have become its last.
    Source: google-deepmind/dm_control issue 34; openai/baselines pull request 418.
    """
    for probe in events(trace, Probe):
        few = probe.reference < _BATCHES or probe.measured < _FROZEN * probe.reference
        if probe.probe != "acted" or few:
            continue
        yield Finding(
            f"`{trace.subject}` acts on many states, and learns from hardly any",
            "batches that " + probe.label + " learns from",
            portion(probe.measured, probe.reference, "batches")
            + " have four times as many rows as states, or more",
            "about as many states as rows, as it acted on",
            why="perhaps the environment changes the array that it has returned: store copies",
            rank=Rank.BROKEN if 2 * probe.step >= probe.measured else Rank.NOTE,
            event=probe,
        )
        return


@invariant("loop", evidence=has_probe("alike starts", "no agent beside generators was seen"))
def episodes_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The training episodes of an agent are not all reset with the same seed.

    Judges: agents that act on a few states at a time, of numbers on the CPU, before they learn from
        more: whether one state is the first that they act on after a line has made a generator of
        numpy from one seed, 8 times or more and in a quarter of the times, and is learned from in 3
        of the first 32 batches. Broken where that line makes generators from two other seeds or
        more, as for tests.
    Allows: environments that begin in one state by themselves, whatever the seed; actions that are
        drawn before a network is asked. A note where a line knows one seed: it may be that of a
        place which is the same on purpose.
    Misses: generators that are not numpy's default_rng, or not called by that name in np.random;
        16 environments and more at once; accelerators.
    Why: reset(seed=...) in the loop makes the generator of an environment anew, so that the agent
        learns one episode by heart, and its returns rise as if it had learned the task.
    Source: Farama-Foundation/Gymnasium, Env.reset ("right after the environment has been
        initialized and then never again").
    """
    for probe in events(trace, Probe):
        if probe.probe == "alike starts":
            agent, seed = probe.label.split("\n")
            yield Finding(
                f"the episodes of `{trace.subject}` all begin by one seed",
                f"states that {agent} acts on and learns from",
                portion(probe.measured, probe.reference, "episodes")
                + f" begin with one state, by seed {seed}",
                "another seed for each, or one generator for all of them",
                why="reset(seed=...) in each episode makes its generator anew: give it a seed once",
                rank=Rank.BROKEN if probe.step > 1 else Rank.NOTE,
                event=probe,
                source=probe.source,
            )
            return


@invariant("loop", evidence=has_probe("likeliest", "no policy was asked about actions it was paid"))
def actions_are_drawn(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A policy trained on log-probabilities samples its actions, not always the likeliest.

    Judges: what Categorical and Normal are asked the log-probability of, with a graph, beside a
        variable with the name of a reward, a return or an advantage: whether all of the first 4096
        are the likeliest (or the mean itself), though the policy is so unsure of them that chance
        would choose so once in e^40 runs, and gives them less than e^-0.25 in the mean.
    Allows: policies that are sure; actions of which one is another than the likeliest.
    Misses: policies by hand; actions on an accelerator.
    Why: the gradient of a policy is that of what it draws. One that always takes the likeliest
        action never tries another one, and learns to do more of what it does.
    Source: Williams, 1992 (REINFORCE: an action is drawn from its probabilities);
        scottviteri/MarkovianTraining issue 42; huggingface/deep-rl-class issue 582.
    """
    for probe in events(trace, Probe):
        if probe.probe == "likeliest":
            yield Finding(
                f"a policy of `{trace.subject}` learns from its likeliest actions alone",
                "actions whose log-probability is learned",
                portion(probe.measured, probe.measured, "actions")
                + f" are the likeliest, of a probability of {probe.reference:.2g} in the mean",
                "as often the likeliest as it is likely",
                why="take action = policy.sample(); argmax, and the mean, are for evaluations",
                event=probe,
            )


@invariant("loop", evidence=has_probe("unread draw", "no log-probability of a draw was learned"))
def actions_learned_from_are_taken(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A policy loss uses the log-probabilities of the actions that were taken.

    Judges: losses that lead to a log_prob() with a graph, of what the same distribution draws
        there, or of a variable that is given such a draw once and read nowhere else.
    Allows: draws of another distribution, as of a teacher; draws with a graph (rsample()).
    Misses: draws that are read for a log alone; policies by hand.
    Why: whatever such a log-probability is multiplied by has not come of the draw, so that its
        gradient is zero in the mean: the policy learns nothing but noise.
    Source: aseuteurideu/ADNet_pytorch issue 5 (the likeliest action is taken, and the probability
        of a drawn one is stored); Williams, 1992 (REINFORCE).
    """
    for probe in events(trace, Probe):
        if probe.probe == "unread draw":
            yield Finding(
                f"a policy of `{trace.subject}` learns from actions that nothing has taken",
                "losses that were looked at",
                portion(probe.measured, probe.reference, "losses")
                + " learn how likely a draw is that nothing else reads",
                "the log-probability of what was taken",
                why="each sample() draws once more: keep the action, take it, and ask for its own"
                " log_prob(action)",
                event=probe,
                source=probe.source,
            )
