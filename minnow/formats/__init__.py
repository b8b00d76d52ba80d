"""number formats: exact definitions, in torch"""
