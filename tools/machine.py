"""The machine that we run on: its device, threads, files and locks."""
import contextlib
import math
import os
import re
from pathlib import Path

import torch

from data import BadInput

try:
    import fcntl
except ImportError:                                     # Windows has no such locks
    fcntl = None


# ------------------------------------------------------- device and threads
def set_up(device, threads):
    """Refuse a --device that cannot be used here; set how many threads compute. threads: None means
    one per core, or what OMP_NUM_THREADS says"""
    if not re.fullmatch(r'cpu|cuda(:\d\d?)?', device):
        raise BadInput(f'--device {device}: choose cpu, cuda or cuda:N')
    if device != 'cpu' and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise BadInput(f'--device {device}: torch finds no such GPU here; use --device cpu')
    if threads is not None:
        if not 1 <= threads <= os.cpu_count():
            raise BadInput(f'--threads {threads}: choose from 1 to {os.cpu_count()}, all cores')
        torch.set_num_threads(threads)


SLOW = ('Steps take three times as long as before. Probably other programs use the same cores, and '
        'threads wait for one another.\n')              # what the user can do follows


def slowed_down(pace, seconds, kind):
    """Have steps become slow? True once for each kind. pace: {kind: [best, its last 10 steps]},
    which is updated. kind: what the step logged, since steps with rewards are slower for a good
    reason"""
    best, last = pace.setdefault(kind, [math.inf, []])
    last[:] = [*last[-9:], seconds]
    if len(last) < 10 or torch.get_num_threads() == 1:
        return False
    typical = sorted(last)[5]                           # a single slow step does not count
    slow = typical > 3 * best
    pace[kind] = [0.0 if slow else min(best, typical), last]
    return slow and best > 0


# ------------------------------------------------------- files
@contextlib.contextmanager
def replacing(path):
    """Yields the name of a temporary file, which then replaces `path`. So `path` is never
    incomplete, and after an error it is what it was."""
    path = Path(path)
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    if path.exists() and not path.is_file():
        temporary = path                                # /dev/stdout must not be replaced
    try:
        yield temporary
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:            # torch.save on a full disk: RuntimeError
        kept = ' (the previous version is intact)' if path.exists() else ''
        raise BadInput(f'cannot write {path}: {error}; free some disk space{kept}') from None
    finally:
        if temporary != path:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextlib.contextmanager
def locked(folder, waiting=''):
    """Lock a folder that this process writes to. If another process has locked it, print `waiting`
    and wait, or refuse if there is nothing to print. The lock ends with the process, even if the
    process is killed."""
    with contextlib.ExitStack() as stack:
        if fcntl is None:
            yield
            return
        handle = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waiting:
                raise BadInput(f'{folder} is in use by another process; wait for it') from None
            print(waiting, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass                                        # some network disks have no locks
        yield
