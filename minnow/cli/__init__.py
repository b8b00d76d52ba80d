"""one file a command; main.py lists the folder"""
