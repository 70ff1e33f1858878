"""How a declared loss is observed: swept over the declared ranges in batched calls."""
