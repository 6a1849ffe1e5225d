"""Models of heterogeneous graphs."""
