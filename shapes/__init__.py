"""The embedded world: clips of moving shapes, with captions, features and the truth about them."""
import _thread
import os
import signal
import sys
import threading


def stop(*_):
    """Ctrl-C while a command imports: one line, exit code 130. Raising KeyboardInterrupt would not
    do, because an import inside a library may swallow it. user_main in tools/runs.py ends this."""
    os.write(2, b'\nstopped\n')
    os._exit(130)


def tidy_up(number, frame):
    """Ctrl-C while a command works: KeyboardInterrupt, which leaves nothing half-written. A library
    that is being imported may swallow it, so then we try again until the import is over."""
    while frame and 'importlib' not in frame.f_code.co_filename:
        frame = frame.f_back
    if not frame:
        raise KeyboardInterrupt
    threading.Timer(0.01, _thread.interrupt_main).start()


# Every command imports this file first. Under pytest or in a notebook, Ctrl-C stays what it is, as
# it does where it is ignored (nohup). '-m': what argv[0] is while `python -m` imports a package.
if (os.path.basename(sys.argv[0]) in ('-m', 'train.py', 'evaluate.py')
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
    signal.signal(signal.SIGINT, stop)
