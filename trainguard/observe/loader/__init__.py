"""What is tried on loaders, one mechanism per file."""
