"""What `python benchmarks/kernels.py` is made of."""
