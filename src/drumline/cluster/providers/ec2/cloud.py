"""`Cloud`: the only client of AWS: every call goes through `call`, which classifies errors.

Requests that AWS throttles are repeated by botocore's "standard" mode. Launching is repeated here
instead: "no capacity" is an HTTP 500, which botocore would repeat, too, while the next zone waits.

`errors.yaml` has the kinds of errors, each with its way out; `policy.yaml` what AWS must allow.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import boto3
import yaml
from botocore import exceptions
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, UnknownRegionError
from botocore.parsers import ResponseParserError
from pydantic import BaseModel

from drumline.cluster.life.journal import Journal
from drumline.cluster.providers import Reporter
from drumline.core.errors import CloudError

AwsValues = dict[str, Any]
"""a request to AWS, or a part of its answer: JSON of which AWS's documentation has the schema"""
Sleep = Callable[[float], None]
_BOTO_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
"""all that boto3 raises; the last: something else than AWS has answered, such as a proxy"""

_TRIES = 6
_PATIENT = Config(
    retries={"mode": "standard", "total_max_attempts": _TRIES}, connect_timeout=5, read_timeout=30
)
_ONCE = Config(
    retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=5, read_timeout=60
)


def open_session(*, profile: str | None = None, region: str | None = None) -> boto3.Session:
    """Open a boto3 session with the user's AWS configuration."""
    try:
        region = region or os.environ.get("AWS_REGION")  # which botocore itself does not read
        return boto3.Session(profile_name=profile, region_name=region)
    except BotoCoreError as error:
        raise _explain(error, "sts:GetCallerIdentity", region or "?") from None


class Cloud:
    """AWS in one region."""

    def __init__(
        self, session: boto3.Session, *, region: str | None = None, sleep: Sleep = time.sleep
    ) -> None:
        self.sleep = sleep
        self.session = session
        self.region: str = region or session.region_name or ""
        if not self.region:
            raise refusal("region-unset")
        self._clients: dict[str, BaseClient] = {}

    def client(self, service: str) -> BaseClient:
        """Return the client of a service (`launch` is EC2 without botocore's repetitions)."""
        if service not in self._clients:
            name, config = ("ec2", _ONCE) if service == "launch" else (service, _PATIENT)
            region = "us-east-1" if service == "pricing" else self.region
            try:
                client = self.session.client(name, region_name=region, config=config)
                self._clients[service] = client
            except (BotoCoreError, ValueError) as error:  # ValueError: not a region's name at all
                raise _explain(error, f"{name}:*", region) from None
        return self._clients[service]

    def call(
        self, service: str, method: str, /, *, what: str = "", zone: str = "", **params: Any
    ) -> Any:
        """Make one call, or raise CloudError; `what` is asked for in `zone`, for its sentence."""
        client = self.client(service)
        for attempt in range(_TRIES):
            try:
                return getattr(client, method)(**params)
            except _BOTO_ERRORS as error:
                action = self._action(service, method)
                told = _explain(error, action, self.region, what=what, zone=zone)
                again = service == "launch" and error_kind(told) in ("throttling", "server")
                if not again or attempt == _TRIES - 1:
                    raise told from error
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
        except _BOTO_ERRORS as error:
            raise _explain(error, self._action(service, method), self.region) from error

    def _action(self, service: str, method: str) -> str:
        """Return what was asked as IAM spells it: ec2:RunInstances."""
        operation = self.client(service).meta.method_to_api_mapping[method]
        return f"{'ec2' if service == 'launch' else service}:{operation}"


@dataclass(frozen=True)
class CloudWriter:
    """Makes the calls that create or remove something, each in between two lines of the journal."""

    cloud: Cloud
    journal: Journal
    report: Reporter

    def forgiving(self) -> CloudWriter:
        """Return it for whoever removes something: a journal that is full keeps nothing alive."""
        return replace(self, journal=self.journal.forgiving())

    def call(
        self,
        method: str,
        params: AwsValues,
        *,
        note: Mapping[str, object],
        result: Callable[[Any], dict[str, str]] = lambda answer: {},
        **about: str,
    ) -> Any:
        """Make a call; `note` and `result` are what the journal says of the intent, and the answer.

        Raises:
            CloudError: it was refused. Where AWS has not answered, the intent stays open.
        """
        intent = self.journal.intend(method, **note)
        service = "launch" if method == "run_instances" else "ec2"
        try:
            answer = self.cloud.call(service, method, **about, **params)
        except CloudError as error:
            if error.fields.get("answered"):
                self.journal.failed(intent, error.message)
            raise
        self.journal.did(intent, **result(answer))
        return answer


