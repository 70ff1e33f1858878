"""The command `trainguard memory`: where the memory of a training step goes, and what fits."""
