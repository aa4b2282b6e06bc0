"""`python -m llmgw`."""

from llmgw.cli.main import main

if __name__ == "__main__":
    main()
