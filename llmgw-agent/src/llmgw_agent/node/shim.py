"""The one process above an engine: starts it, keeps its output and its exit, and owns nothing else.

    python -I -S shim.py FOLDER TOKEN

Standard library only and no import of this package: an agent that is upgraded, or broken, must
not break what runs. One thread. It outlives the agent, and holds the lock whose being held is
the proof that the engine's process tree may still live.

In FOLDER: reads `spec.json`; holds `lock`; writes `state.json` once the engine runs and again
when its main process ended, `log/NNNNNNNN.log`, and at the end, when nothing of the tree is left,
`exit.json`. At SIGUSR1 it lends the locks of its engine's devices, at SIGUSR2 it takes them
again; `state.json` says which holds. TOKEN must be that of `spec.json`: an agent may die just
after it started a shim, and the next one write another record before that shim has come to read
it. An exit status of the shim itself: 0 the engine's story is in `exit.json`, 3 another shim holds
the lock, 4 the folder cannot be used, 5 the record is meant for another shim.
"""

# pathlib would be a fifth of the memory of this process and of its start.
# ruff: noqa: PTH103, PTH104, PTH108, PTH119, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # `typing` would cost more memory than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable

ALREADY_RUNNING = 3
UNUSABLE = 4
SUPERSEDED = 5
DEVICE_BUSY = "device_busy"

_PR_SET_CHILD_SUBREAPER = 36
_PIPE_BYTES = 1 << 20  # what an engine may print while we are not scheduled
_READ_BYTES = 1 << 16
_LOCK_WAIT_S = 2.0  # an agent that looks, or a superseded shim, holds it for a moment
_RESERVED = 4096  # bytes of disk kept for exit.json, so that a full disk cannot swallow it


def start_time(pid: int) -> int:
    """Return field 22 of /proc/PID/stat, in ticks since boot: with the pid it names one process."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


class Record:
    """A small JSON file that is replaced whole, in space that was taken beforehand."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._beside = f".{name}.new"
        self._reserve()

    def _reserve(self) -> None:
        with contextlib.suppress(OSError), open(self._beside, "wb") as file:
            file.write(b" " * _RESERVED)
            file.flush()
            os.fsync(file.fileno())

    def write(self, content: dict[str, object], *, again: bool = False) -> None:
        """Replace the file. again: it will be written once more, so take space for that."""
        data = json.dumps(content).encode().ljust(_RESERVED)
        descriptor = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, data, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(self._beside, self._name)
        if again:
            self._reserve()


class Output:
    """The engine's output in numbered files, the oldest removed. Never blocks and never raises."""

    def __init__(self, *, file_bytes: int, files: int) -> None:
        os.makedirs("log", mode=0o700, exist_ok=True)
        self._limit = file_bytes
        self._files = files
        self.dropped = 0  #: bytes in all
        self._unsaid = 0  #: bytes dropped since the last note
        self._numbers = sorted(int(name[:-4]) for name in os.listdir("log") if name[:-4].isdigit())
        self._descriptor = -1
        self._size = 0
        self._next()
        self.first = self._numbers[-1]  #: number of this run's first file

    def _next(self) -> None:
        number = self._numbers[-1] + 1 if self._numbers else 1
        try:
            descriptor = os.open(
                f"log/{number:08d}.log",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
        except OSError:
            if not self._numbers:
                self._numbers.append(number)
            return  # the present file grows a little; the next write tries again
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size = descriptor, 0
        self._numbers.append(number)
        while len(self._numbers) > self._files:
            with contextlib.suppress(OSError):
                os.unlink(f"log/{self._numbers[0]:08d}.log")
            del self._numbers[0]

    def write(self, data: bytes) -> None:
        """Append, or drop and count what the disk does not take."""
        if self._size >= self._limit:
            self._next()
        if self._unsaid:
            note = f"\n[llmgw: {self._unsaid} bytes of output dropped: no room on the disk]\n"
            if not self._append(note.encode()):
                self._lose(len(data))
                return
            self._unsaid = 0
        if not self._append(data):
            self._lose(len(data))

    def _lose(self, count: int) -> None:
        self.dropped += count
        self._unsaid += count

    def _append(self, data: bytes) -> bool:
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            return False
        self._size += written
        self._lose(len(data) - written)
        return True


class Refusal(Exception):
    """The engine was not started; the text goes to exit.json."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def hold(path: str) -> int:
    """Take the lock at `path` and return its descriptor, which no child inherits."""
    try:
        # Not created where it is: kernels refuse that for another user's file in a shared folder.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def hold_patiently(path: str) -> int:
    """As `hold`, waiting a moment for whoever only looks."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return hold(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Devices:
    """The host-wide lock of each device, kept until this process ends, or lent meanwhile."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._held: list[int] = []
        self.lent = False

    def take(self) -> None:
        """Hold all of them. Raises Refusal, holding none, if another has one."""
        for path in self._paths:
            try:
                descriptor = hold(path)
            except OSError as error:
                self._release()
                message = f"{os.path.basename(path)}: {error.strerror}"
                raise Refusal(DEVICE_BUSY, message) from error
            self._held.append(descriptor)
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, 0o666)  # for agents of other users, despite the umask
        self.lent = False

    def lend(self) -> None:
        """Let others have them while the engine sleeps."""
        self._release()
        self.lent = True

    def obey(self, number: int) -> bool:
        """Do as a signal says; return whether anything changed."""
        if number == signal.SIGUSR1 and not self.lent:
            self.lend()
            return True
        if number == signal.SIGUSR2 and self.lent:
            with contextlib.suppress(Refusal):
                self.take()
                return True
        return False

    def _release(self) -> None:
        while self._held:
            os.close(self._held.pop())


def spawn(spec: dict[str, object], output: int) -> int:
    """Start the engine in a session of its own and return its pid once it has been exec'd."""
    failed_read, failed_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _become(spec, output)
        except OSError as error:
            os.write(failed_write, f"{error.strerror}: {error.filename or spec['argv']}".encode())
        finally:
            os._exit(127)
    os.close(failed_write)
    with open(failed_read, "rb") as pipe:
        if reason := pipe.read():
            os.waitpid(pid, 0)
            raise Refusal("exec_failed", reason.decode(errors="replace"))
    return pid


def _become(spec: dict[str, object], output: int) -> None:
    argv: list[str] = spec["argv"]  # type: ignore[assignment] # written by the agent
    env: dict[str, str] = spec["env"]  # type: ignore[assignment]
    os.setsid()
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Engines die before shim and agent when memory runs out.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(spec["oom_score_adj"]))
    if spec["cgroup"]:
        # Without it the tree is found by cookie and descent, as everywhere else.
        with contextlib.suppress(OSError), open(f"{spec['cgroup']}/cgroup.procs", "w") as file:
            file.write("0")
    os.chdir(str(spec["cwd"]))
    os.execvpe(argv[0], argv, env)  # noqa: S606 -- a list, and no shell is wanted


