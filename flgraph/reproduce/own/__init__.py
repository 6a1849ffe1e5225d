"""Methods of this package, chosen on validation nodes and held against a paper's; no paper's tables."""
