"""Reports as pages: numbers in tables, sentences that cite them, pictures that draw them.

    tables (CSV)  ←cited by─  sentences, table blocks, pictures  ─in→  sections  ─in→  Report
                                                                                   │
                                         report.html · report.md · figures/ · data/ · manifest.json

A number in a sentence is never typed: it is a `CellRef` of a table, so that a page cannot say what
its data do not. Every text exists in English and in Chinese (`Translator`). No torch.
"""
