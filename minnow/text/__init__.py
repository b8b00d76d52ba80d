"""text in and out: tokenizer, chat templates, detokenizing (no torch)"""
