"""
What is tried on a declared model, one kind of question per file.

`observer` draws the cases (`cases`): the largest sizes, the smallest, and more in the profile
`thorough`. A `ModelCase` (`model_case`) is the model in one case: it builds a fresh module from a
seed or copies the one given, draws a batch, calls it, names its floating-point outputs by their
path (`outputs`), and gives the number that is minimised: the declared loss, the model's own, or a
fixed random projection of all outputs. The team's code runs nowhere else; what it raises is the
subject's fault, in one sentence.

A probe runs once for each case, is shared by the invariants that need it, and yields `Pass` events:
a quantity, its place, numbers. `initial` and `backward` look at fresh models, `isolation` at what
must not depend on what, `evaluation` and `state` at what must stay as it is, `variants` and
`lengths` at what must agree.

What must not depend is asked with one backward pass (`dependency`): from the outputs in question to
the inputs, or to the embeddings of integers. What that suspects is edited and compared; only a
difference that is seen is a finding. The copies that are called (`frozen_copy`) are in float64 and
evaluation mode where they can be, so that rounding is no leak and nothing that a call leaves behind
gets into the next. Where a dimension of the inputs stands in the outputs is found by changing its
size (`output_axes`).
"""
