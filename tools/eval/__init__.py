"""what the learned parts of a model are worth: index heads, an NVFP4 cache, a drafter; `python -m tools.eval`

Everything but the attention's mass goes through the engine as it serves: its kernels, its caches, its drafts.
"""
