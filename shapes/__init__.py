"""The embedded world: clips of moving shapes, with captions, features and the truth about them."""
import _thread
import os
import signal
import sys
import threading


def stop(*_):
    """Ctrl-C while a command imports: print one line, exit with code 130. Raising KeyboardInterrupt
    would not do, because a library that is being imported may swallow it. Later, user_main in
    tools/runs.py replaces this handler by tidy_up."""
    os.write(2, b'\nstopped\n')
    os._exit(130)


def tidy_up(number, frame):
    """Ctrl-C while a command works: raise KeyboardInterrupt, which leaves nothing half-written. A
    library that is being imported may swallow it, so we wait until the import is over."""
    while frame and 'importlib' not in frame.f_code.co_filename:
        frame = frame.f_back
    if not frame:
        raise KeyboardInterrupt
    threading.Timer(0.01, _thread.interrupt_main).start()


# Every command imports this file first. Under pytest, in a notebook, or where Ctrl-C is ignored
# (nohup), nothing changes. While `python -m` imports a package, argv[0] is '-m'.
if (os.path.basename(sys.argv[0]) in ('-m', 'train.py', 'evaluate.py')
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
    signal.signal(signal.SIGINT, stop)
