"""Why not, as a tree. One wording for API, page, ctl, log and 503."""

from __future__ import annotations

from llmgw.adminapi.reply import Reply


class RefusalReply(Reply):
    """One coded reason, with those that it was made of below it."""

    code: str
    """Stable snake_case; explained in the operations handbook."""
    sentence: str
    model: str | None = None
    profile: str | None = None
    node: str | None = None
    need: str = ""
    have: str = ""
    hint: str = ""
    """The cheapest way out."""
    parts: tuple[RefusalReply, ...] = ()

    @property
    def figures(self) -> str:
        """What is needed and what there is, for people; empty where the sentence has both."""
        known = [figure for figure in (self.need, self.have) if figure]
        if all(figure in self.sentence for figure in known):
            return ""
        return f"needs {self.need or '-'}, has {self.have or '-'}"


class ExplainReply(Reply):
    """How a model or node is, and why it is not better."""

    subject: str
    """`model NAME` or `node ID`."""
    summary: str
    refusals: tuple[RefusalReply, ...] = ()


class ActionReply(Reply):
    """One step that the control plane would take, or has planned."""

    action: str
    """start, drain or stop."""
    replica: str
    model: str | None = None
    profile: str | None = None
    nodes: tuple[str, ...] = ()
    devices: int = 0
    because: str


class PlanReply(Reply):
    """What a catalog would change, without changing it."""

    actions: tuple[ActionReply, ...] = ()
    unplaced: tuple[RefusalReply, ...] = ()
    problems: tuple[str, ...] = ()
