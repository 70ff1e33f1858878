"""What was found by trying something out, or by watching for one thing alone."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Event):
    """
    What the recorder found by trying something out on copies of live objects.

    probe: "repeat" (an evaluation input twice; "repeat as told" where what drops is told that it is
        training, "repeat by chance" where one drawn number decides), "mix" (another sample edited;
        "mix along time" where the second axis is taken for that of samples), "future" (a later
        position edited), "present" (a position that is its own target edited), "target" (the target
        looked for in the input), "labels" (one input with different labels), "rerun" (the same run
        again), "processes" and "workers" (again in a new process, with other workers), "broadcast"
        (a loss over every pair), "batches" (the same batch again), "matched" (a state that was
        loaded), "renamed" (frozen parameters that a load left out, of the names that it had too
        many), "restored" (a state that shares the memory of what it was loaded into), "one memory"
        (states of different steps that share it, as they are loaded; reference is 1 where that
        cannot be meant), "overwritten" (what a pass has put in the place of what was loaded, as a
        share of that), "partial" (parameters that a load has left out; reference is 1 where the
        module had trained them on), "noise" (how far noise that is predicted no better than by its
        mean correlates with the input; five deviations of chance), "order" (passes through a loader
        in the order of an earlier one), "reach" (different samples of a pass, against those drawn;
        step is the size of the data set), "sorted" (labels that rise through each epoch), "random"
        (steps that drew the numbers of an earlier one), "statistics" (those of batches, which never
        moved), "base rate" (the last rate of an optimizer, against the one that it was made with),
        "held out" (pairs of an evaluation that were trained on; step is the number of all that
        were), "overlap" (rows of a set of evaluation that were trained on, of all; step as for
        "held out"), "windows" (those of an evaluation that end inside of what was trained on, of
        all; step the same), "folds" (rows that folds hold out, and that others learned from with
        the same weights, of all that they hold out; step is how many folds), "resumed" (advances of
        a schedule beside an optimizer that was loaded, against those in the file), "resumed place"
        (those that it is told, against the steps that its optimizer had made), "detached" (what
        gets no gradient, edited), "saturated" (what gets no gradient but zero, of so many
        elements), "packed" (places beyond the ends of packed rows that a loss counts), "filled"
        (targets of padding that are a class, of all), "ended" (steps without a target for any row's
        end), "attended" (those in which attention saw padding alone), "moves" (states that stay),
        "mirrored" (inputs that came again whose target was mirrored, of all), "displaced" (samples
        served again whose target was moved otherwise than their picture, of those in which both
        were), "in vain" (passes whose gradients of a term were cleared unused, against those of
        which they were used), "copies" (rows of a stream that all workers served, of the different
        ones), "generators" (workers that begin with the same state of a generator, and draw from it
        alike), "collated" (samples with a field that is beside that of another one, of some that a
        collate function was given), "shifted" (places that a target stands after its token), "self"
        (tables of scores in which each sample is compared with itself, of all), "own choice"
        (tables in which each chooses itself, of all), "stored" (values of a data set that change
        whenever six of its samples are served; reference is the number of tries in which some did),
        "leaked" (steps with gradients of another optimizer's loss, of all that were made), "weight"
        (losses that train what they weight log-probabilities by, of those with log-probabilities),
        "sample" (losses that depend on a sample without a graph, of those that train its
        distribution), "codes" (losses that hold vectors to the codes which they chose, and lead to
        them by nothing else, of all that hold them), "scale" (the spread of the inputs of an
        evaluation, against that in training; the label has their means, and the loss before and
        after they are brought to one scale), "shown numbers" (losses that count what a layer is
        shown of a variable and nothing that is blank there, of those that count one or the other;
        step is how many rows came again with others blank), "partners" (rows of two inputs that
        come again in other pairs; step is 1 where those of one come in the order that they had),
        "former optimizer" (advances of a scheduler since another optimizer has taken the place of
        its own; reference is how many there are in all), "told epochs" (what a scheduler was told
        as an epoch and is no whole number; reference is how often it was less than before, step how
        often it was told), "kept statistics" (batches that a model has seen while the batch
        statistics of its average stayed), "virgin statistics" (passes that learn with batch
        statistics that are what they were made with, of all in evaluation mode), "swapped average"
        (evaluations of an average after which the model was not put back), "numberings" (names with
        another number in the data of an evaluation), "padding cut", and once more as "padding cut
        late", or "padding cut told" where lengths or a mask come with the batch (the typical change
        of outputs without so much of it, in deviations between samples), "twice" (steps with a
        softmax of a softmax, or a sigmoid of a sigmoid, as the label says), "picked" (losses that
        pick classes along another axis than that of their softmax, of those that pick some),
        "augmented" (rows of evaluations that are not what they were; reference is how many passes),
        "unused" (looks at an average of which nothing was made), "attention axis" (steps in which
        weights of attention do not sum to one along the axis that a product sums; "attention axis,
        perhaps" where that may be meant), "attention scale" (steps in which scores are multiplied
        by the root of the width that the label has, of those in which their factor is known;
        "attention scale, perhaps" alike), "ignored" (targets of a class with a name that a loss
        leaves out, of all), "tied" (parameters in the places of one that modules shared),
        "averaged" (steps in which constants, one for each of so many samples, multiply a mean over
        them; the label says that they are of samples beyond a doubt), "focal" (steps with a focal
        loss of a mean), "unread" (steps in which a line computes gradients with a graph that no
        loss has; the label names what moved along them), "borrowed" (evaluations for which several
        optimizers moved what another one goes on from), "left behind" (steps up to the end in which
        only what is in no optimizer got gradients), "epsilon" (the least share of a group's
        elements whose averaged gradients are below the epsilon, of all looks; reference is the
        epsilon, step how many looks), "penalty" (norms of gradients whose distance to a number is a
        loss, against the outputs that they are of; the label is the shape), "rounding" (the least
        share of elements of 16 bits that a step left as they were; reference is how finely their
        dtype tells numbers apart, step how many looks), "stacked" (the width between two linear
        layers in a row, against the larger one around them), "weighed crosswise" (a mean of N x N
        terms, each weighed by what is of all others; reference is N), "one target" (the steps
        looked at in which all losses that train an output had one target; reference is how many
        losses, the label the target), "itself" (calls of a loss function that compare what has no
        graph with itself), "leaf loss" (passes backward at a line that begin at a leaf, all of
        them; reference is how many passes reached an optimizer), "repeated" (passes over one input
        with the same results), "acted" (batches with few states, of all; step is before how many as
        many were acted on), "agreement" (mean cosines, last and first), "noise mean" (that of
        noise; its spread), "noise scale" (how far a law of the scales of data and noise is missed,
        by so many pairs), "noise levels" (the most noise in what is mixed of data and noise; of how
        many rows), "edges passed" (edges held out that messages go along, of all), "centred"
        (moments after each one that a column is made from; those before), "returns reversed"
        (episodes that are weighed by returns from the last step on, of all), "ends passed" (looks
        at which all returns reach beyond the ends of episodes; step: how many ends), "ends
        bootstrapped" (ends of episodes after which a target counts a share of what follows, of all
        that are known; step: how many of the first are surely ends), "rounded weight" and "rounded
        weight, perhaps" (looks at which a term of the loss had a single weight of zero, of all;
        step: the latest; the label is the statement that rounds it), "zero term" (looks at which
        all weights of a term of the loss are zero; step: how many), "load lost" (matrices that a
        load had changed, and that were others before the first pass), "carried" (passes that begin
        with the state that the pass before has ended with, of those given one), "drawn negatives"
        (share of the pairs whose scores are pushed down that are pushed up in other calls;
        reference is how many are pushed down), "kept answers" (losses whose targets are answers
        that a model gave with something awake, of those with as many classes), "kept noise" and
        "kept mask" (looks in all of which noise for each sample, or a mask of dropout, was the
        same; how many numbers it has), "replaced" (steps whose gradients were not finite before
        something made them so), "steep" (lines with a function of infinite slopes), "signal lost"
        and "signal grown" (the size of what differs between samples, or of all, in the first and
        the last layer; the label says which, and what is between), "shared setting" and "copied
        setting" (what is set of data that others share; the label has what and how), "lost setting"
        (what is set of a Subset, and read of its data set: both in the label), "alike starts"
        (episodes that begin with one state, of those with one seed; step: the other seeds of that
        line), "seeded stream" (passes that begin alike, all of them), "left" (states that a line
        takes, and that nothing is loaded after; 1 where no line reads them), "found itself" (a
        metric of retrieval with and without each sample itself; step: how often it was said),
        "interleaved" (passes with pictures whose channels are read in another order than they are
        stored), "divided loss" (what all losses are divided by, before so many passes backward),
        "taught meter" (counts of a mean that is said of an evaluation, and those in it), "group
        rates" (the highest and lowest rate that the groups were made with; step is 1 where a line
        sets that of the first alone), "betas" (of gradients, and of their squares), "term sign"
        (looks at a term that a loss makes worse, of those at one), "live target" (losses that learn
        through their target, of those with outputs), "ratio" (steps in which new and old
        probabilities were equal, of those after another one), "brief statistics" (the momentum of
        batch statistics that are the last batch's, and of how many layers), "target scale" (how far
        targets of an evaluation are from the predictions that follow them, in deviations; by how
        much their own is larger), "merged" (evaluations that leave frozen weights neither as before
        nor as within, of those that changed them), "idle clip" (calls of clipping at a line, none
        of which found gradients that came since the last step), "lost loss" (calls at a line whose
        loss goes into a variable, the label, and is not read; reference is 1 where another value
        takes its place), "last loss" (passes backward before which all losses of a line but the
        last came to nothing, of those with any; step: how many losses before them), "overlap loss"
        (losses in which what overlaps a mask lies below 0 or above 1, of those with an overlap),
        "unread setting" (a rate that is set where an optimizer does not read it, and the one in
        force), "discarded" (a line, the label, that computes something and keeps nothing of it;
        reference is 0 where that may be left over), "dropped" (losses whose input a dropout has
        struck last, of so many), "fields" (rows of an embedding that several columns of numbers
        read, in the one with most of them; of all; step: how many columns), "divergence weight"
        (times that a divergence weighs more than a distance; step: in how many looks; label:
        "collapsed" where its codes tell nothing in the end), "token weight" (how many times as much
        a target weighs in one micro-batch as in another; step: of how many steps), "target sum"
        (what the rows of smoothed labels add up to, and one; step: in how many looks), "one place"
        (places that a table of positions gives the same numbers; the label has the module),
        "stand-in" (columns with a number that stands alone, of all; the label has it, the ends of
        the others, and 1 where it was scaled with them), "misread scale" (the mean and deviation of
        a column; the label has the mistake that explains them and the two numbers that were
        misread), "same pull" (steps of what makes what a module judges, in which its scores are
        pulled as in its own; the label has it), "one pull" (passes of such a module whose scores
        its own steps pull one way, of which reference are over what was made; the label has it, and
        which way), "repeated candidates" (rows whose partner has another column in a table of a
        batch's pairs, of all), "likeliest" (actions that are all the likeliest, and the mean of
        their probabilities), "awake" (how far two passes without a graph differ by what they drop,
        and rounding), "drawn anew" (matrices that a training goes on with, all drawn anew; step:
        those of the one before), "undrawn" (samples in lists of a sampler that no pass drew from;
        label: its class, the lists, a batch), "lost rate" (the rate of a state that is loaded after
        another one was set, and that one), "unasked" (steps in which a target network, the label,
        followed another one and was not called), "high floor" (the rate that a schedule anneals to,
        and the highest that it begins with), "wrapped" (results of an operation on bytes, the
        label, that do not fit into bytes, of those looked at), "unread draw" (losses that learn how
        likely a draw is that nothing else reads, of those looked at), "batch scale" (batches of
        evaluations that are scaled each by its own numbers, and the rows of one; step is 1 where a
        loader has served that many samples; the label has the module, and by what), "quantile side"
        (the quantile that a column learns, and the one that a list has for it; step: of how many
        columns that is known; the label has the name of the list, and the column), "padding inside"
        (looks in which the number for padding, step, comes as any token does, of so many; the label
        has the embedding, and how), "clipped ratio" (losses that clip a ratio wrongly, as the label
        says, of those that clip one), "bounded scores" (the least that a cross-entropy of cosines
        can be, and what it is by chance; step: of how many classes), "left loop" (passes backward
        in a loop that its last line leaves, the label; over how many batches; step is 1 for a
        return of an epoch), "unread layer" (1; the label has a layer or a parameter, and in another
        line a statement that makes something of it, which nothing reads), "swapped states" (1; the
        label has a statement that gives an LSTM its states in the other order), "doubled" (looks at
        which a tensor was added to itself; the label has what made it), "early risk" (losses with a
        running sum that begins with the shortest time, the label, of those whose times are known),
        "noise times" (a correlation of noise with the time, the label, that a model is told, over
        how many rows), "log determinant" (looks at which what a flow returns is none, label
        "value", or is not to grow, label "sign", of all looks), "zero factors" (products of two
        narrow matrices that are both zero, for how many steps), "loaded rate" (a rate that was
        loaded into an optimizer, and that which it was made with; step: how many it has made so;
        label: that with which a schedule of the state had begun, if it is another), "mixture axis"
        (steps in which logarithms of weights are normalised along another axis than they are
        summed, of those with such weights; the label has both), "mixture probabilities" (those in
        which weights are added as if they were logarithms), "advanced twice" (steps after which two
        lines have advanced a scheduler, of those after which one has; label: its name and the usual
        line), "batch choice" (the least share of the samples for which another alternative is
        better than the one of the whole batch, the label says of what: "order" or "part";
        reference: looks; step: 1 if a loader or places drew the samples), "covered" (targets that
        are the label's token, which is shown in their places and in no others, of all that count;
        step: how many calls), "normal start" (evaluations whose input is as normal noise is, of
        those looked at), "returns mixed" (episodes weighed by their returns in neither order, of
        those known), "self distance" (looks in which all distances of the kind that the label says
        are zero), "missed key" (dictionaries that were looked at, none of which has the key that
        the first line of the label asks for; the other line is one that they have and nothing
        reads), "mixed" (steps whose samples are mixed with what the label says, of those whose
        parts were found), "free weight" (what a term of the loss is multiplied by at the end, and
        before; it is learned, and nothing else in the loss depends on it; step: how many looks),
        "running sum" (losses with a running sum over samples that are in no order, of those with
        one), "likelihood" (how much larger than its errors a variance is that a loss is least for;
        step: how many looks), "cut warmup" (advances of a warmup that a sequence makes, and those
        that it is laid out for), "inverse" (how far two functions, the label, lead from numbers of
        a batch, as a share of their deviation, and how far they may), "worst state" (the mean error
        of the state that is evaluated at the end, when it was the worst of as many as the label
        says, and that of the best; step: of which it is), "messages returned" (looks at a graph of
        which no message reaches another node than the one it is from, of all), "separated copies"
        (looks at a table of copies of samples whose groups are of different samples, of all; the
        label says how many samples and copies, and how they were made), "gate axis" (steps in which
        weights (N, K), the label, sum to one over N samples and are used along K, of those with
        such weights), "drifted" (how far statistics have moved that a head is asked behind, in
        deviations, and in how many batches), "shared scale" (the mean and deviation, or the least
        and the largest number, of the part of a series that is learned from, where 0 and 1 are
        those of all of it; the label: the module, the variable, "deviation" or "range", and how
        many moments), "shared indices" (samples of an evaluation that are learned from, as the same
        entries of a data set, of all that it has), "resumed optimizer" (the epochs or steps that a
        file counts, and 1 where it has the state of an optimizer that begins anew), "crossed
        graphs" (batches of graphs with edges between two of them, which end before the last node,
        of all), "deviation" (how often what a likelihood takes for a variance, the label, is a
        deviation elsewhere), "left in a buffer" (samples that a stream had read and ended without
        serving, and those served), "own target" (calls of a loss function in evaluations, the
        label, that compare two outputs of one pass, of all), "narrow negatives" (the items that
        are drawn as such, of all in the table), "forgotten" (the parameters of a layer, the label,
        that was never called), "shrinking" (how far apart samples are on the sides of a distance
        that both learn, in times of what it was), "shared targets" (targets of an evaluation that
        are those of the training, of all), "resumed average" (how far a copy of the weights is from
        the average in a file that the training goes on from).
    measured, reference: what was found, and what it is held against.
    step, source, label: when, where, and what tells alike probes apart.

    "padding" counts steps in which the token for padding came as others do; step is its number.
    """

    probe: str
    measured: float
    reference: float = 0.0
    step: int = 0
    label: str = ""
    source: str = ""
