"""Judgements of states that a training loads, keeps and goes on with."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, integer, number, portion
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import either, has_probe
from trainguard.invariants.loop.wording import (
    and_more,
    events,
    percent,
)

_REPLACED = 0.05  # of a parameter; a projection after the last step before saving moves it less


@invariant("loop", evidence=has_probe("matched", "no state was loaded"))
def loaded_state_matches(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A loaded state dict has entries that match the module.

    Judges: each load_state_dict, how many names of the state were found in the module; whether
        frozen parameters are left as they were drawn, while the state has others of the same shape
        under their names without the word of a wrapper, or with one more (half of all that it
        has too much, or more).
    Allows: any number but none; an empty state; what is trained later on, as a new head is; another
        try before the next step, with other names or into another part of the module.
    Misses: other states of which little is found; names that are left out before they are loaded.
    Why: with strict=False, names that all begin with `module.` load nothing without a word, and
        what was to be fine-tuned is trained from scratch, or frozen as it was drawn.
    Source: pytorch/examples issue 1029; pytorch/pytorch issue 141256.
    """
    for probe in events(trace, Probe):
        if probe.probe == "renamed" and 2 * probe.measured >= probe.reference:
            yield Finding(
                f"a state dict that `{trace.subject}` loads skips frozen parameters",
                at_step(probe.step) + f", {probe.label}",
                portion(probe.measured, probe.reference, "names")
                + " of the state fit parameters that are called otherwise",
                "none",
                why="strict=False leaves out what does not match: load the state before layers are"
                " wrapped, or rename what is in it",
                event=probe,
            )
        if probe.probe == "matched" and probe.measured < 1 <= probe.reference:
            yield Finding(
                f"a state dict that `{trace.subject}` loads matches no name of its module",
                at_step(probe.step) + f", {probe.label}",
                portion(probe.measured, probe.reference) + " names found",
                "all of them, or those that are meant",
                why="strict=False leaves out what does not match; a prefix of the names has perhaps"
                " to be added or removed",
                event=probe,
            )


