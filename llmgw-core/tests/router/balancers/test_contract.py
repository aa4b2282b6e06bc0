"""Our own balancers pass the kit that plugins' authors use."""

from __future__ import annotations

from llmgw.router.balancers.least_outstanding import LeastOutstandingFactory
from llmgw.router.balancers.load import LoadFactory
from llmgw.router.balancers.power_of_two import PowerOfTwoFactory
from llmgw.router.balancers.prefix import PrefixFactory
from llmgw.router.balancers.round_robin import RoundRobinFactory
from llmgw.router.balancers.session import SessionFactory
from llmgw.testing.balancing import BalancerContract


class TestLeastOutstanding(BalancerContract):
    factory = LeastOutstandingFactory()


class TestRoundRobin(BalancerContract):
    factory = RoundRobinFactory()


class TestPowerOfTwo(BalancerContract):
    factory = PowerOfTwoFactory()


class TestSession(BalancerContract):
    factory = SessionFactory()
    rejected = (({"header": "no spaces"}, "options.header"),)


class TestPrefix(BalancerContract):
    factory = PrefixFactory()
    options = {"index_blocks": 128, "prompt_bytes": 512, "block_bytes": 32}  # noqa: RUF012
    rejected = (
        ({"match": 2}, "options.match"),
        ({"block_bytes": "wide"}, "options.block_bytes"),
    )


class TestLoad(BalancerContract):
    factory = LoadFactory()
    rejected = (({"tokens_per_s": 0}, "options.tokens_per_s"),)
