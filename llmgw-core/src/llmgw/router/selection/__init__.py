"""Which endpoint a request goes to; its slot is reserved in the same step."""

from llmgw.router.selection.profiles import Needs, Profiles, compile_profiles
from llmgw.router.selection.reservation import Outcome, Reservation
from llmgw.router.selection.selector import Selector
from llmgw.router.selection.state import EndpointState

__all__ = [
    "EndpointState",
    "Needs",
    "Outcome",
    "Profiles",
    "Reservation",
    "Selector",
    "compile_profiles",
]
