"""What a submission may try. Each function is called by the tests; none may succeed."""

print("hello from the submission")


def add(one, two):
    return one + two


def a_set():
    return {1, 2}


def no_end():
    while True:
        pass


def no_end_in_c():
    return sum(range(10**12))


def ten_gigabytes():
    return len(bytearray(10**10))


def a_list_of_ten_gigabytes():
    return len([0] * 10**10)


def fork():
    import os

    return os.fork()


def runs_a_program():
    import subprocess

    return subprocess.run(["true"]).returncode


def runs_a_shell():
    import os

    return os.system("true")


def exits():
    import sys

    sys.exit(0)


def exits_at_once():
    import os

    os._exit(0)


def kills_the_judge():
    import os

    os.kill(os.getppid(), 9)


def reads_a_file():
    with open("/etc/passwd") as file:
        return file.read()


def reads_below():
    import os

    return os.read(os.open("/etc/passwd", os.O_RDONLY), 10).decode()


def reads_hidden_tests(path):
    from pathlib import Path

    return Path(path).read_text()


def lists_a_folder():
    import os

    return os.listdir("/")


def writes_results():
    with open("results.json", "w") as file:
        file.write('{"score": 100}')


def writes_below():
    import os

    return os.open("/tmp/results.json", os.O_CREAT | os.O_WRONLY)


def prints_results():
    print('{"score": 100, "tests": []}')
    return 0


def writes_to_every_channel(line=b'{"value": 100, "steps": 0, "number": 1}\n'):
    import contextlib
    import os

    for channel in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(channel, line)
    return 0


def connects():
    import socket

    return socket.create_connection(("127.0.0.1", 80))


def asks_a_server():
    import urllib.request

    return urllib.request.urlopen("http://127.0.0.1/").read()


def imports_the_engine():
    import minifuse.core.engine

    return minifuse.core.engine.__name__


def patches_the_engine():
    import minifuse

    minifuse.Engine.run = None


def imports_the_reference():
    from minifuse.memory.slots.shuffle import shuffle

    return shuffle([], [], 0)


def calls_c():
    import ctypes

    return ctypes.CDLL(None).getpid()


def never_returns_from_itself():
    return never_returns_from_itself()


def unpickles():
    import pickle

    return pickle.loads(b"cos\ngetpid\n(tR.")


def starts_a_thread():
    import threading

    threading.Thread(target=print).start()


def kills_by_a_descriptor():
    import os
    import signal

    return signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)


def makes_a_pipe(path):
    import os

    return os.mkfifo(path)


def shares_memory():
    import os
    from _posixshmem import shm_open

    return shm_open("/lab", os.O_CREAT | os.O_RDWR, mode=0o600)


def looks_at_the_judge():
    import os

    return os.readlink(f"/proc/{os.getppid()}/exe")


def hundred():
    count = 0
    for _ in range(100):
        count += 1
    return count


def stops_counting():
    import sys

    sys.settrace(None)
    return hundred()


def patches_the_count():
    import __main__

    __main__.Steps.line = None


def patches_json():
    import json

    json.dumps = json.JSONEncoder.encode = lambda *_: '{"value": 3}'
    json.encoder.c_make_encoder = None
    return hundred()


def has_no_room_to_count(depth=0):
    try:
        return has_no_room_to_count(depth + 1)
    except RecursionError:
        return hundred()


def catches_the_end():
    try:
        no_end()
    except BaseException:
        return 0


class Late(dict):
    def items(self):
        return [("count", hundred())]


def computes_when_told():
    return Late(count=0)


def nests():
    value = []
    for _ in range(900):
        value = [value]
    return value


def nests_in_the_channel():
    writes_to_every_channel(b"[" * 100_000 + b"\n")


def floods_the_channel():
    import os

    for channel in range(3, 64):
        try:
            while os.write(channel, bytes(1 << 16)):
                pass
        except OSError:
            pass


def floods_what_is_printed():
    for _ in range(200):
        print("x" * 100_000)
    return 0


def returns_nan():
    return float("nan")


def raises_half_a_character():
    raise ValueError("\ud800\x1b[31m")


def looks_for_the_guard():
    import gc

    return len(gc.get_objects())


def looks_at_frames():
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_frame.f_lineno


def sleeps():
    import time

    time.sleep(100)


class Box:
    def __init__(self, size):
        self.size = size

    def grow(self, by):
        self.size += by
        return self.size
