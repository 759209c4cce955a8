"""Errors with a message for the user: what failed, with its value, and what to do."""


class KpruneError(Exception):
    """Base of every error that kprune raises on purpose."""


class UnsupportedModel(KpruneError):
    """kprune cannot prune the model's family, head or modules."""


class BadSample(KpruneError):
    """The sample cannot be read, or is too small."""


class NotFinite(KpruneError):
    """A weight, an activation or a solution is NaN or infinite."""


class BadCheckpoint(KpruneError):
    """A folder is not a checkpoint, or its files contradict each other."""


class OutOfMemory(KpruneError):
    """A batch does not fit into the remaining memory."""


class NotSound(KpruneError):
    """Numbers are finite but make no sense."""


class BadOptions(KpruneError):
    """Options contradict each other, or one is missing."""
