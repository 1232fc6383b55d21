"""The operators of a CPU in C: compiled once for this machine, called through ctypes."""
