"""R-ID-1-scatter: index_add_ adds the rows before an id that is not there, and then raises."""

import sys

import torch

table = torch.tensor([1.0, 2.0])
try:
    table.index_add_(0, torch.tensor([0, 2]), torch.tensor([100.0, 100.0]))
except (IndexError, RuntimeError) as error:
    print(f"PyTorch {torch.__version__} refuses: {error}")
print(f"PyTorch {torch.__version__}: [1, 2] is {table.tolist()} afterwards")
sys.exit(int(table.tolist() != [1.0, 2.0]))
