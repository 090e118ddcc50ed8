"""`Cloud`: the only client of AWS: every call goes through `call`, which classifies errors.

Requests that AWS throttles are repeated by botocore (its "standard" mode, a bounded number of times
with growing pauses). Launching is repeated here instead: "no capacity" is an HTTP 500 on the wire,
which botocore would repeat, too, while the next zone waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, UnknownRegionError
from botocore.parsers import ResponseParserError

from drumline.cluster.providers.ec2.errors import AwsCall, explain
from drumline.core.errors import CloudError

AwsValues = dict[str, Any]
"""a request to AWS, or a part of its answer: JSON of which AWS's documentation has the schema"""
Sleep = Callable[[float], None]
Failure = (BotoCoreError, ClientError, ResponseParserError)
"""all that boto3 raises; the last: something else than AWS has answered, such as a proxy"""

_TRIES = 6
_PATIENT = Config(
    retries={"mode": "standard", "total_max_attempts": _TRIES}, connect_timeout=5, read_timeout=30
)
_ONCE = Config(
    retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=5, read_timeout=60
)


def open_session(*, profile: str | None = None, region: str | None = None) -> boto3.Session:
    """Return a session of the user's AWS configuration.

    Raises:
        CloudError: there is no such profile.
    """
    try:
        region = region or os.environ.get("AWS_REGION")  # which botocore itself does not read
        return boto3.Session(profile_name=profile, region_name=region)
    except BotoCoreError as error:
        raise explain(
            error, AwsCall(action="sts:GetCallerIdentity", region=region or "?")
        ) from None


def partition_of(region: str | None) -> str:
    """Return the part of AWS that a region is in: aws, aws-cn, aws-us-gov, …

    Args:
        region: None: the one that is configured; where there is none, most people's.

    Raises:
        CloudError: there is no such region.
    """
    try:
        session = open_session(region=region)
        region = session.region_name
        return "aws" if region is None else str(session.get_partition_for_region(region))
    except UnknownRegionError:
        raise CloudError(
            f"AWS has no region {region!r}; write one such as eu-central-1", kind="region"
        ) from None


class Cloud:
    """AWS in one region."""

    def __init__(
        self, session: boto3.Session, *, region: str | None = None, sleep: Sleep = time.sleep
    ) -> None:
        self.sleep = sleep
        self.session = session
        self.region: str = region or session.region_name or ""
        if not self.region:
            raise CloudError(
                "no AWS region is set; write one: ec2: {region: us-east-1}, or set AWS_REGION",
                kind="region",
            )
        self._clients: AwsValues = {}

    def client(self, service: str) -> Any:
        """Return the client of a service (`launch` is EC2 without botocore's repetitions)."""
        if service not in self._clients:
            name, config = ("ec2", _ONCE) if service == "launch" else (service, _PATIENT)
            region = "us-east-1" if service == "pricing" else self.region
            try:
                self._clients[service] = self.session.client(
                    name, region_name=region, config=config
                )
            except (BotoCoreError, ValueError) as error:  # ValueError: not a region's name at all
                raise explain(error, AwsCall(action=f"{name}:*", region=region)) from None
        return self._clients[service]

    def call(
        self, service: str, method: str, about: AwsCall | None = None, /, **params: Any
    ) -> Any:
        """Make one call; `about` says more of what was asked, for a refusal's sentence.

        Raises:
            CloudError: it was refused; `kind` says which way.
        """
        client = self.client(service)
        aws_call = self._aws_call(service, method, about)
        for attempt in range(_TRIES):
            try:
                return getattr(client, method)(**params)
            except Failure as error:
                refusal = explain(error, aws_call)
                again = service == "launch" and refusal.fields["kind"] in ("throttling", "server")
                if not again or attempt == _TRIES - 1:
                    raise refusal from error
                self.sleep(2**attempt)
        raise AssertionError("unreachable")

    def each(self, service: str, method: str, key: str, /, **params: Any) -> Iterator[Any]:
        """Give all items of a listing, over all of its pages."""
        client = self.client(service)
        if not client.can_paginate(method):
            yield from self.call(service, method, **params)[key]
            return
        try:
            for page in client.get_paginator(method).paginate(**params):
                yield from page.get(key, ())
        except Failure as error:
            raise explain(error, self._aws_call(service, method, None)) from error

    def _aws_call(self, service: str, method: str, about: AwsCall | None) -> AwsCall:
        operation = self.client(service).meta.method_to_api_mapping[method]
        action = f"{'ec2' if service == 'launch' else service}:{operation}"
        if about is None:
            return AwsCall(action=action, region=self.region)
        return AwsCall(
            action=action, region=self.region, instance_type=about.instance_type, zone=about.zone
        )


def kind(error: CloudError) -> str:
    """Return the kind of a refusal."""
    return str(error.fields.get("kind", "other"))
