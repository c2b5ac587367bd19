"""urllib3 against the example axum: its `Retry` honours `Retry-After`, and the first retry succeeds."""

import sys
import time

import urllib3
from urllib3.util import Retry


def check(condition: bool, message: object) -> None:
    if not condition:
        sys.exit(f"FAILED: {message}")


def main(address: str) -> None:
    url = f"http://{address}/"
    http = urllib3.PoolManager(timeout=20)
    for _ in range(5):
        check(http.request("GET", url, retries=False).status == 200, "within the limit")
    rejected = http.request("GET", url, retries=False)
    check(rejected.status == 429, rejected.status)
    retry_after = int(rejected.headers["Retry-After"])
    check(1 <= retry_after <= 10, retry_after)

    started = time.monotonic()
    # `total=1`: a retry that comes too early would fail the check.
    response = http.request("GET", url, retries=Retry(total=1, respect_retry_after_header=True))
    waited = time.monotonic() - started
    check(response.status == 200, response.status)
    check([entry.status for entry in response.retries.history] == [429], response.retries.history)
    print(f"Retry-After {retry_after} s, waited {waited:.1f} s, allowed on the first retry")


main(sys.argv[1])
