"""The engine of tokenloom: the seam (``engine``), the ggml engine (``ggml``) and the model file's metadata (``gguf``).

Importing this package loads nothing native; ``tokenloom.native_ext.ggml`` and ``tokenloom.native_ext.gguf`` do.
"""
