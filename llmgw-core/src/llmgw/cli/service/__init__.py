"""`llmgw service`: units for systemd, and the firewall of a node."""
