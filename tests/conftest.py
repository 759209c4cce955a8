import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

# Threads cost more than they bring on matrices this small, and much more on a machine that does other things too.
torch.set_num_threads(1)
