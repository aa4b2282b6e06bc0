"""The admin listener: the API that operators and `llmgw ctl` use, and the cluster's page.

Every route declares who may use it (`operations`); one without cannot be built.
"""
