"""One graph with a class on every node."""
