"""Labs: students write part of a stage; laws and counted costs judge it.

A lab is a folder of `tutorials/labs` (`minifuse.labs.lab`). The student's file never runs in the process that judges
it: `minifuse.labs.student` is the process that it runs in, `minifuse.labs.submission` what the judge has of it: calls
whose arguments and values are JSON. Nothing here imports torch.
"""
