"""the OpenAI door (no torch)"""
