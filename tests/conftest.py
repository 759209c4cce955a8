import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from kprune import metrics

# Threads cost more than they bring on matrices this small, and much more on a machine that does other things too.
torch.set_num_threads(1)

# Intervals from fewer draws; the tests of metrics themselves take the real number.
DRAWS = metrics.DRAWS
metrics.DRAWS = 200
