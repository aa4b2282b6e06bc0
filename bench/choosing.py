"""What each balancer costs a request: CPU time of one reservation and its release.

    python bench/choosing.py [ENDPOINTS]

The bars: `prefix` at most 10 us above `least_outstanding` at prompts of 1 KB, 25 us at 32 KB.
The median of seven rounds, each over requests of which half share a beginning of 2 KB.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from llmgw.clock import SystemClock
from llmgw.config.server import RouterSettings
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.selection import Outcome, Reservation, Selector, compile_profiles
from llmgw.router.table import ModelRoute, Table

_REQUESTS = 4_000
_ROUNDS = 7
_SIZES = (1_024, 32_768)


def requests(size: int, prompt_bytes: int) -> list[RoutedRequest]:
    """Draw requests of `size` bytes; the prompt is cut to what the balancer looks at."""
    drawn = random.Random(1)
    shared = drawn.randbytes(min(size, 2_048))
    made = []
    for number in range(_REQUESTS):
        head = shared if number % 2 else b""
        prompt = (head + drawn.randbytes(size - len(head)))[:prompt_bytes]
        made.append(
            RoutedRequest(
                model="m",
                session_key=f"user-{number % 500}",
                prompt=prompt,
                body_bytes=size,
                seed=drawn.random(),
            )
        )
    return made


def cost_us(selector: Selector, route: ModelRoute, profile: str, size: int) -> float:
    """Return the CPU time of one reservation and release, in microseconds."""
    drawn = requests(size, selector.needs(route, profile).prompt_bytes)
    rounds = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        for request in drawn:
            got = selector.reserve(route, request, profile=profile)
            assert isinstance(got, Reservation)
            got.release(Outcome.OK)
        rounds.append((time.process_time() - begun) / len(drawn) * 1e6)
    return statistics.median(rounds)


def main(count: int) -> None:
    settings = RouterSettings()
    profiles = compile_profiles(settings, {item.name: item for item in llmgw_balancers()})
    selector = Selector(settings, profiles, SystemClock())
    endpoints = [
        Endpoint(id=EndpointId(f"e{number}"), url="http://x", models=(ModelName("m"),))
        for number in range(count)
    ]
    table = Table.build(endpoints, (), Epoch(0))
    selector.update(table)
    (route,) = table.routes
    print(f"{count} endpoints, us per request" + "".join(f"{size:>10} B" for size in _SIZES))
    for profile in profiles.by_name:
        costs = [cost_us(selector, route, profile, size) for size in _SIZES]
        print(f"{profile:<30}" + "".join(f"{cost:>12.1f}" for cost in costs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
