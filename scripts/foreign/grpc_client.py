"""grpcio against the example tonic: five calls in ten seconds pass; the sixth is told when to come back, and does."""

import sys
import time

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub


def check(holds: bool, what: object) -> None:
    if not holds:
        sys.exit(f"FAILED: {what}")


def refusal_of(error: grpc.RpcError) -> float:
    """Reads the details that every refusal has. Returns for how many seconds to wait."""
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
    told = [(each.subject, each.description) for each in violations]
    check(told == [("limit:default", "at most 5 in 10s")], violations)
    print(f"refused: {error.details()}; RetryInfo {delay} s; QuotaFailure {violations[0].subject!r}")
    return delay


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = HealthStub(channel)
        request = HealthCheckRequest()
        patience = 20

        # A stream is charged when it begins, before anything of it is read.
        watch = health.OutcomeGuard(request, timeout=60)
        for _ in range(4):
            check(health.Check(request, timeout=patience).status == HealthCheckResponse.SERVING, "a unary call")
        check(next(watch).status == HealthCheckResponse.SERVING, "a stream")

        try:
            check(False, health.Check(request, timeout=patience))
        except grpc.RpcError as error:
            refusal_of(error)
        try:
            check(False, next(health.OutcomeGuard(request, timeout=patience)))
        except grpc.RpcError as error:
            delay = refusal_of(error)
        try:
            health.Check.with_call(request, timeout=patience)
            check(False, "a call in between")
        except grpc.RpcError as error:
            delay = refusal_of(error)

        time.sleep(delay)
        check(health.Check(request, timeout=patience).status == HealthCheckResponse.SERVING, "a unary call")
        check(next(health.OutcomeGuard(request, timeout=patience)).status == HealthCheckResponse.SERVING, "a stream")
        watch.cancel()
        print("served again after exactly that time")


main(sys.argv[1])
