"""
How a step of several processes is held against the same one of one process.

`observer` draws batches and makes the step with each of them in forked processes; `one_step` is
what each of these does with its rows; `likeness` compares what they hand back.
"""
