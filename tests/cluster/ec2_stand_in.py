"""A stand-in for Amazon EC2 that answers over HTTP on loopback: moto's server, made stricter.

What moto lacks is added here: placement groups, client tokens, groups that cannot be removed while
something is in them, tags on network interfaces, AWS's deep-learning image parameters and price
list, instances that take a few looks to start and to end, and refusals on demand. It keeps a record
of all calls. Nothing of the product is made weaker for it.

    with Ec2StandIn() as aws:
        session = aws.session()              # or environment: aws.environment()
        aws.refuse("RunInstances", "InsufficientInstanceCapacity", nth=2)
        aws.on_launch.append(lambda instance: …)   # id, addresses, user data, tags: attach a node
        …
        aws.calls                             # [Call(service="ec2", action="RunInstances", …)]

As a program (`python ec2_stand_in.py`) it prints its address and serves until its input ends; then
faults and the record go by HTTP: POST /stand-in/refuse, GET /stand-in/calls, GET /stand-in/left.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import boto3
from ec2_lessons import PlacementGroup, teach_moto
from ec2_lists import PARAMETERS, REGION, list_parameters, list_products
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import InstanceState
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

STATUS = {
    "InsufficientInstanceCapacity": 500,
    "UnauthorizedOperation": 403,
    "RequestLimitExceeded": 503,
    "InternalError": 500,
    "AuthFailure": 401,
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request that came in."""

    service: str
    action: str
    params: dict[str, Any]
    region: str = ""

    @property
    def iam(self) -> str:
        return f"{self.service}:{self.action}"


@dataclass(kw_only=True)
class Fault:
    """A refusal to come."""

    action: str
    code: str
    message: str
    nth: int = 1
    times: int = 1
    lost: bool = False
    where: Callable[[dict[str, Any]], bool] = lambda params: True
    seen: int = 0

    def strikes(self, call: Call) -> bool:
        if call.action != self.action or not self.where(call.params):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


@dataclass
class Ec2StandIn:
    """The server, and what a test may know and decide of it."""

    pending_looks: int = 0
    """for so many looks at instances a new one is pending"""
    ending_looks: int = 0
    """for so many looks a terminated one is shutting down, and its group in use"""
    listing_lag: int = 0
    """for so many looks a new instance is not listed, as happens at AWS for some seconds"""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    on_launch: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    on_end: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    on_look: list[Callable[[], None]] = field(default_factory=list)
    """called before instances are listed"""
    groups: dict[str, PlacementGroup] = field(default_factory=dict)
    tokens: dict[str, tuple[str, Any]] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    hidden: dict[str, int] = field(default_factory=dict)
    vpc: str = ""
    subnets: dict[str, str] = field(default_factory=dict)
    """of 10.77.0.0/16, by zone: 10.77.1.0/24 is in the first"""
    url: str = ""
    _session: boto3.Session | None = None

    def __enter__(self) -> Ec2StandIn:
        os.environ.setdefault("MOTO_ALLOW_NONEXISTENT_REGION", "true")
        self._lock = threading.RLock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_QuietHandler
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        teach_moto(self)
        self.reset()
        return self

    @contextlib.contextmanager
    def also_at(self, listener: socket.socket) -> Iterator[str]:
        """Answer at another socket, too, which may be in another network; gives its address."""
        server = make_server(
            "127.0.0.1",
            0,
            self._serve,
            threaded=True,
            request_handler=_QuietHandler,
            fd=listener.fileno(),
        )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # What tests ask for

    def reset(self) -> None:
        """Forget everything, quickly where possible."""
        self.calls.clear()
        self.faults.clear()
        if self.vpc:
            self.restore(self._nothing)
        else:
            self._make_network()
            self._nothing = self.snapshot()

    def _make_network(self) -> None:
        ec2_backends.reset()
        self.groups.clear()
        self.tokens.clear()
        self.looks.clear()
        backend = self.backend()
        for identity in set(backend.amis) - {*PARAMETERS.values()}:
            del backend.amis[identity]
        vpc = backend.create_vpc("10.77.0.0/16")
        self.vpc = vpc.id
        self.subnets = {
            f"{REGION}{letter}": backend.create_subnet(
                vpc.id, f"10.77.{number}.0/24", availability_zone=f"{REGION}{letter}"
            ).id
            for number, letter in enumerate("abc", start=1)
        }

    def backend(self, region: str = REGION) -> Any:
        return ec2_backends[DEFAULT_ACCOUNT_ID][region]

    def environment(self) -> dict[str, str]:
        """Return what makes boto3 talk to it, in this process or another."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def session(self, region: str = REGION) -> boto3.Session:
        return boto3.Session("AKIAIOSFODNN7EXAMPLE", "not-a-secret", region_name=region)

    def shared_session(self) -> boto3.Session:
        """Return one session for all, since each new one reads AWS's descriptions again."""
        if self._session is None:
            self._session = self.session()
        return self._session

    def refuse(
        self, action: str, code: str, message: str = "refused for a test", **how: Any
    ) -> None:
        """Refuse the nth call of an action from now on (`times` in a row).

        `lost`: it is done, but the answer never arrives. `where`: only calls with such parameters.
        """
        self.faults.append(Fault(action=action, code=code, message=message, **how))

    def left(self) -> list[str]:
        """Return everything that exists and costs or clutters, tagged or not."""
        backend = self.backend()
        own = [group for groups in backend.groups.values() for group in groups.values()]
        return [
            *(instance.id for instance in self.living()),
            *(group.id for group in own if group.name != "default"),
            *self.groups,
            *backend.key_pairs,
            *backend.volumes,
            *backend.enis,
        ]

    def living(self) -> list[Any]:
        """Return the instances that are not terminated."""
        return [one for one in self.backend().all_instances() if one.state != "terminated"]

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of all that clusters consist of."""
        backend = self.backend()
        state = {name: getattr(backend, name) for name in _STATE}
        state |= {"placement": self.groups, "tokens": self.tokens, "looks": self.looks}
        fixed = [backend, *backend.vpcs.values(), *backend.amis.values()]
        fixed += [net for zone in backend.subnets.values() for net in zone.values()]
        with self._lock:
            return copy.deepcopy(state, {id(thing): thing for thing in fixed})

    def restore(self, state: dict[str, Any]) -> None:
        """Put everything back as it was at a snapshot, which can be used again."""
        backend = self.backend()
        fixed = [backend, *backend.vpcs.values(), *backend.amis.values()]
        fixed += [net for zone in backend.subnets.values() for net in zone.values()]
        state = copy.deepcopy(state, {id(thing): thing for thing in fixed})
        with self._lock:
            for name in _STATE:
                setattr(backend, name, state[name])
            self.groups, self.tokens = state["placement"], state["tokens"]
            self.looks = state["looks"]

    # The server

    def _serve(self, environ: dict[str, Any], start: Any) -> Any:
        path = environ.get("PATH_INFO", "")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if path == "/stand-in/address":  # as checkip.amazonaws.com answers
            start("200 OK", [("Content-Length", str(len(environ["REMOTE_ADDR"]) + 1))])
            return [environ["REMOTE_ADDR"].encode() + b"\n"]
        if path.startswith("/stand-in/"):
            return _answer(start, 200, self._control(path, body))
        call = _read_call(environ, body)
        with self._lock:
            self.calls.append(call)
            fault = next((fault for fault in list(self.faults) if fault.strikes(call)), None)
        if fault is not None and not fault.lost:
            return _refuse(start, call, fault)
        if call.service == "pricing":
            return _answer(start, 200, list_products(call.params))
        if call.service == "ssm" and "deeplearning" in json.dumps(call.params):
            found = list_parameters(call.action, call.params)
            return _answer(start, 400 if "__type" in found else 200, found)
        with self._lock:  # moto's own state knows no threads
            answer = list(self._moto(environ, start))
        if fault is not None:
            environ["werkzeug.socket"].shutdown(2)
        return answer

    def _control(self, path: str, body: bytes) -> Any:
        match path.removeprefix("/stand-in/"):
            case "refuse":
                self.refuse(**json.loads(body))
                return {}
            case "calls":
                return [asdict(call) for call in self.calls]
            case "left":
                return self.left()
        return {}

    def launched(self, instance: Any) -> None:
        self.hidden[instance.id] = self.listing_lag
        if self.pending_looks:
            instance._state = InstanceState("pending", 0)
            self.looks[instance.id] = self.pending_looks
        for hook in self.on_launch:
            hook(_facts(instance))

    def ended(self, instance: Any) -> None:
        if self.ending_looks:
            instance._state = InstanceState("shutting-down", 32)
            self.looks[instance.id] = self.ending_looks
        for hook in self.on_end:
            hook(_facts(instance))

    def look(self) -> None:
        """Let time pass by one look at the instances."""
        for hook in self.on_look:
            hook()
        for identity in list(self.looks):
            self.looks[identity] -= 1
            if self.looks[identity] < 0:
                del self.looks[identity]
                instance = self.backend().get_instance(identity)
                started = instance.state == "pending"
                instance._state = (
                    InstanceState("running", 16) if started else InstanceState("terminated", 48)
                )


_STATE = ("reservations", "groups", "key_pairs", "volumes", "enis", "tags")
"""what moto's backend keeps of a cluster"""


