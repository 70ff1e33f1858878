"""What the tests need to have imported before the first of them."""

# pytester forgets the modules that a run inside this process was the first to import. This one
# registers operators, which can be done only once, and comes with the first optimizer.
import torch._dynamo  # noqa: F401
