"""What becomes of parameters: whether they move, are held, averaged, shared, saved and loaded."""
