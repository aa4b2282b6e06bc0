"""What tests of llmgw and of its plugins are built from. Shipped; imported by no shipped code."""
