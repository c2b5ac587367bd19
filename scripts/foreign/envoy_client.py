"""grpcio against the example envoy_rls: Envoy's ShouldRateLimit, with the messages of Envoy's data plane API."""

import json
import sys
import time

import grpc
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub
from envoy.type.v3.ratelimit_unit_pb2 import RateLimitUnit

OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT


def check(condition: bool, message: object) -> None:
    if not condition:
        sys.exit(f"FAILED: {message}")


def descriptor(*entries: tuple[str, str], **fields: object) -> RateLimitDescriptor:
    pairs = [RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries]
    return RateLimitDescriptor(entries=pairs, **fields)


def fields(response: RateLimitResponse) -> dict[str, str]:
    return {field.key: field.value for field in response.response_headers_to_add}


def seconds(status: RateLimitResponse.DescriptorStatus) -> float:
    return status.duration_until_reset.ToTimedelta().total_seconds()


def main(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = RateLimitServiceStub(channel)

        def ask(*descriptors: RateLimitDescriptor, domain: str = "edge", **rest: object) -> RateLimitResponse:
            request = RateLimitRequest(domain=domain, descriptors=descriptors, **rest)
            return stub.ShouldRateLimit(request, timeout=20)

        client = ("remote_address", "192.0.2.1")
        page, login = descriptor(client), descriptor(("path", "/login"), client)

        # Two logins a minute, and five requests: one decision on both.
        for left in (1, 0):
            allowed = ask(page, login)
            check([allowed.overall_code, *(status.code for status in allowed.statuses)] == [OK, OK, OK], allowed)
            check([status.limit_remaining for status in allowed.statuses] == [3 + left, left], allowed)
        limit = allowed.statuses[1].current_limit
        minute = RateLimitResponse.RateLimit.MINUTE
        check((limit.name, limit.requests_per_unit, limit.unit) == ("login", 2, minute), limit)
        check(fields(allowed)["ratelimit-policy"] == '"address";q=5;w=60, "login";q=2;w=60', fields(allowed))

        denied = ask(page, login)
        check([denied.overall_code, *(status.code for status in denied.statuses)] == [OVER_LIMIT, OK, OVER_LIMIT], denied)
        wait = seconds(denied.statuses[1])
        check(50 < wait < 60 and int(fields(denied)["retry-after"]) == int(wait) + 1, (wait, fields(denied)))
        problem = json.loads(denied.raw_body)
        check(problem["violated-policies"] == ["login"], problem)

        # The denied login was not charged to the address.
        for left in (2, 1, 0):
            allowed = ask(page)
            check((allowed.overall_code, allowed.statuses[0].limit_remaining) == (OK, left), allowed)
        denied = ask(page)
        check(denied.overall_code == OVER_LIMIT, denied)
        wait = seconds(denied.statuses[0])
        check(0 < wait <= 12, wait)
        print(f"denied: {fields(denied)['ratelimit']}, {wait} s")

        # Costs: of the whole request, and of a descriptor whose limit has a unit.
        other = descriptor(("remote_address", "192.0.2.2"))
        check(ask(other, hits_addend=4).statuses[0].limit_remaining == 1, "hits of a request")
        model = descriptor(("model", "large"), hits_addend={"value": 2_500})
        # The limit of the tokens is one of those whose usage is reported: a request is charged none.
        request = descriptor(("model", "large"), hits_addend={"value": 0})
        both = ask(other, request)
        check([status.limit_remaining for status in both.statuses] == [0, 9_999], both)
        check(ask(model).overall_code == OK, "a report")
        after = ask(request)
        check(7_490 < after.statuses[0].limit_remaining < 7_600, after)

        # Descriptors and domains without a limit.
        free = ask(descriptor(("remote_address", "192.0.2.3"), ("path", "/other")))
        check((free.overall_code, free.statuses[0].code, len(fields(free))) == (OK, OK, 0), free)
        check(ask(page, domain="another").overall_code == OK, "another domain")

        # What the service refuses, with a reason. The package may be older than `is_negative_hits`, field 4.
        negative = RateLimitDescriptor.FromString(page.SerializeToString() + b"\x20\x01")
        override = RateLimitDescriptor.RateLimitOverride(requests_per_unit=9, unit=RateLimitUnit.SECOND)
        for refused, reason in (
            ([negative], "negative hits"),
            ([descriptor(client, limit=override)], "a limit in the request"),
            ([page, other], "two descriptors"),
            ([descriptor(client, hits_addend={"value": 3})], "give the limit a `unit`"),
        ):
            try:
                check(False, ask(*refused))
            except grpc.RpcError as error:
                check(error.code() is grpc.StatusCode.INVALID_ARGUMENT and reason in error.details(), error)

        denied = ask(page)
        time.sleep(seconds(denied.statuses[0]) / 2)
        denied = ask(page)
        check(denied.overall_code == OVER_LIMIT, "allowed before the duration has passed")
        time.sleep(seconds(denied.statuses[0]))
        check(ask(page).overall_code == OK, "denied after the duration has passed")
        print("allowed after exactly that duration")


main(sys.argv[1])
