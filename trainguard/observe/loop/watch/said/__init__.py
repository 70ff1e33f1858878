"""What a script says of itself: numbers that it prints, and those that it hands to loggers."""
