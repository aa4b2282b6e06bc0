"""What systemd hears of a server and of an agent as it starts them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from llmgw.testing.notified import NotifySocket
from llmgw.testing.site import Site, wait_for

pytestmark = pytest.mark.e2e


STARTS = {
    "server": ("--endpoint", "e=http://127.0.0.1:9=m", "--admin-listen", "127.0.0.1:0"),
    "agent": (),
}


@pytest.mark.parametrize("kind", STARTS)
def test_signs_of_life_are_given_while_the_loop_goes_round_and_not_while_it_stands(
    site: Site, tmp_path: Path, kind: str
) -> None:
    with NotifySocket(tmp_path / "notify", watchdog_s=0.4) as systemd:
        site.env |= systemd.env | {"LLMGW_LISTEN": f"127.0.0.1:{site.api_port}"}
        running = site.start(kind, *STARTS[kind])
        said = wait_for("it serves", systemd.heard, 30)
        assert said[0] == "READY=1"
        wait_for("it lives", lambda: systemd.heard().count("WATCHDOG=1") >= 1, 5)
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        systemd.heard()
        time.sleep(0.8)
        assert systemd.heard() == []
        running.process.send_signal(signal.SIGCONT)
        wait_for("it lives again", lambda: systemd.heard().count("WATCHDOG=1") >= 1, 5)


def test_what_the_watchdog_ends_says_where_it_was_held(site: Site, tmp_path: Path) -> None:
    with NotifySocket(tmp_path / "notify", watchdog_s=60) as systemd:
        site.env |= systemd.env
        running = site.start("agent", "--state-dir", str(tmp_path / "agent"))
        wait_for("it serves", lambda: "WATCHDOG=1" in systemd.heard(), 30)
        running.process.send_signal(signal.SIGABRT)
        assert running.process.wait(10) == -signal.SIGABRT
    assert "Thread" in running.text
    assert "anyio" in running.text
