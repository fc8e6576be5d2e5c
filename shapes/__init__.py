"""The embedded world: clips of moving shapes, with captions, features and the truth about them."""
import os
import sys


def one_line(kind, error, trace):
    """Ctrl-C ends a command with one line, even while it imports torch. Every command imports this
    file first."""
    if kind is not KeyboardInterrupt:
        return sys.__excepthook__(kind, error, trace)
    print('\nstopped', file=sys.stderr, flush=True)
    os._exit(130)


sys.excepthook = one_line
