"""SSH to the nodes: keys, pinned host keys, connections and the commands that run over them.

keys, known_hosts   who we are, and who a node must prove to be; `rotation` replaces host keys
transport           bytes to port 22, directly or through a proxy; waits for the SSH banner
connection          one authenticated connection; `process` is a command that runs over it
fleet               all nodes of a cluster, connected at once
remote              what the packages above need of a connection, without loading asyncssh
"""
