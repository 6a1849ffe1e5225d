"""Sparse matrices and sorted edges, and sums over them."""

import warnings

# torch says so of every first CSR matrix; what is used of them here is tested against dense products.
warnings.filterwarnings("ignore", message=".*Sparse CSR tensor support is in beta state")
