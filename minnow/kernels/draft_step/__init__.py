"""CPU: a drafter's context, and a round of its drafts, in one native call each; no contract of its own"""
