"""The embedded world: clips of moving shapes, with captions, features and the truth about them."""
import os
import signal
import sys


def stop(*_):
    """Ctrl-C while a command imports: one line, exit code 130. Raising KeyboardInterrupt would not
    do, because an import inside a library may swallow it. user_main in tools/runs.py ends this."""
    os.write(2, b'\nstopped\n')
    os._exit(130)


# Every command imports this file first. Under pytest or in a notebook, Ctrl-C stays what it is, as
# it does where it is ignored (nohup). '-m': what argv[0] is while `python -m` imports a package.
if (os.path.basename(sys.argv[0]) in ('-m', 'train.py', 'evaluate.py')
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
    signal.signal(signal.SIGINT, stop)
