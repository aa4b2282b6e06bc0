"""What the plugin of pytest does around each test."""

import io
import logging
import os

import pytest

from llmgw import logs
from llmgw.testing.pytest_plugin import pytest_runtest_protocol


def test_a_program_sets_umask_and_log_for_its_own_test_alone() -> None:
    before = os.umask(0o022)
    handlers = logging.getLogger().handlers[:]
    around_a_test = pytest_runtest_protocol()
    try:
        next(around_a_test)
        os.umask(0o077)
        logs.configure(stream=io.StringIO())
        with pytest.raises(StopIteration) as ended:
            around_a_test.send(True)
        assert ended.value.value is True
        assert os.umask(0o022) == 0o022
        assert logging.getLogger().handlers == handlers
    finally:
        os.umask(before)
        logging.getLogger().handlers[:] = handlers
