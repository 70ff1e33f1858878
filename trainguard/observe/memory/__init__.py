"""What a step keeps in memory: followed storage by storage, on fake tensors or on real ones."""
