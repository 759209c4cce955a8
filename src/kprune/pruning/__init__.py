"""The algorithm: measure, search, refit, sublayer by sublayer."""
