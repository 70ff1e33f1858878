"""
How a training that knows nothing of it is recorded: hooks, windows, watchers.

The `recorder` installs what `hooks` listens at: calls of modules, backward, the hooks around the
steps of all optimizers. An optimizer has a `Window` (`window`): what happened since its last step.
Where no optimizer holds the parameters, `manual_steps` sees steps made by hand.

Watchers, one file for each under `watch/` and listed in `watchers`, are told what happens and
answer with columns of the `Step`. They look at state rather than at calls: a gradient was cleared
when it is gone, not when `zero_grad` was called. Numbers stay tensors until the step is over
(`deferred`) and are fetched together; what else a watcher wants to know of an accelerator comes
with them (`reads`). In a long run ever fewer steps are watched, and `thinning` keeps a bounded
number of events; what is not finite, or unlike anything before, is always recorded.
A few watchers try something out, rarely, on copies (`watch/module_copy`): the same input twice,
another sample edited, a later position edited. `Probe` events say what they found.

`observer` records a declared run, once more where it is asked whether it repeats; scripts and loops
can run in processes of their own (`run_processes`). `curves` holds columns against their snapshots:
blessing runs the training five times more, each parameter moved by half a unit in the last place,
and keeps the worst drift. Allowed are 30 times that, and 1e-6 (`curves/tolerance`).
"""
