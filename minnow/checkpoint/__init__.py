"""weights on disk"""
