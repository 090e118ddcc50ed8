"""Files between the laptop, the nodes and the storage.

laptop ──▶ nodes     sync (manifest: the project's folder), package (drumline itself)
nodes ──▶ laptop     pull (results of a job)
nodes ──▶ storage    storage (copies of run directories that outlive the nodes)
"""
