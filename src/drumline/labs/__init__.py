"""The labs: what there is to do, folders to do it in, and checks of what was done.

Nothing here imports torch. What runs a student's code is `drumline.grader`, in another process.
"""
