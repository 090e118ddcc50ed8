"""One node's elastic agent: brings its workers up warm, restarts them, and reports how they ended.

The operations column starts it as a process (`python -m drumline.agent`) and reads its events;
nothing is imported here, so that the worker server can start before torch is loaded.
"""
