"""`llmgw debug`: what somebody who is to help needs, in one file, without any secret."""
