"""Classifiers of the nodes of one graph."""
