"""Exercises: write one function of a paper again, and let the tests say whether it is right.

    python -m tools.exercise list              the exercises, lab by lab, in the order to do them
    python -m tools.exercise start NAME        writes work/FILE.py: our file with one function empty
    python -m tools.exercise check NAME        runs the tests of that function on work/FILE.py
    python -m tools.exercise solution NAME     shows what our file has instead of yours

`start NAME --as-printed` writes the function as the paper prints it, complete and wrong. Find out
from `check` what is wrong and why, and correct it. `start` never overwrites a file in work/: with
`--again` it first keeps a copy of the old file beside it. Each exercise starts from our file, so
another exercise of the same file needs `--again`, too. `check` ends with exit code 0 if all is
right, with 1 if not.

For a teacher: `python -m tools.exercise handout FOLDER` copies the repository without its history
and without the functions of all exercises. Such a copy, which is marked by the file HANDOUT.md, has
no work/: students fill in the files themselves, in the order of the list, because later checks need
earlier functions. `check` tests these files, and `solution` is refused. `start NAME --as-printed`
puts the printed function into the file, and keeps a copy of the old file beside it.

Our file is the solution, and our tests are the check: nothing is written twice. The exercises are
listed in tools/labs.py, the papers' errors in tools/errata.py. What a hand-out tells its students
is in tools/handout.md.
"""
import ast
import difflib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from data import BadInput
from tools import papers, runs
from tools.errata import ERRATA
from tools.grader import ROOT, shown
from tools.labs import EXERCISES, definition

WORK = ROOT / 'work'
MARK = ROOT / 'HANDOUT.md'              # exists in copies without solutions
PYTEST = ('-p', 'tools.grader', '-p', 'no:cacheprovider', '-v', '--tb=short', '--no-header')
SECONDS = 120                           # a check that takes longer is stopped
LEFT_OUT = ('tests/test_exercise.py',)  # of a handout: it tests the solutions
CACHES = {'.git', '__pycache__', '.pytest_cache'}
MADE = ('data', 'runs', 'work')         # folders that commands make


def read(path):
    return path.read_text(encoding='utf-8')


def emptied(source, name):
    """source code -> the same with the body of the exercise's function taken out. Comments on what
    the paper leaves open stay, since nobody could guess our choice."""
    exercise = EXERCISES[name]
    node = definition(source, exercise.place)
    first = node.body[0].lineno - 1
    if ast.get_docstring(node) is not None:
        first = node.body[0].end_lineno                 # comments after the docstring go, too
    indent = ' ' * node.body[0].col_offset
    equation = exercise.equation
    if equation[0].isdigit():
        equation = f'Eq. {equation}'
    where = '' if equation == '-' else f' ({equation})'
    body = [f'{indent}# Exercise {name}: {exercise.task}{where}.',
            f'{indent}# Replace the next line; then run: python -m tools.exercise check {name}',
            f"{indent}raise NotImplementedError('exercise {name} is not done yet')"]
    for line, block in reversed(papers.comment_blocks(source).items()):
        if first < line <= node.end_lineno and block[0].startswith('UNSPECIFIED'):
            body[:0] = [f'{indent}# {text}' for text in block]
    lines = source.split('\n')
    return '\n'.join([*lines[:first], *body, *lines[node.end_lineno:]])


def students_file(exercise):
    return (ROOT if MARK.exists() else WORK) / exercise.file


def text_of(source, place):
    """source code -> the lines of one function"""
    node = definition(source, place)
    return '\n'.join(source.split('\n')[node.lineno - 1:node.end_lineno])


def as_printed(source, name):
    """source code -> the same with the paper's error"""
    if MARK.exists():                                   # tools/errata.py has whole functions there
        for place, text in ERRATA[name]:
            source = source.replace(text_of(source, place), text)
        return source
    for _, ours, printed in ERRATA[name]:
        assert source.count(ours) == 1, f'tools/errata.py, {name}: not found exactly once: {ours}'
        before, after = source.split(ours)
        lines = before.split('\n')                      # the last one is empty
        while lines[-2].lstrip().startswith('#'):       # a comment that explains the error
            del lines[-2]
        source = '\n'.join(lines) + printed + after
    return source


def show_list():
    print(f'{"name":16}{"lab":4}{"function":30}{"equation":13}{"level":8}{"minutes":8}')
    for name, one in EXERCISES.items():
        mark = ' --as-printed' if name in ERRATA else ''
        print(f'{name:16}{one.lab:<4}{one.place:30}{one.equation:13}{one.level:8}'
              f'{one.minutes:>7}{mark}')


