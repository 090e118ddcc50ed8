"""What storages raise, told as one sentence with the way out.

fsspec has a class for each kind of storage, and each has errors of its own; what they mean is read
off their names and words.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from drumline.core.errors import ClusterError

NO_BUCKET = "does not exist"
_USER = re.compile(r"(?<=://)[^/\s]+@")


def shown_url(url: str) -> str:
    """Return a storage's address without what nobody else should see: password and parameters."""
    return _USER.sub("", url.partition("?")[0])


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what storages raise into one sentence with the way out."""
    shown = shown_url(url)
    try:
        yield
    except ClusterError:
        raise
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}.get(url.partition("://")[0])
        fix = f"pip install {package}" if package else "install the package that it names"
        raise ClusterError(
            f"the storage {shown} needs a package that is not installed ({error}); {fix}, here or "
            f"by the requirements of your cluster.yaml"
        ) from None
    except Exception as error:
        kind, fix = kind_of(error)
        if not kind:
            raise
        said = str(error).replace(url, shown)
        raise ClusterError(f"the storage {shown} {kind} ({said}); {fix}", kind=kind) from None


def kind_of(error: Exception) -> tuple[str, str]:
    """Say what an error of a storage means, and what to do."""
    said = f"{type(error).__name__} {error}"
    if isinstance(error, ValueError) and "rotocol not known" in said:
        return "has a protocol that fsspec does not know", "write s3://bucket/prefix, for example"
    if "NoCredentials" in said or "Unable to locate credentials" in said:
        fix = "on nodes, give ec2.instance_profile; on the laptop, set up AWS credentials"
        return "needs credentials, and there are none", fix
    if isinstance(error, PermissionError) or "AccessDenied" in said or "Forbidden" in said:
        return "may not be used by you", "allow reading, writing and listing of that prefix"
    if "NoSuchBucket" in said or "bucket does not exist" in said:
        return NO_BUCKET, "make the bucket, or correct storage in your cluster.yaml"
    if "EndpointConnection" in said or isinstance(error, ConnectionError | TimeoutError):
        return "cannot be reached", "check the network, and the address"
    if isinstance(error, OSError):
        return "cannot be used", "check the address, the room, and what you may do there"
    return "", ""
