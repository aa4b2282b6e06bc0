"""What the plugin of pytest does around each test."""

import os

import pytest

from llmgw.testing.pytest_plugin import pytest_runtest_protocol


def test_a_program_that_narrows_the_umask_does_so_for_its_own_test_alone() -> None:
    before = os.umask(0o022)
    around_a_test = pytest_runtest_protocol()
    try:
        next(around_a_test)
        os.umask(0o077)
        with pytest.raises(StopIteration) as ended:
            around_a_test.send(True)
        assert ended.value.value is True
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
