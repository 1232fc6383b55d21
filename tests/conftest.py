"""The suite's torch runs on one thread: its tensors are tiny, and pytest-xdist has a worker for every core."""

import torch

torch.set_num_threads(1)
