"""What AWS's errors mean, told apart, each with its way out.

    capacity      they have none left now          quota         you may not have so many
    permission    your user may not                credentials   none, or not valid
    expired       they were valid once             region        no such region, or no way there
    unsupported   not that type, not there         throttling    too many requests
    spot-price    the market asks for more         account       AWS has not opened yours yet
    image         the machine image does not fit   network       the subnet cannot take it
    not-found, duplicate, in-use, repeated         for whoever called, not for a person

`code` keeps AWS's own code, `action` what was asked, and `answered` whether AWS has said no: else
nobody knows whether the request arrived.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from botocore import exceptions as botocore

from drumline.core.errors import CloudError

KINDS: Mapping[str, tuple[str, ...]] = {
    "capacity": (
        "InsufficientInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "UnfulfillableCapacity",
    ),
    "quota": (
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "VolumeLimitExceeded",
        "SecurityGroupLimitExceeded",
        "SecurityGroupsPerInterfaceLimitExceeded",
        "PlacementGroupLimitExceeded",
        "ResourceCountExceeded",
        "ResourceLimitExceeded",
    ),
    "permission": (
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
    ),
    "credentials": (
        "AuthFailure",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
        "IncompleteSignature",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
    ),
    "expired": ("ExpiredToken", "ExpiredTokenException", "RequestExpired"),
    "unsupported": (
        "Unsupported",
        "UnsupportedOperation",
        "InvalidInstanceType",
        "InstanceTypeNotSupported",
    ),
    "throttling": (
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
    ),
    "spot-price": ("SpotMaxPriceTooLow", "InvalidSpotPrice"),
    "account": ("PendingVerification", "OptInRequired", "Blocked"),
    "image": ("InvalidBlockDeviceMapping", "ParameterNotFound", "UnsupportedBootMode"),
    "network": ("InsufficientFreeAddressesInSubnet", "InsufficientAddressCapacity"),
    "in-use": (
        "DependencyViolation",
        "ResourceInUse",
        "VolumeInUse",
        "InvalidPlacementGroup.InUse",
        "IncorrectState",
    ),
    "not-found": ("InvalidPlacementGroup.Unknown",),
    "repeated": ("IdempotentParameterMismatch", "IdempotentInstanceTerminated"),
    "server": ("InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"),
}
_KIND_OF = {code: kind for kind, codes in KINDS.items() for code in codes}


@dataclass(frozen=True, kw_only=True)
class AwsCall:
    """What was asked of AWS, for the sentence that says that it was refused."""

    action: str
    """as IAM spells it: ec2:RunInstances"""
    region: str
    instance_type: str = ""
    zone: str = ""


def kind_of(code: str) -> str:
    """Return which kind of refusal an AWS error code is."""
    code = code.removeprefix("Client.").removeprefix("Server.")
    if code in _KIND_OF:
        return _KIND_OF[code]
    if code.startswith("InvalidAMIID"):
        return "image"
    if code.endswith((".NotFound", ".NotFoundException")):
        return "not-found"
    if code.endswith((".Duplicate", "AlreadyExists")):
        return "duplicate"
    return "other"


def explain(error: Exception, aws_call: AwsCall) -> CloudError:
    """Turn what boto3 raised into one sentence, with its kind and its way out."""
    if isinstance(error, botocore.ClientError):
        answer = error.response.get("Error", {})
        code, message = str(answer.get("Code", "")), str(answer.get("Message", ""))
        kind = "in-use" if "is currently in use" in message else kind_of(code)
        sentence = _sentence(kind, code, message, aws_call)
        answered = kind != "server"
        return CloudError(sentence, kind=kind, code=code, action=aws_call.action, answered=answered)
    for known, kind, sentence in _CLIENT_SIDE:
        if isinstance(error, known):
            message = sentence.format(aws_call=aws_call, error=_one_line(str(error)))
            return _unanswered(message, kind, error, aws_call)
    message = f"{aws_call.action} failed before AWS answered: {_one_line(str(error))}; try again"
    return _unanswered(message, "other", error, aws_call)


def _unanswered(message: str, kind: str, error: Exception, aws_call: AwsCall) -> CloudError:
    code = type(error).__name__
    return CloudError(message, kind=kind, code=code, action=aws_call.action, answered=False)


_LOGIN = "aws sso login, or new keys in ~/.aws/credentials or the environment"
_CLIENT_SIDE: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
    (
        (
            botocore.UnauthorizedSSOTokenError,
            botocore.SSOTokenLoadError,
            botocore.TokenRetrievalError,
        ),
        "expired",
        "your AWS sign-in has expired ({error}); run aws sso login, then this again",
    ),
    (
        (botocore.NoCredentialsError, botocore.CredentialRetrievalError),
        "credentials",
        "no AWS credentials were found; run aws configure (or aws sso login), or set AWS_PROFILE "
        "or ec2.profile to a profile that has some",
    ),
    (
        botocore.PartialCredentialsError,
        "credentials",
        "the AWS credentials are incomplete ({error}); run aws configure to give key and secret",
    ),
    (
        botocore.ProfileNotFound,
        "credentials",
        "AWS does not know the profile ({error}); aws configure list-profiles names those there "
        "are: set ec2.profile or AWS_PROFILE to one of them",
    ),
    (
        (botocore.NoRegionError, botocore.InvalidRegionError),
        "region",
        "no AWS region that could be used ({error}); write one: ec2: {{region: us-east-1}}, or set "
        "AWS_REGION",
    ),
    (
        botocore.ProxyConnectionError,
        "region",
        "the proxy of your environment lets nothing through to AWS in {aws_call.region} ({error}); "
        "check HTTPS_PROXY and NO_PROXY",
    ),
    (
        (
            botocore.EndpointConnectionError,
            botocore.ConnectTimeoutError,
            botocore.ReadTimeoutError,
            botocore.SSLError,
            botocore.ConnectionClosedError,
            botocore.HTTPClientError,
        ),
        "region",
        "AWS does not answer in region {aws_call.region} ({error}); check that such a region "
        "exists (ec2.region), and your network",
    ),
)


_SENTENCES = {
    "capacity": "AWS has no {what} left in {place} now ({code}); wait, or let it try elsewhere: "
    "another ec2.region, more ec2.zones, another ec2.instance_type",
    "quota": "your AWS account's quota does not allow this in {region} ({code}: {said}); ask for "
    "more at Service Quotas (EC2), or take fewer nodes or a smaller type",
    "permission": "your AWS user may not do {named} ({code}); have the policy attached that "
    "drumline iam-policy prints",
    "credentials": "AWS does not accept your credentials in {region} ({code}: {said}); check the "
    "keys and that the region is enabled for the account: {login}",
    "expired": "your AWS credentials have expired ({code}), or this machine's clock is wrong; "
    "renew them ({login}), then run this again: it continues",
    "unsupported": "{what} cannot be had in {place} as asked ({code}: {said}); take another "
    "ec2.instance_type or ec2.zones",
    "throttling": "AWS is told too much at once by your account ({code} for {action}, also after "
    "several tries); wait a minute, then run this again: it continues",
    "spot-price": "the spot market in {place} asks for more than your limit for {what} ({said}); "
    "raise ec2.max_price_usd, leave it out, or write ec2: {{spot: false}}",
    "account": "AWS has not opened your account for this yet ({code}: {said}); follow the link "
    "there or wait for its mail, then run this again",
    "image": "the machine image does not fit ({code}: {said}); give another ec2.ami, or a larger "
    "ec2.disk_gb",
    "network": "the subnet has no free addresses left ({said}); give another ec2.subnet",
    "server": "AWS itself failed at {action} ({code}: {said}); run this again",
    "other": "AWS refused {action} ({code}: {said}); mend that, then run this again",
}
"""what was refused, why, and what to do, by kind"""


def _sentence(kind: str, code: str, message: str, aws_call: AwsCall) -> str:
    return _SENTENCES.get(kind, _SENTENCES["other"]).format(
        action=aws_call.action,
        code=code,
        login=_LOGIN,
        named=_named_action(message) or aws_call.action,
        place=aws_call.zone or aws_call.region,
        region=aws_call.region,
        said=_one_line(message) or code,
        what=aws_call.instance_type or "such machines",
    )


def _named_action(message: str) -> str | None:
    """Find the action in a refusal: it may be another than the one called (iam:PassRole)."""
    found = re.search(r"perform:? ([a-z0-9-]+:[A-Za-z]+)", message)
    return found[1] if found else None


def _one_line(text: str) -> str:
    """Return a message on one line, without the long encoded part that some have."""
    text = text.split("Encoded authorization failure message")[0]
    line = " ".join(text.split()).rstrip(". ")
    return line if len(line) <= 300 else line[:300] + " …"
