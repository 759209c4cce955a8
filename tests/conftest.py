import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch

from kprune.evaluation import metrics

# On matrices this small, threads cost more time than they save.
torch.set_num_threads(1)

# Results must not depend on the clock, on the machine's load or on earlier runs.
hypothesis.settings.register_profile("kprune", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("kprune")

# Confidence intervals from fewer draws; the tests of metrics themselves use the real number.
DRAWS = metrics.DRAWS
metrics.DRAWS = 200


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random tensors of a test do not depend on the tests before it."""
    torch.manual_seed(0)