class Tree:
    """The engine's processes, all of which become our children when their parents end."""

    def __init__(self, main: int) -> None:
        self.main = main
        self.main_status: int | None = None  #: exit code, negative for a signal
        self.gone = False

    def reap(self) -> bool:
        """Collect whoever ended; return whether the main process was among them."""
        ended_main = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.gone = True
                return ended_main
            if pid == 0:
                return ended_main
            if pid == self.main:
                self.main_status = os.waitstatus_to_exitcode(status)
                ended_main = True


def watch(
    tree: Tree, source: int, output: Output, devices: Devices, on_change: Callable[[], None]
) -> None:
    """Move output to the files and reap until no process of the tree is left.

    on_change: called when the main process has ended, or the devices were lent or taken.
    """
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    poll = select.poll()
    poll.register(wake_read, select.POLLIN)
    poll.register(source, select.POLLIN)
    os.kill(os.getpid(), signal.SIGCHLD)  # for children that ended before the handler was set
    while not tree.gone:
        for descriptor, _ in poll.poll():
            if descriptor == source:
                if not drain(source, output):
                    poll.unregister(source)  # every writer closed it; the tree may live on
            else:
                numbers = b""
                with contextlib.suppress(BlockingIOError):
                    numbers = os.read(wake_read, 512)
                changed = [devices.obey(number) for number in numbers]
                if tree.reap() or any(changed):
                    on_change()
    # What the last process wrote just before it ended is still in the pipe.
    while drain(source, output):
        pass


def drain(source: int, output: Output) -> bool:
    """Move one piece; return whether there may be more now."""
    try:
        data = os.read(source, _READ_BYTES)
    except BlockingIOError:
        return False
    if data:
        output.write(data)
    return bool(data)


def main(folder: str, token: str) -> int:
    os.umask(0o077)
    # Whoever ends the agent by its process group or terminal does not mean the engine.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        os.chdir(folder)
        lock = hold_patiently("lock")
    except BlockingIOError:
        return ALREADY_RUNNING
    except OSError as error:
        sys.stderr.write(f"llmgw shim: {folder}: {error}\n")
        return UNUSABLE
    with open("spec.json", "rb") as file:
        spec = json.load(file)
    if spec["token"] != token:
        return SUPERSEDED
    with contextlib.suppress(OSError):
        os.unlink("exit.json")
    state, end = Record("state.json"), Record("exit.json")
    output = Output(file_bytes=spec["log_file_bytes"], files=spec["log_files"])
    facts: dict[str, object] = {
        "run": spec["run"],
        "boot_id": boot_id(),
        "shim_pid": os.getpid(),
        "shim_start_time": start_time(os.getpid()),
        "port": spec["port"],
        "first_log": output.first,
    }
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    source, sink = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(source, False)
    devices = Devices(spec["device_locks"])
    try:
        devices.take()
        tree = Tree(spawn(spec, sink))
    except Refusal as refusal:
        end.write({**facts, "exit_code": None, "refusal": refusal.code, "message": str(refusal)})
        return 0
    os.close(sink)
    facts |= {
        "pid": tree.main,
        "start_time": start_time(tree.main),
        "main_exit": None,
        "lent": False,
    }
    try:
        state.write(facts, again=True)
    except OSError:
        os.kill(tree.main, signal.SIGKILL)  # nobody could ever prove that it is ours
        raise

    def record_change() -> None:
        facts.update(main_exit=tree.main_status, lent=devices.lent)
        with contextlib.suppress(OSError):  # exit.json will say it too
            state.write(facts, again=tree.main_status is None)

    watch(tree, source, output, devices, record_change)
    end.write({**facts, "exit_code": tree.main_status, "dropped_bytes": output.dropped})
    os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
