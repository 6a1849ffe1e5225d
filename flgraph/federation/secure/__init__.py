"""Sums of uploads of which the server learns nothing but the sum."""
