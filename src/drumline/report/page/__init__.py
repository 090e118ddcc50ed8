"""Reports as pages: numbers in sheets, sentences that quote them, pictures that draw them.

    sheets (CSV)  ←quoted by─  sentences, tables, pictures  ─in→  sections  ─in→  Report
                                                                                   │
                                         report.html · report.md · figures/ · data/ · manifest.json

A number in a sentence is never typed: it is a `Quote` of a sheet's cell, so that a page cannot say
what its data do not. Every text exists in English and in Chinese (`Tongue`). No torch.
"""
