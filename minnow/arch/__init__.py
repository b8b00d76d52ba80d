"""what a model is made of (no torch)"""
