"""What can go wrong, in sentences a user can act on."""


class KpruneError(Exception):
    """Base of every error that kprune raises on purpose: says what failed, with its value, and what to do."""


class UnsupportedModel(KpruneError):
    """The model's family, head or modules are not ones that kprune can prune."""


class BadSample(KpruneError):
    """The sample data cannot be read, or is not enough for what was asked."""


class NotFinite(KpruneError):
    """A weight, an activation or a solution is NaN or infinite, so nothing computed from it can be trusted."""


class BadCheckpoint(KpruneError):
    """A folder is not a checkpoint, or its parts disagree with each other."""


class OutOfMemory(KpruneError):
    """A batch does not fit into what memory is left."""


class NotSound(KpruneError):
    """Numbers are finite, and make no sense all the same."""
