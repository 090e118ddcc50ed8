"""Checks of a student's code for a lab: what runs beside it, with torch, in processes of its own.

`python -m drumline.grader` reads requests and answers with events, JSON lines both (`server`). It
has imported torch once and never runs a student's line itself: every check is a fork of it, so that
a check starts at once, and a submission that hangs, exits or crashes costs only its own check.

    drumline lab check ── requests ──► server ── fork ──► check ── fork ──► ranks
      (no torch)       ◄── events ───  (torch)  ◄─ outcome ─     ◄─ answers ─

Every mistake is recognised by its effect: numbers that come out, messages that were counted, spans
that were seen. Words for people are not written here: an outcome names the mistake and its facts,
and `drumline.labs` turns them into sentences.
"""
