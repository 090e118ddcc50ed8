"""Experiments on communication: each builds a request, starts ranks, and works out what they saw.

No torch here: the ranks' side is `drumline.probe`.
"""
