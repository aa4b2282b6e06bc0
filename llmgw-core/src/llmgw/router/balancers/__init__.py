"""The built-in ways of choosing among a model's endpoints, one module each."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw import hookimpl
from llmgw.contracts.balancing import BalancerFactory
from llmgw.router.balancers.least_outstanding import LeastOutstandingFactory
from llmgw.router.balancers.load import LoadFactory
from llmgw.router.balancers.power_of_two import PowerOfTwoFactory
from llmgw.router.balancers.prefix import PrefixFactory
from llmgw.router.balancers.round_robin import RoundRobinFactory
from llmgw.router.balancers.session import SessionFactory


@hookimpl
def llmgw_balancers() -> Iterable[BalancerFactory]:
    return (
        LeastOutstandingFactory(),
        RoundRobinFactory(),
        PowerOfTwoFactory(),
        SessionFactory(),
        PrefixFactory(),
        LoadFactory(),
    )
