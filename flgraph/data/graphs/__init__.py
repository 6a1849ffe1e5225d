"""Many graphs, each with a class."""
