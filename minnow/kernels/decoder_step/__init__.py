"""CPU: one native call for a whole step, all layers (the "mono kernel"); no contract of its own, it chains others'"""
