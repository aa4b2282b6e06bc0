"""Run SGLang's own command line inside its environment, with its key out of sight.

    LLMGW_SGLANG_KEY=… python -I serve.py serve --model-path …

Run by path: it imports nothing but SGLang. SGLang takes its key on the command line only, where
every user of the machine could read it, and prints all of its arguments, the key too, into its
log. So the key comes by the environment, is added to the arguments of this process alone, and
is blotted out of what is logged.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

_KEY = os.environ.get("LLMGW_SGLANG_KEY", "")


def blot_out(secret: str) -> None:
    """Replace the secret in every log record of this process."""
    make = logging.getLogRecordFactory()

    def make_without_secret(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make(*args, **kwargs)
        text = str(record.msg) % record.args if record.args else str(record.msg)
        if secret in text:
            record.msg, record.args = text.replace(secret, "***"), ()
        return record

    logging.setLogRecordFactory(make_without_secret)


# Here and not in main: the engine's scheduler processes import this file again, and log as well.
if _KEY:
    blot_out(_KEY)


def main() -> None:
    if _KEY:
        sys.argv += ["--api-key", _KEY]
    try:
        sglang = importlib.import_module("sglang.cli.main")
    except ImportError as error:
        os.write(2, f"llmgw: cannot import sglang in {sys.prefix}: {error}\n".encode())
        raise SystemExit(3) from None
    sglang.main()


if __name__ == "__main__":
    main()
