"""The slowest link, named only where messages or counted bytes tell it."""

from __future__ import annotations

from drumline.core.nodes import NodePlan, address_of
from drumline.report.ledger.links import LinksAccount
from drumline.report.ledger.steps import account_for
from metered_runs import MS, SECOND

MBIT = 10**6


def find_slow_link(logs, *, nodes, plans=()):
    account = LinksAccount(nodes, plans)
    account_for(logs, counted=[account])
    ends = enumerate(log[-1] for log in logs)
    sent = {rank: end["sent"] for rank, end in ends if end["event"] == "end"}
    return account.close(seconds=4.0, sent=sent)


def ring(rates, *, steps=4, nbytes=1_000_000, ranks_per_node=1):
    """A message to the next rank in each step; it takes as long as the slower of two links lets."""
    ranks = len(rates) * ranks_per_node
    logs = [[{"event": "start"}] for _ in range(ranks)]
    for step in range(1, steps + 1):
        began = step * SECOND
        spans = [[] for _ in range(ranks)]
        for rank in range(ranks):
            to = (rank + 1) % ranks
            ends = (rank // ranks_per_node, to // ranks_per_node)
            rate = min(rates[end] for end in ends) if ends[0] != ends[1] else 10_000 * MBIT
            came = began + round(8 * nbytes / rate * SECOND)
            spans[rank].append(["send", nbytes, began, began + MS, [rank, to]])
            spans[to].append(["receive", nbytes, began, came, [rank, to]])
        for rank, log in enumerate(logs):
            times = {"t": began, "data": 0, "total": SECOND, "blocked": []}
            log.append({"event": "step", "step": step, **times, "spans": spans[rank]})
    return logs


def test_messages_from_and_to_the_slow_link_tell_it():
    found = find_slow_link(ring([1000 * MBIT, 100 * MBIT, 1000 * MBIT, 1000 * MBIT]), nodes=4)
    assert (found.node, found.busy) == (1, None)
    assert str(found) == (
        "the link of node 1 is the slowest: its messages ran at 100 Mbit/s, "
        "those between other nodes at 1000 Mbit/s or more"
    )
    found = find_slow_link(
        ring([1000 * MBIT, 1000 * MBIT, 50 * MBIT], ranks_per_node=2, steps=5), nodes=3
    )
    assert found.node == 2


def test_messages_that_do_not_tell_it_name_no_link():
    same = [1000 * MBIT] * 4
    slow = [1000 * MBIT, 100 * MBIT, 1000 * MBIT]
    assert find_slow_link(ring(same), nodes=4) is None
    assert find_slow_link(ring([100 * MBIT, *same]), nodes=1) is None
    # of two links one is slow, and each message goes over both
    assert find_slow_link(ring(slow[:2]), nodes=2) is None
    # two slow links: no message goes between others, or one of them does
    assert find_slow_link(ring([*slow, 100 * MBIT]), nodes=4) is None
    assert find_slow_link(ring(slow, nbytes=1000), nodes=3) is None  # latency, not rate
    assert find_slow_link(ring(slow, steps=2), nodes=3) is None  # the first is left out


def collectives(*, sent, seconds=4):
    """Ranks that only took part in collectives, and what their nodes have sent."""
    logs = []
    for mine in sent:
        log = [{"event": "start"}]
        for step in range(1, seconds + 1):
            span = ["all_reduce", 10**6, step * SECOND, step * SECOND + 900 * MS]
            times = {"t": step * SECOND, "data": 0, "total": SECOND, "blocked": [span[2:]]}
            log.append({"event": "step", "step": step, **times, "spans": [span]})
        logs.append([*log, {"event": "end", "sent": mine}])
    return logs


def plans(*rates):
    return [NodePlan(node=k, address=address_of(k), rate=rate) for k, rate in enumerate(rates)]


def test_bytes_tell_which_simulated_link_was_busy():
    logs = collectives(sent=[10_000_000] * 3)  # 20 Mbit/s
    slow = plans(1000 * MBIT, 25 * MBIT, None)
    found = find_slow_link(logs, nodes=3, plans=slow)
    assert (found.node, round(found.busy, 2)) == (1, 0.8)
    assert str(found) == (
        "the link of node 1 (25mbit) is the slowest, and was busy for 80% of the time"
    )
    assert find_slow_link(logs, nodes=2, plans=plans(25 * MBIT, None)).node == 0


def test_a_link_that_is_like_another_or_was_idle_is_not_named():
    logs = collectives(sent=[10_000_000] * 2)
    assert find_slow_link(logs, nodes=2, plans=plans(25 * MBIT, 25 * MBIT)) is None
    assert find_slow_link(logs, nodes=2, plans=plans(100 * MBIT, None)) is None
    assert find_slow_link(logs, nodes=2, plans=plans(None, None)) is None
    assert find_slow_link(logs, nodes=2) is None
    running = [log[:-1] for log in logs]  # not at its end, where bytes are told
    assert find_slow_link(running, nodes=2, plans=plans(25 * MBIT, None)) is None
