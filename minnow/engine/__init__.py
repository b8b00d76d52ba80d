"""the step loop"""
