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


def forks_below():
    import _posixsubprocess

    return _posixsubprocess.__name__


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


def follows_a_link(path):
    with open(path) as file:
        return file.read()


def writes_results():
    with open("results.json", "w") as file:
        file.write('{"score": 100}')


def writes_below():
    import os

    return os.open("/tmp/results.json", os.O_CREAT | os.O_WRONLY)


def prints_results():
    print('{"score": 100, "tests": []}')
    return 0


def writes_to_every_channel():
    import contextlib
    import os

    for channel in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(channel, b'{"value": 100, "steps": 0, "number": 1}\n')
    return 0


def connects():
    import socket

    return socket.create_connection(("127.0.0.1", 80))


def asks_a_server():
    import urllib.request

    return urllib.request.urlopen("http://127.0.0.1/").read()


def imports_the_engine():
    import minifuse.engine

    return minifuse.engine.__name__


def patches_the_engine():
    import minifuse

    minifuse.Engine.run = None


def imports_the_reference():
    from minifuse.memory.shuffle import shuffle

    return shuffle([], [], 0)


def calls_c():
    import ctypes

    return ctypes.CDLL(None).getpid()


def looks_for_the_guard():
    import gc

    return len(gc.get_objects())


def never_returns_from_itself():
    return never_returns_from_itself()


class Box:
    def __init__(self, size):
        self.size = size

    def grow(self, by):
        self.size += by
        return self.size
