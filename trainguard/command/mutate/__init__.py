"""
`trainguard mutate`: which mistakes the guards of a training do not notice.

`command.py` has the options and the order of the work, `mistakes/` what is planted, `project.py`
the copy that a mutant lives in, `trial.py` one run of a version of it, `result.py` what became of a
mutant and where that is kept, `proposal.py` the guard that would notice a survivor, and `report.py`
what is told of it all.
"""
