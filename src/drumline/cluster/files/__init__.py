"""Files between the laptop, the nodes and the storage.

laptop ──▶ nodes     sync (drumline itself; manifest: the project's folder)
nodes ──▶ laptop     pull (results of a job)
nodes ──▶ storage    storage (copies of run directories that outlive the nodes), and back
"""
