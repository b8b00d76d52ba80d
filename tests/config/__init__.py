"""tests of minnow.config"""
