"""Log lines: a constant lower-case event, then fields in the domain's words.

    log = get_logger(__name__)
    log.warning("node disconnected", node=node.id, silent_s=45)

One configuration call per process (`configure`), text for people or JSON for machines, on
stderr. A field whose name says that it is secret is masked here as the last line of
defence; prompts, completions and keys must never be passed in at all.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import deque
from typing import IO

FieldValue = object

_SECRET = re.compile(r"(secret|token|password|api_key|credential|authorization)$", re.IGNORECASE)
# Odd bytes and terminal escapes reach logs from engines' output and clients' headers.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Logger:
    """Event-and-fields front of one standard logger."""

    __slots__ = ("_bound", "_logger")

    def __init__(self, logger: logging.Logger, bound: dict[str, FieldValue] | None = None) -> None:
        self._logger = logger
        self._bound = bound or {}

    def bind(self, **fields: FieldValue) -> Logger:
        """Return a logger that adds `fields` to each line."""
        return Logger(self._logger, {**self._bound, **fields})

    def debug(self, event: str, **fields: FieldValue) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: FieldValue) -> None:
        """The operator's timeline: once per change, never per tick or request."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: FieldValue) -> None:
        """Heals by itself; the fields say what comes next."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: FieldValue) -> None:
        """Needs a person."""
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: FieldValue) -> None:
        """As `error`, with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, trace=True)

    def _write(
        self, level: int, event: str, fields: dict[str, FieldValue], *, trace: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level, event, extra={"fields": {**self._bound, **fields}}, exc_info=trace
            )


def get_logger(name: str) -> Logger:
    """Return the logger of a module; pass `__name__`."""
    return Logger(logging.getLogger(name))


def _fields_of(record: logging.LogRecord) -> dict[str, FieldValue]:
    fields: dict[str, FieldValue] = getattr(record, "fields", {})
    return {key: "***" if _SECRET.search(key) else value for key, value in fields.items()}


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def _field_text(value: FieldValue) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = _printable(str(value))
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]', text) or not text else text


class TextFormatter(logging.Formatter):
    """`2026-01-31T10:00:00.000Z WARNING node disconnected node=gpu-01 silent_s=45`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"{stamp}.{int(record.msecs):03d}Z {record.levelname} {_printable(record.getMessage())}"
        )
        fields = " ".join(
            f"{key}={_field_text(value)}" for key, value in _fields_of(record).items()
        )
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{line} {fields}{trace}" if fields else line + trace


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `event`, `logger`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, FieldValue] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_fields_of(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


class LastLines(logging.Handler):
    """Keeps the newest formatted lines in memory, for `llmgw ctl logs NODE`."""

    def __init__(self, limit: int = 2000) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=limit)
        self.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def configure(*, level: str = "info", as_json: bool = False, stream: IO[str] | None = None) -> None:
    """Send this process's log lines to `stream` (stderr). Safe to call again; the last call wins."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    kept = [item for item in root.handlers if isinstance(item, LastLines)]
    root.handlers[:] = [handler, *kept]
    root.setLevel(level.upper())
    # These report each request or connection at INFO, which is not our operators' timeline.
    for noisy in ("httpx", "httpcore", "grpc", "alembic", "asyncio", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
