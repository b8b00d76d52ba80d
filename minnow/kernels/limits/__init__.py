"""what this machine can do at most, for the share that an operation reaches: no operation itself"""
