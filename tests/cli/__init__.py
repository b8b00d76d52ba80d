"""tests of minnow.cli"""
