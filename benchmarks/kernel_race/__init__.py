"""The parts of `python benchmarks/kernels.py`."""
