"""
What is tried on declared loaders, one mechanism per file.

`splits` resolves what was declared into `{split: loader}`: it calls the function under a seed, once
for each split or rank where the function takes them, or asks a data module for its loaders. Given
objects get their generators and epochs back afterwards.

A probe (`scan`, `workers`, `shards`, `resume`, `reproduce`, `transform`, `settings`, `storage`)
takes batches only through `iterate`: what the loader raises, a worker that dies and a loader that
hangs become one sentence, and no process is left.

On the first batch of a split `layout` finds out what is what: inputs, labels, mask, the axes of
batch and sequence. `fields` reads any nesting as `{path: values}`. Samples have no ids:
`fingerprints` makes one number of each on the whole batch, and `iterate` writes down the indices
that the sampler draws. Judges go by indices where there are some.

While batches pass, `values`, `padding` and `chunks` add up numbers; nothing keeps a batch. Each
split is looked through twice; the second time a long map-style one is left after a part that shows
no surprise.
"""
