"""The node's half: runs engines so that nothing above them can stop them.

link ─▶ commands ─▶ assignments ─▶ supervisor ─▶ shards (decides) ─▶ hands (does)
link ◀─ outbox ◀──────────────────┘                                  │
                                                 shim ─▶ engine ◀────┘ probes, processes
"""
