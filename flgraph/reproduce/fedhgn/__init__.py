"""FedHGN's tables and figures, and habits of its published code."""
