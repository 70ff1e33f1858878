"""
`trainguard compare`: two trainings side by side.

`side` says what each side is, and what surely cannot be run, before anything is. `command` runs
both in turns, A B, B A, A B, each run in a new process, so that no drift of the machine favours
one. `pairing` pairs the runs; `interval` has the interval of their differences and the margin.
Worse is only what is worse with its whole interval.
"""
