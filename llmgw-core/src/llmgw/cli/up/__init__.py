"""`llmgw up`: a server and an agent on one machine, in one terminal.

Both run as the processes that they are elsewhere, with the same command lines; this room only
writes their configuration, shows how far they are and ends them. So what is learnt here holds
on a fleet, and each of the two may die and come back without the other.

    options ─▶ plan (pure) ─▶ children (processes) ─▶ progress (admin API) ─▶ ready text | question
"""
