"""Toolbox of compiled code: functions made compilable, draws, programs, their cache, and numba's private parts."""
