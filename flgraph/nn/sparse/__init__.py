"""Sparse matrices and sorted edges, and sums over them."""
