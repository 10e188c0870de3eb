#!/usr/bin/python3
"""Runs one program like a systemd service whose unit has FileDescriptorStoreMax=.

    service-manager.py SOCKET PROGRAM ARGUMENT...

The program's notices arrive at SOCKET, and only the messages of sd_pid_notify_with_fds(3) about
descriptors matter. SIGHUP restarts the program: its successor gets the stored descriptors as in
sd_listen_fds(3). SIGTERM stops the program, and the stored descriptors are closed. If the program
ends by itself, the manager ends too.
"""
import array
import fcntl
import os
import select
import signal
import socket
import sys

FIRST = 3  # number of the first descriptor that a service gets (SD_LISTEN_FDS_START)
FDS_MAX = 253  # limit of the kernel for one message (SCM_MAX_FD)
STOP_SECONDS = 8  # like TimeoutStopSec= of packaging/penstock.service


def receive(notices, store):
    """Reads one notice, and stores or removes descriptors."""
    size = array.array("i").itemsize
    text, ancillary, _, _ = notices.recvmsg(
        8192, socket.CMSG_SPACE(FDS_MAX * size), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % size])
    values = dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)
    name = values.get("FDNAME", "stored")
    if values.get("FDSTORE") == "1":
        store += [(name, fd) for fd in fds]
        return
    # With BARRIER=1, the program waits until this descriptor is closed.
    for fd in fds:
        os.close(fd)
    if values.get("FDSTOREREMOVE") == "1":
        for _, fd in [entry for entry in store if entry[0] == name]:
            os.close(fd)
        store[:] = [entry for entry in store if entry[0] != name]


def start(command, path, store):
    """Starts the program with all stored descriptors. Returns its process."""
    pid = os.fork()
    if pid:
        return pid
    # Copies get high numbers first, because a low number may be one of the stored descriptors.
    above = FIRST + len(store)
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for _, fd in store]
    for number, fd in enumerate(copies, FIRST):
        os.dup2(fd, number, inheritable=True)
    os.environ["NOTIFY_SOCKET"] = path
    if store:
        os.environ["LISTEN_PID"] = str(os.getpid())
        os.environ["LISTEN_FDS"] = str(len(store))
        os.environ["LISTEN_FDNAMES"] = ":".join(name for name, _ in store)
    os.execvp(command[0], command)


def main(path, *command):
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, lambda *_: None)
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(path)
    os.chmod(path, 0o666)  # the program may run as another user
    store, starts, restart, running = [], 1, False, True
    pid = start(command, path, store)
    while running:
        ready, _, _ = select.select([woken, notices], [], [])
        # The signals are read before the notices, so that no notice of an ended program is missed.
        signals = os.read(woken, 64) if woken in ready else b""
        while select.select([notices], [], [], 0)[0]:
            receive(notices, store)
        if signal.SIGHUP in signals or signal.SIGTERM in signals:
            restart = signal.SIGTERM not in signals
            os.kill(pid, signal.SIGTERM)
            signal.alarm(STOP_SECONDS)
        if signal.SIGALRM in signals:
            os.kill(pid, signal.SIGKILL)
        if signal.SIGCHLD in signals and os.waitpid(pid, os.WNOHANG)[0]:
            signal.alarm(0)
            running = restart
            if restart:
                restart, starts = False, starts + 1
                print(f"service manager: start {starts}, {len(store)} descriptors", flush=True)
                pid = start(command, path, store)
    os.unlink(path)


main(*sys.argv[1:])
