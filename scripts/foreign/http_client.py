"""urllib3 against the example axum: its `Retry` honours our `Retry-After`, and succeeds on its first retry."""

import sys
import time

import urllib3
from urllib3.util import Retry


def check(holds: bool, what: object) -> None:
    if not holds:
        sys.exit(f"FAILED: {what}")


def main(address: str) -> None:
    url = f"http://{address}/"
    http = urllib3.PoolManager(timeout=20)
    for _ in range(5):
        check(http.request("GET", url, retries=False).status == 200, "within the limit")
    refused = http.request("GET", url, retries=False)
    check(refused.status == 429, refused.status)
    told = int(refused.headers["Retry-After"])
    check(1 <= told <= 10, told)

    began = time.monotonic()
    # One retry is all that it has.
    answer = http.request("GET", url, retries=Retry(total=1, respect_retry_after_header=True))
    waited = time.monotonic() - began
    check(answer.status == 200, answer.status)
    check([each.status for each in answer.retries.history] == [429], answer.retries.history)
    print(f"told {told} s, waited {waited:.1f} s, served on the first retry")


main(sys.argv[1])