@invariant("loop", evidence=has_probe("overwritten", "no loaded state was used"))
def loaded_state_is_used(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Loaded weights are not overwritten before or during the first forward pass.

    Judges: the first pass of a module after a load that has changed it: whether a parameter is then
        another one than it was when the pass began, by 5 % (limit) of it; and whether before that
        pass all matrices that the load has changed have got unrelated values, with a cosine below
        0.5. A note where most of them have.
    Allows: parameters that a pass only scales or makes smaller, as a bound on norms does; passes in
        which a step is made; those that the load left as they were.
    Misses: buffers; parameters of 65536 elements and more; changes of less.
    Why: what a layer takes from the first batch that it sees (its scale, its codes), it takes again
        from the first batch after a load, unless the mark of that is in the state dict.
    Source: chaiyujin/glow-pytorch, whose `inited` is an attribute that set_actnorm_init has to set
        after a load; CompVis/taming-transformers keeps `initialized` as a buffer.
    """
    least = trace.limit("loaded_state_is_used", _REPLACED)
    found = [p for p in events(trace, Probe) if p.probe == "overwritten" and p.measured > least]
    for probe in found[:1]:
        yield Finding(
            f"a pass of `{trace.subject}` overwrites what was loaded",
            at_step(probe.step) + ", " + and_more(p.label for p in found),
            "changed by " + percent(probe.measured) + " of it in the first pass after the load",
            "as it was loaded",
            why="perhaps the layer initialises itself at its first batch, and what says that it has"
            " is a plain attribute: register_buffer() puts it into the state dict",
            event=probe,
        )
    for probe in events(trace, Probe):
        if probe.probe == "load lost":
            every = probe.measured == probe.reference
            yield Finding(
                f"what `{trace.subject}` loads is overwritten before it is used",
                f"{probe.label}, before the first pass after the load",
                "other values in "
                + portion(probe.measured, probe.reference, "matrices that were loaded"),
                "as they were loaded",
                why="initialise first, and load after it: `self.apply(init)` draws every layer"
                " anew, the loaded ones too",
                rank=Rank.BROKEN if every else Rank.NOTE,
                event=probe,
            )


@invariant("loop", evidence=has_probe("partial", "no state was loaded in part"))
def restored_state_is_whole(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A restored state contains all parameters that were trained together with it.

    Judges: loads with strict=False of values that the module had after an earlier step, known by
        one number of each parameter, and that leave out parameters which were trained with them and
        have other values now: where the module is evaluated after that and trained no more. A note
        where it is a new module of the same class, that has what is left out as it was drawn.
    Allows: frozen parameters that are left out, those that are as they were; other values than
        those of an earlier state, as the mean of clients is; parts that are trained after the load.
    Misses: states that were taken neither by state_dict() nor after an evaluation; parameters on an
        accelerator; more than 512 parameters or 256 states; buffers.
    Why: the adapters of the best epoch and the head of the last one were never trained together,
        and with strict=False the load says nothing. What is saved for later lacks the head as well.
    Source: huggingface/peft, whose `modules_to_save` is there to keep a head with its adapters.
    """
    found = [probe for probe in events(trace, Probe) if probe.probe == "partial"]
    for probe in sorted(found, key=lambda probe: -probe.reference)[:1]:
        yield Finding(
            f"a state that `{trace.subject}` restores lacks what was trained with it",
            at_step(probe.step) + f", {probe.label}",
            integer(probe.measured, "parameters")
            + (" of a later step" if probe.reference else " as they were drawn"),
            "those of the same step as the rest",
            why="keep them in the state too: all that requires a gradient, and not only what a name"
            " selects",
            rank=Rank.BROKEN if probe.reference else Rank.NOTE,
            event=probe,
            source=probe.source,
        )


@invariant("loop", evidence=has_probe("tied", "no module shares a parameter with another one"))
def ties_hold(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Tied parameters stay one shared parameter.

    Judges: parameters that are registered with several modules, as of an embedding and the layer
        over its words: whether two stand in their places at the first step of their optimizer, and
        differ after a step. A note where a load has put two values there.
    Allows: whatever the user's own lines, or a library other than torch, put there instead; two
        that stay equal, as where their gradients are added up; parameters that were replaced by
        what computes them.
    Misses: ties within copies of a module; parameters that share their memory alone; ties that a
        library undoes.
    Why: to_empty(), load_state_dict(assign=True) and parallelize_module make a parameter for each
        place: a larger model, of which the tied one that is saved or evaluated has one half.
    Source: pytorch/pytorch issue 188346; Modalities/modalities issue 357; facebookresearch/lingua
        issue 74.
    """
    found = [probe for probe in events(trace, Probe) if probe.probe == "tied"]
    for probe in sorted(found, key=lambda probe: -probe.reference)[:1]:
        yield Finding(
            f"parameters of `{trace.subject}` that were tied are trained apart",
            at_step(probe.step) + ", " + and_more(p.label for p in found),
            integer(probe.measured, "parameters") + " with different values",
            integer(1, "parameter") + ", as the modules were built",
            why="perhaps to_empty(), a load with assign=True, or parallelize_module put"
            " new ones there: tie them again after that, before the optimizer is made",
            rank=Rank.BROKEN if probe.reference else Rank.NOTE,
            event=probe,
        )


@invariant("loop", evidence=has_probe("restored", "no state was loaded"))
def kept_state_is_a_copy(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A state dict that is kept to be restored later is a copy.

    Judges: each load_state_dict of a module whose parameters all come from its own memory, where
        steps or other loads came since `state_dict()` returned it, or last returned any, where each
        tensor was detached where it is. A note where none did, unless one line takes the state of a
        module and loads it into the same: by one name, or at two steps. Two and more states that
        one line took of a module, between steps, and that share its memory: where they are loaded
        one after another, or the module's own numbers are loaded as if they were the mean of them
        (within 1e-5 of each number). A note where it may be a mere copy.
    Allows: copies, states read from files, states of other modules; those that are not loaded.
    Misses: optimizers' states; files that such a state is written to; means of states that are
        loaded to another device.
    Why: state_dict() returns the live tensors, and training goes on in them: what is restored as
        the best model is the last one.
    Source: WenjieDu/PyPOTS issue 667; pytorch/tutorials pull request 188.
    """
    probes = [probe for probe in events(trace, Probe) if probe.probe == "restored"]
    for probe in sorted(probes, key=lambda probe: -probe.measured - probe.reference)[:1]:
        yield Finding(
            f"a state dict that `{trace.subject}` loads is the live model, not a copy",
            "loaded at " + at_step(probe.step) + f", {probe.label}",
            "the memory of the model" if probe.measured else "the model as it is",
            "a copy of what it was" if probe.measured else "something else",
            why="state_dict() returns the live tensors: keep copy.deepcopy(model.state_dict())"
            if probe.measured
            else "load the state of the other module, target.load_state_dict(online.state_dict()),"
            " and make target a copy, not a second name: target = copy.deepcopy(online)"
            if probe.reference
            else "perhaps nothing of another state was put into it before it was loaded",
            rank=Rank.BROKEN if probe.measured or probe.reference else Rank.NOTE,
            event=probe,
        )
    shared = [probe for probe in events(trace, Probe) if probe.probe == "one memory"]
    for probe in sorted(shared, key=lambda probe: -probe.reference)[:1]:
        yield Finding(
            f"state dicts that `{trace.subject}` keeps share one memory",
            "loaded at " + at_step(probe.step) + f", {probe.label}",
            integer(probe.measured, "states") + " in one memory, all of them the last",
            "a copy for each of them",
            why="state_dict() returns the live tensors, and training went on in them: keep"
            " copy.deepcopy(model.state_dict())",
            rank=Rank.BROKEN if probe.reference else Rank.NOTE,
            event=probe,
        )


@invariant(
    "loop",
    evidence=either(
        has_probe("resumed", "no schedule went on from a file"), has_probe("resumed place", "-")
    ),
)
def schedule_is_resumed(trace: Trace[Event]) -> Iterator[Finding]:
    """
    When an optimizer is resumed from a file, its learning rate schedule is resumed too.

    Judges: schedules in a file that was read: at the next step of an optimizer that was loaded
        since, whether its schedule of the same settings has been advanced as often. Where no state
        of one was read: whether the first step is made at the rate that came with the optimizer,
        and the schedule then goes to one near its own beginning, at least twice as far away.
        Schedules that are told where they go on, make the rate leap, and are advanced by each step:
        whether the optimizer had made twice as many steps by then, or more.
    Allows: schedules of other settings, as of another stage; files of which no optimizer is loaded;
        schedules that had hardly begun, that are made after the optimizer is loaded, or that go on
        from the rate that they find.
    Misses: schedules that are functions, of which only the place is judged, and that not beside
        optimizers that count no steps (SGD); files not read by torch.load, but for the rates.
    Why: a schedule that begins again warms up once more, from the rate that it had come down to.
    Source: lightly-ai/lightly-train pull request 301; ultralytics/yolov5 issue 292.
    """
    for probe in events(trace, Probe):
        if probe.probe == "resumed" and probe.measured < probe.reference:
            yield Finding(
                f"`{trace.subject}` goes on from a file, and its schedule begins anew",
                at_step(probe.step) + f", {probe.label}",
                "advanced " + integer(probe.measured, "times"),
                "advanced " + integer(probe.reference, "times") + ", as in the file",
                why="the file has its state: scheduler.load_state_dict() is missing",
                event=probe,
            )
        elif probe.probe == "resumed place":
            yield Finding(
                f"a schedule of `{trace.subject}` goes on at another place than its optimizer",
                f"{probe.label}, advanced by each step from there",
                "at advance " + integer(probe.measured),
                "near " + integer(probe.reference, "steps, as its optimizer had made by then"),
                why="last_epoch counts what step() is called for: steps here, and not epochs",
                event=probe,
                source=probe.source,
            )
    if any(probe.probe == "resumed" for probe in events(trace, Probe)):
        return
    for probe in events(trace, Probe):
        if probe.probe == "resumed rate":
            yield Finding(
                f"an optimizer of `{trace.subject}` goes on, and its schedule begins anew",
                at_step(probe.step) + f", {probe.label}",
                number(probe.measured),
                number(probe.reference, "or near it: the rate that was loaded and stepped with"),
                why="perhaps its state is not saved: keep it beside the state of the optimizer",
                event=probe,
            )


@invariant(
    "loop",
    evidence=has_probe("resumed optimizer", "no weights of a file that counts were learned on"),
)
def optimizer_is_resumed(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A training that counts on from a file goes on with its optimizer's state.

    Judges: files that have weights and a number of epochs or steps, 2 or more: the first step that
        an optimizer makes from these weights, where it has no state and gets averages by its steps,
        and where a number of the script is that of the file, or one more, and counts on from there.
        Broken where the file has the state of an optimizer with the same rate and as many
        parameters, a note where it has none.
    Allows: optimizers without averages, as SGD without momentum; trainings that count from the
        beginning, as where a model is tuned for something else; another rate than that of the file,
        or of what was trained before, as of another stage.
    Misses: files not read by torch.load, or whose number is in no variable; trainings that end
        before the next epoch.
    Why: the averages of Adam begin at zero again: the first updates are as large as the rate
        whatever the gradients are, at a place where the training made small ones.
    Source: PyTorch's tutorial "Saving and loading a general checkpoint"; EvolvingLMMs-Lab/
        OneVision-Encoder pull request 65; NVlabs/stylegan2-ada-pytorch issue 108.
    """
    for probe in events(trace, Probe):
        if probe.probe == "resumed optimizer":
            name, kind = probe.label.split("\n")
            yield Finding(
                f"`{trace.subject}` goes on from a file, and its optimizer begins anew",
                at_step(probe.step) + f", {kind}, where `{name}` goes on from {probe.measured:g}",
                integer(0, "states of optimizers") + " were loaded",
                integer(1, "state") + ", beside the weights",
                why="the file has it: optimizer.load_state_dict() is missing"
                if probe.reference
                else "save optimizer.state_dict() beside the weights, and load both",
                rank=Rank.BROKEN if probe.reference else Rank.NOTE,
                event=probe,
            )


@invariant("loop", evidence=has_probe("equal units", "no layer of 8 units or more learned"))
def units_of_a_layer_differ(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The units of a layer are initialised with different weights.

    Judges: linear layers and convolutions of 8 units or more that learn, on the CPU: those whose
        units all have the same weights before the first step, and still have after 16 steps or
        more, though they have moved.
    Allows: zeros that come apart, as last layers and adapters begin with; filters that begin alike
        and read channels of their own.
    Misses: some units that are alike; other modules. The line is told only where torch.nn.init has
        set the weights.
    Why: equal weights get equal gradients, so that they stay equal: a layer of a hundred units is
        one unit, and the loss often stays at that of a constant.
    Source: Glorot and Bengio 2010; Goodfellow et al., Deep Learning, 8.4 ("break symmetry").
    """
    for probe in events(trace, Probe):
        if probe.probe == "equal units":
            more = f" and {probe.reference - 1:g} more" if probe.reference > 1 else ""
            yield Finding(
                f"all units of a layer of `{trace.subject}` are one and the same",
                probe.label + more,
                "the same weights in all of "
                + integer(probe.measured, "units")
                + f", before the first step and after {probe.step}",
                "others for each",
                why="equal weights get equal gradients: draw them, as torch does by itself, or by"
                " torch.nn.init.kaiming_normal_",
                event=probe,
                source=probe.source,
            )
