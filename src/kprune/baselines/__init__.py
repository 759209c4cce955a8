"""Rival methods, to compare with: each takes what K-prune takes and gives what K-prune gives."""
