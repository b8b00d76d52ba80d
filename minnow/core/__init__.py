"""words everyone uses; standard library only"""
