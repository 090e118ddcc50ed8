"""Lab 2: how long did the communication take, and how much of that was waiting? TASK.md, section 4.

rank 0   |------ wait ------|-- transfer --|       arrived first
rank 1                      |-- transfer --|       arrived last
"""

import time

import torch.distributed as dist


def time_communication(communicate):
    """Run communicate() once, and return (wait_s, transfer_s) of this rank, in seconds.

    wait_s       from this rank's arrival here until the last rank has arrived
    transfer_s   from then until the communication has ENDED on this rank

    Every rank calls this. communicate() starts one collective and returns its handle, as
    `dist.all_reduce(tensor, async_op=True)` does: the bytes are under way when it returns, not
    there. It returns None where it has waited for the end itself.
    """
    arrived = time.perf_counter()
    dist.barrier()
    started = time.perf_counter()
    work = communicate()
    if work is not None:
        work.wait()
    ended = time.perf_counter()
    return started - arrived, ended - started
