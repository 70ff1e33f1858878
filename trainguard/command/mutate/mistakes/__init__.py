"""
Mistakes that people make in trainings, planted one at a time in the source of a correct one.

`source.py` finds nodes and replaces segments of text. `operator.py` registers what plants a
mistake, and makes the mutants of a file. The other files have the operators, each with a place
where people made that mistake: `gradients`, `losses`, `models`, `rates`, `loading`, and `states`
(modes, averages and checkpoints).
"""
