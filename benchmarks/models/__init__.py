"""The model files of the benchmarks, made from what is installed: see ``make.py``."""
