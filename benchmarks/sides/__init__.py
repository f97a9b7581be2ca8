"""What is compared: each side is a module here, run in a process of its own.

Two packages that ship a ggml under the same library names cannot share a process, and a side that crashes must not take
the run with it. ``handle.Side`` is the parent's end, ``serve`` the child's; they exchange one JSON object a line.
"""
