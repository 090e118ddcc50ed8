"""A backend over shared memory for ranks of one host: same bits on every rank, no file anywhere."""

from drumline.comm.shm.group import ShmGroup, register_shm
from drumline.comm.shm.segment import SharingError, share_segment

__all__ = ["SharingError", "ShmGroup", "register_shm", "share_segment"]
