"""Labs: students write the part of a stage that a paper is about; laws judge it.

A lab is a folder of `tutorials/labs` (`minifuse.labs.lab`). The student's file never runs in the process that judges
it: `minifuse.labs.student` is the process that it runs in, `minifuse.labs.submission` what the judge has of it: calls
whose arguments and values are JSON. Nothing here imports torch.
"""
