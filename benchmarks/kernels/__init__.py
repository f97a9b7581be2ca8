"""Each kernel against ggml's plain op for the same work, in the same run: `python -m pytest benchmarks/kernels`."""
