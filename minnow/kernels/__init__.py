"""operations; one folder each"""
