"""learn what a checkpoint lacks: index heads, a cache format, a drafter"""
