"""before you buy or deploy (no torch)"""
