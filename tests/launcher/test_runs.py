"""Files to meet by, as the launcher looks at them: made for a moment, or refused with a reason."""

from __future__ import annotations

import contextlib
import os

import pytest

from drumline.core.errors import UsageError
from drumline.launcher.runs import refuse_bad_init_file


@contextlib.contextmanager
def nobody():
    """Be somebody who may write nowhere; as anybody but root, /etc is closed already."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_that_can_be_made_is_not_left_there(tmp_path):
    refuse_bad_init_file(f"file://{tmp_path}/meeting")
    assert list(tmp_path.iterdir()) == []
    for other in ("env", "tcp", "file", "tcp://127.0.0.1:29500"):
        refuse_bad_init_file(other)


def test_a_file_that_we_may_not_make_is_refused():
    with nobody(), pytest.raises(UsageError) as caught:
        refuse_bad_init_file("file:///etc/drumline-meeting")
    assert caught.value.message == (
        "init: file:///etc/drumline-meeting: the file cannot be made (Permission denied); name one "
        "in a folder that you can write to, or write init: file to do without"
    )
