"""
What a step keeps in memory: followed storage by storage, on fake tensors or on real ones.

`observer` runs one probe for each kind of question: `step`, `scaling`, growth (`leak_watch`),
`device`, `snapshot`. `declared_step` makes the step of a model or a loss at the sizes of the budget
(`training`); `run_steps` takes that of a Loop or a Script as it comes, with `step_tracker` to say
which step it is and what is what. `predict` runs either on fake tensors in a forked child (`fake`),
and on real ones where it does not run on those.

An `AllocationLog` (`allocation_log`), a dispatch mode, writes down every storage that is made and
let go, with its phase, module, operation and line. A `Timeline` (`timeline`) reads it once the step
is over: only then is it known what an activation was and what a temporary. It rounds as the
device's allocator does; `kernel_scratch` knows what kernels of the CPU take besides, and
`cuda_operators` and `cuda_autocast` what CUDA does in the place of the CPU. `events` turns that
into `Usage` events; for the command, `step_profile` makes a `Breakdown` of it.

Growth is another question: `leak_watch` makes real steps and looks at what is alive of the steps
that are over (`live_objects`, `growth_report`), and at who holds it (`leak_holders`).
"""
