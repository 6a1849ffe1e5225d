"""Models that learn an embedding per graph without labels."""
