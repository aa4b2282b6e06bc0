"""How a package adds a command.

Commands come from the entry-point group `llmgw.commands`: the entry's name is the command's,
its object a `click.Command`. The object is imported only when the command is chosen, so that
`llmgw --help` stays fast; the help line of the table comes from the entry point's own
distribution metadata or, for ours, from `cli/table.py`.
"""

COMMAND_GROUP = "llmgw.commands"
PLUGIN_GROUP = "llmgw"
