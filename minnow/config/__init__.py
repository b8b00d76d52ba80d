"""what the user chose; frozen dataclasses, no torch"""
