"""Healing: a pruned model is trained toward the dense one, without labels."""
