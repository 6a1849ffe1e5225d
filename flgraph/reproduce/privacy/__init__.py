"""What privacy, smaller uploads and bad clients cost in accuracy; no paper's tables."""
