"""Loss curves as snapshots: columns of a trace, the band they may move in, and their files."""
