"""
How a step of several processes is held against the same one of one process.

`splits` draws batches, of several sizes and cut in several ways; `observer` makes the step with all
of them in the same forked processes; `one_step` is what each of these does with its rows;
`likeness` compares what they hand back.
"""
