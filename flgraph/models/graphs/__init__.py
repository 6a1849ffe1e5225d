"""Classifiers of graphs."""
