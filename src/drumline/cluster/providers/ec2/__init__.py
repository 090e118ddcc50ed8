"""Machines of Amazon EC2.

provider ── shared_resources (key pair, groups) ── launch (nodes) ── removal (by tags alone)
    └── offerings, prices: what is read before anything is created

`cloud` is the only client of AWS: it classifies errors, and prints the policy that AWS must allow;
`inventory` reads resources back by their tags.
"""
