"""One turn of the improvement loop, as a graph that survives being killed at any point."""
