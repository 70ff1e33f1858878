"""What is tried on a model, one mechanism per file."""