class _Answered(BaseModel):
    codes: tuple[str, ...]
    sentence: str = ""


class _Refused(BaseModel):
    kind: str
    sentence: str


class _Unanswered(_Refused):
    errors: tuple[str, ...]


class _Errors(BaseModel):
    answered: dict[str, _Answered]
    unanswered: tuple[_Unanswered, ...]
    refused: dict[str, _Refused]


@functools.cache
def known_errors() -> _Errors:
    """Read the errors of AWS that we can explain, and our own, with their way out."""
    return _Errors.model_validate(yaml.safe_load(read_data("errors.yaml")))


def refusal(name: str, /, **values: Any) -> CloudError:
    """Return an error of our own about AWS, by its name in `errors.yaml`; it keeps plain values."""
    found = known_errors().refused[name]
    plain = {key: value for key, value in values.items() if isinstance(value, str | int | float)}
    return CloudError(found.sentence.format(**values), kind=found.kind, **plain)


def error_kind(error: CloudError) -> str:
    """Return the kind of an AWS error, as `errors.yaml` names it: capacity, quota, …"""
    return str(error.fields.get("kind", "other"))


def kind_of(code: str) -> str:
    """Return which kind of error an AWS error code is."""
    code = code.removeprefix("Client.").removeprefix("Server.")
    for name, known in known_errors().answered.items():
        if any(fnmatch.fnmatchcase(code, pattern) for pattern in known.codes):
            return name
    return "other"


def _explain(
    error: Exception, action: str, region: str, *, what: str = "", zone: str = ""
) -> CloudError:
    """Turn what boto3 raised into one sentence, with its kind and its way out.

    `answered` says whether AWS has said no: else nobody knows whether the request arrived.
    """
    if isinstance(error, ClientError):
        answer = error.response.get("Error", {})
        code, said = str(answer.get("Code", "")), str(answer.get("Message", ""))
        found = "in-use" if "is currently in use" in said else kind_of(code)
        known = known_errors().answered
        sentence = known.get(found, known["other"]).sentence or known["other"].sentence
        answered = found != "server"
    else:
        code, said, answered = type(error).__name__, str(error), False
        found, sentence = next(
            (one.kind, one.sentence)
            for one in known_errors().unanswered
            if isinstance(error, tuple(getattr(exceptions, name, Exception) for name in one.errors))
        )
    # the refused action may be another than the one called (iam:PassRole)
    named = re.search(r"perform:? ([a-z0-9-]+:[A-Za-z]+)", said)
    message = sentence.format(
        action=action,
        code=code,
        named=named[1] if named else action,
        place=zone or region,
        region=region,
        said=_one_line(said) or code,
        what=what or "such machines",
    )
    return CloudError(message, kind=found, code=code, action=action, answered=answered)


def _one_line(text: str) -> str:
    """Return a message on one line, without the long encoded part that some have."""
    text = text.split("Encoded authorization failure message")[0]
    line = " ".join(text.split()).rstrip(". ")
    return line if len(line) <= 300 else line[:300] + " …"


def policy_document(
    *, spot: bool = False, role: str | None = None, partition: str = "aws"
) -> dict[str, object]:
    """Return the IAM policy with just the AWS actions that Drumline calls.

    `spot`: also allow the role that AWS makes when an account uses spot for the first time.
    `role`: the ARN of the role in `ec2.instance_profile`, which nodes must be given.
    """
    text = read_data("policy.yaml").replace("@partition@", partition).replace("@role@", role or "")
    if partition == "aws-cn":  # where services have names of their own
        text = text.replace("[ec2.amazonaws.com]", "[ec2.amazonaws.com, ec2.amazonaws.com.cn]")
    parts = yaml.safe_load(text)
    wanted = [parts["always"], parts["spot"] if spot else [], parts["role"] if role else []]
    return {"Version": "2012-10-17", "Statement": [one for part in wanted for one in part]}


def partition_of(region: str | None) -> str:
    """Return the AWS partition (aws, aws-cn, …) of a region, or of the one that is configured."""
    try:
        session = open_session(region=region)
        region = session.region_name
        return "aws" if region is None else str(session.get_partition_for_region(region))
    except UnknownRegionError:
        raise refusal("region-unknown", region=region) from None


def read_data(name: str) -> str:
    """Read a file that lies beside the modules for EC2."""
    return resources.files("drumline.cluster.providers.ec2").joinpath(name).read_text()
