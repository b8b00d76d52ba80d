"""where keys and values live"""
