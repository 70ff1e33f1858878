"""
Counterfactual steps: what a training would have done, had something been different.

Where the model of a watched step is about to be called, the process forks. The child edits
something, goes on in the user's own code, reports numbers through a pipe and ends. The parent goes
on untouched: a closed-off child shares nothing that it could change.
"""
