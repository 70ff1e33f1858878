"""Pure judgements, one file per family: each takes a trace and yields findings, without torch."""
