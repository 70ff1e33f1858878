"""The run as a whole: conditions, time, memory, random numbers, other processes."""
