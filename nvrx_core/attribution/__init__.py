"""Who was to blame for the end of a job, and why: one verdict from its logs, and from what a launcher knows of a cycle.

`rules` declares the classes of failure, `origin` reads rank, host and time off a line, `classification` turns lines
into findings, `cascade` tells the first fault from its consequences. They are pure; `reading` streams the files for
the command `nvrx-why`.
"""
