"""SSH to the nodes: keys, pinned host keys, connections and the commands that run over them.

keys         who we are, and who a node must prove to be; `rotation` replaces host keys
transport    bytes to port 22, directly or through a proxy; waits for the SSH banner
connection   one authenticated connection, and the commands that run over it
fleet        all nodes of a cluster, connected at once, and what a command does with them
remote       what the packages above need of a connection, without loading asyncssh
"""
