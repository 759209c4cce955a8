"""Tensors in, tensors out: the equations, with no model in sight."""
