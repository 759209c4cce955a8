"""The only room that knows a model's module paths."""
