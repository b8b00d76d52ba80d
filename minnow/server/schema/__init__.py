"""wire types (chat, completions, models, errors), msgspec structs"""