class _QuietHandler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *words: Any) -> None:
        pass


def _facts(instance: Any) -> dict[str, Any]:
    return {
        "id": instance.id,
        "private_ip": instance.private_ip,
        "public_ip": instance.public_ip,
        "user_data": base64.b64decode(str(instance.user_data or "")).decode(),
        "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
    }


def _read_call(environ: dict[str, Any], body: bytes) -> Call:
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split("/")
    region, service = (scope[2], scope[3]) if len(scope) > 3 else ("", "")
    target = environ.get("HTTP_X_AMZ_TARGET")
    if target:
        params = json.loads(body or b"{}")
        return Call(service=service, action=target.split(".")[-1], params=params, region=region)
    if service == "s3":  # a file, or a question about one
        words = {"path": environ.get("PATH_INFO", ""), "query": environ.get("QUERY_STRING", "")}
        action = environ["REQUEST_METHOD"]
        return Call(service=service, action=action, params=words, region=region)
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return Call(service=service, action=form.pop("Action", ""), params=form, region=region)


def _answer(start: Any, status: int, content: Any) -> list[bytes]:
    text = json.dumps(content).encode()
    kind = ("Content-Type", "application/x-amz-json-1.1")
    start(f"{status} Said", [kind, ("Content-Length", str(len(text)))])
    return [text]


def _refuse(start: Any, call: Call, fault: Fault) -> list[bytes]:
    status = STATUS.get(fault.code, 400)
    if call.service != "ec2":
        return _answer(start, status, {"__type": fault.code, "message": fault.message})
    text = (
        f"<Response><Errors><Error><Code>{fault.code}</Code><Message>{fault.message}</Message>"
        f"</Error></Errors><RequestID>0</RequestID></Response>"
    ).encode()
    start(f"{status} Refused", [("Content-Type", "text/xml"), ("Content-Length", str(len(text)))])
    return [text]


def serve() -> Iterator[None]:
    """Serve until the input ends."""
    with Ec2StandIn() as aws:
        print(aws.url, flush=True)
        sys.stdin.read()
        yield


if __name__ == "__main__":
    list(serve())
