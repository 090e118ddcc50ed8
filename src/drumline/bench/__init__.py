"""Benchmarks: each has its spec, its typed rows, a table for the terminal and a figure.

    communication/    collectives and gradient aggregation, measured by ranks of `drumline.probe`
    model_parallel/   one model trained in many forms
    scaling/          one model trained by ever more ranks

No torch here: the ranks' side is `drumline.probe`, or a training run (`case_runner`).
"""
