"""grpcio against the example tonic: five calls in ten seconds are allowed; the sixth succeeds after its retry delay."""

import sys
import time

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub


def check(condition: bool, message: object) -> None:
    if not condition:
        sys.exit(f"FAILED: {message}")


def rejection_delay(error: grpc.RpcError) -> float:
    """Checks the details of a rejection. Returns its retry delay in seconds."""
    check(error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error)
    check(error.details().startswith('rate limit "default" exceeded, retry after '), error.details())
    metadata = dict(error.trailing_metadata())
    status = Status.FromString(metadata["grpc-status-details-bin"])
    check(status.code == 8 and status.message == error.details(), status)

    def detail(message):
        found = [any_ for any_ in status.details if any_.Is(message.DESCRIPTOR)]
        check(len(found) == 1, status)
        check(isinstance(found[0], Any) and found[0].Unpack(message), status)
        return message

    delay = detail(RetryInfo()).retry_delay.ToTimedelta().total_seconds()
    violations = detail(QuotaFailure()).violations
    check(0 < delay <= 10, delay)
    read = [(violation.subject, violation.description) for violation in violations]
    check(read == [("limit:default", "at most 5 in 10s")], violations)
    print(f"rejected: {error.details()}; RetryInfo {delay} s; QuotaFailure {violations[0].subject!r}")
    return delay


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = HealthStub(channel)
        request = HealthCheckRequest()
        timeout = 20

        # The server charges a stream when the call starts, before the client reads a message.
        watch = health.Watch(request, timeout=60)
        for _ in range(4):
            check(health.Check(request, timeout=timeout).status == HealthCheckResponse.SERVING, "a unary call")
        check(next(watch).status == HealthCheckResponse.SERVING, "a stream")

        try:
            check(False, health.Check(request, timeout=timeout))
        except grpc.RpcError as error:
            rejection_delay(error)
        try:
            check(False, next(health.Watch(request, timeout=timeout)))
        except grpc.RpcError as error:
            delay = rejection_delay(error)
        try:
            health.Check.with_call(request, timeout=timeout)
            check(False, "a call before the delay has passed")
        except grpc.RpcError as error:
            delay = rejection_delay(error)

        time.sleep(delay)
        check(health.Check(request, timeout=timeout).status == HealthCheckResponse.SERVING, "a unary call")
        check(next(health.Watch(request, timeout=timeout)).status == HealthCheckResponse.SERVING, "a stream")
        watch.cancel()
        print("allowed after exactly that delay")


main(sys.argv[1])
