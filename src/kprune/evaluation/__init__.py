"""Scores of models on data, with intervals."""
