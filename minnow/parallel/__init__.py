"""many devices; knows no model"""
