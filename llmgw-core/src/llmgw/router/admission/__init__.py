"""Go now, wait in line, or be refused with a reason and a time to come back."""

from llmgw.router.admission.admission import Admission
from llmgw.router.admission.line import Ticket

__all__ = ["Admission", "Ticket"]
