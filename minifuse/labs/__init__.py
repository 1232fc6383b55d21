"""Labs: students write part of a stage; laws and counted costs judge it.

A lab is a folder of `tutorials/labs` (`minifuse.labs.lab`). The student's file never runs in the process that judges
it. It runs in a process of its own (`minifuse.labs.student`), which the judge calls through `minifuse.labs.submission`,
with arguments and values in JSON. Nothing here imports torch.
"""
