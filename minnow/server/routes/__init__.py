"""one file an endpoint family; a route decodes, calls, encodes, nothing else"""
