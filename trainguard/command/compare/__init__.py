"""`trainguard compare`: two trainings in turns, and how far they differ."""
