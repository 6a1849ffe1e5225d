"""What is measured; a package, so that no other one of this name stands in its place."""
