"""R-VAR-2-assign: one row is assigned to a variable of four without a word, and stands in all of
them."""

import sys

import torch

table = torch.tensor([1.0, 2.0, 3.0, 4.0])
try:
    table.copy_(torch.tensor([101.0]))
except RuntimeError as error:
    sys.exit(print(f"PyTorch {torch.__version__} refuses: {error}"))
print(f"PyTorch {torch.__version__}: one row was assigned, and four are held: {table.tolist()}")
sys.exit(1)
