"""
Counterfactual steps: what a training would have done, had something been different.

Where the model of a watched step is about to be called, the process forks. This deputy asks one
question after another while the training goes on: it forks a child for each, which edits something,
goes on in the user's own code, reports numbers through a pipe and ends. What the deputy finds it
leaves in a mailbox, where the training looks later. A child that is closed off shares nothing that
it could change.
"""