def start(name, printed, again):
    exercise = EXERCISES[name]
    path = students_file(exercise)
    if MARK.exists() and not printed:
        raise BadInput(f'this copy has no solutions and needs no start: fill in {exercise.place} '
                       f'in {exercise.file}, then run python -m tools.exercise check {name}')
    if printed and name not in ERRATA:
        raise BadInput(f'{name}: no error is known in what the paper prints; leave out '
                       f'--as-printed, or choose one of {", ".join(ERRATA)}')
    if path.exists() and not again and not MARK.exists():
        raise BadInput(f'{shown(path)} exists and stays as it is; to start over, or to do another '
                       'exercise of this file, add --again, which keeps a copy of it')
    source = read(ROOT / exercise.file)
    text = as_printed(source, name) if printed else emptied(source, name)
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        names = (path.with_name(f'{path.name}.{n}.bak') for n in itertools.count(1))
        kept = next(kept for kept in names if not kept.exists())
        path.rename(kept)
        print(f'your old file is now {shown(kept)}')
    path.write_text(text, encoding='utf-8')
    if printed:
        print(f'{shown(path)}: {exercise.place} and what it needs are as printed, and wrong; '
              f'find out why: python -m tools.exercise check {name}')
    else:
        line = definition(text, exercise.place).lineno
        print(f'{shown(path)}, line {line}: fill in {exercise.place}, then run '
              f'python -m tools.exercise check {name}')


def test_ids(exercise):
    return [f'tests/test_{exercise.file}::test_{test}' for test in exercise.tests]


def check(name):
    """-> exit code: 0 if all tests pass, otherwise 1"""
    exercise = EXERCISES[name]
    path = students_file(exercise)
    if not path.exists():
        raise BadInput(f'there is no {shown(path)} to check: run python -m tools.exercise start '
                       f'{name} first')
    print(f'{name}: {exercise.place} in {shown(path)}', flush=True)
    command = [sys.executable, '-m', 'pytest', *PYTEST, *test_ids(exercise)]
    try:
        result = subprocess.run(command, cwd=ROOT, timeout=SECONDS,
                                env={**os.environ, 'EXERCISE_FILE': str(path)})
    except subprocess.TimeoutExpired:
        print(f'stopped after {SECONDS} seconds: does a loop in {shown(path)} never end?')
        return 1
    return int(result.returncode != 0)


def solution(name):
    if MARK.exists():
        raise BadInput(f'this copy has no solutions; {shown(MARK)} says what it is')
    file = EXERCISES[name].file
    source = read(ROOT / file)
    yours = read(WORK / file) if (WORK / file).exists() else emptied(source, name)
    sys.stdout.writelines(difflib.unified_diff(
        yours.splitlines(True), source.splitlines(True), f'work/{file}', file))


def our_files():
    """-> paths of all files of the project, relative to ROOT"""
    try:
        found = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True).stdout
    except OSError:
        found = b''
    paths = [Path(name) for name in found.decode().split('\0') if name]
    if not paths:                                       # no git, or not a repository of our own
        paths = [path.relative_to(ROOT) for path in ROOT.rglob('*')]
        paths = [path for path in paths if not CACHES & {*path.parts} and path.parts[0] not in MADE]
    return [path for path in paths if (ROOT / path).is_file() and path.as_posix() not in LEFT_OUT]


def handout(folder):
    if MARK.exists():
        raise BadInput(f'{ROOT} is such a copy already: make the new one from the repository')
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f'{folder} is not empty: choose a new folder')
    for path in our_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    for name, exercise in EXERCISES.items():
        path = folder / exercise.file
        path.write_text(emptied(read(path), name), encoding='utf-8')
    errata = '# What the papers print where they are wrong\nERRATA = {\n'
    for name, changes in ERRATA.items():
        source = as_printed(read(ROOT / EXERCISES[name].file), name)
        parts = [f"({place!r}, r'''{text_of(source, place)}''')" for place, *_ in changes]
        errata += f'{name!r}: [{", ".join(parts)}],\n'
    (folder / 'tools' / 'errata.py').write_text(errata + '}\n', encoding='utf-8')
    shutil.copy(ROOT / 'tools' / 'handout.md', folder / MARK.name)
    print(f'{folder}: a copy in which {len(EXERCISES)} functions are to be filled in; '
          f'{folder / MARK.name} tells students how')


def main(argv):
    parser = runs.Parser(prog='python -m tools.exercise', description=__doc__)
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    for name, function, text in (
            ('list', show_list, 'show the exercises'),
            ('start', start, 'write work/FILE.py with one function empty'),
            ('check', check, 'run the tests of the function'),
            ('solution', solution, 'show the difference from our file'),
            ('handout', handout, 'copy the repository without solutions')):
        command = commands.add_parser(name, help=text)
        command.set_defaults(function=function)
        add = command.add_argument
        if name == 'start':
            add('--as-printed', dest='printed', action='store_true',
                help='with the error of the paper')
            add('--again', action='store_true', help='start over; keeps the old file')
        if name == 'handout':
            add('folder', metavar='FOLDER', help='a new folder')
        elif name != 'list':
            add('name', metavar='NAME', choices=EXERCISES, help='an exercise')
    args = vars(parser.parse_args(argv))
    return args.pop('function')(**args)


if __name__ == '__main__':
    runs.user_main(main)
