"""Exercises: the tests of each reject the empty function and what a paper prints by mistake, and
accept our own function, even if all later exercises are still to be done."""
import json
import re
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from data import BadInput
from tools import exercise, runs
from tools.errata import ERRATA
from tools.labs import EXERCISES, definition

# Runs many checks in one process, because importing torch takes longer than a check, and prints
# their exit codes. Argument: a file with
# [[student's file, place to copy it to or None, flags and tests], ...]
CHECKS = '''
import json, os, shutil, sys
import pytest
codes = []
for path, place, arguments in json.load(open(sys.argv[1])):
    if place:
        shutil.copy(path, place)
    for module in list(sys.modules):                    # import all of the project again
        if (getattr(sys.modules[module], '__file__', None) or '').startswith(os.getcwd()):
            del sys.modules[module]
    os.environ['EXERCISE_FILE'] = place or path
    print(path)
    codes.append(int(pytest.main(['-p', 'no:unraisableexception', *arguments])))
print(json.dumps(codes))
'''


def run_checks(folder, root, jobs, *flags):
    """jobs [(name, source code, place to copy it to or None)] -> output, [exit code, ...]"""
    listed = []
    for number, (name, source, place) in enumerate(jobs):
        path = folder / f'{number}-{name}' / EXERCISES[name].file
        path.parent.mkdir()
        path.write_text(source, encoding='utf-8')
        arguments = [*exercise.PYTEST, *flags, *exercise.test_ids(EXERCISES[name])]
        listed.append([str(path), place and str(place), arguments])
    (folder / 'jobs.json').write_text(json.dumps(listed))
    command = [sys.executable, '-c', CHECKS, str(folder / 'jobs.json')]
    done = subprocess.run(command, cwd=root, text=True, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout, json.loads(done.stdout.strip().split('\n')[-1])


def ours(name):
    return exercise.read(exercise.ROOT / EXERCISES[name].file)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise, 'WORK', tmp_path / 'work')
    return tmp_path / 'work'


@pytest.fixture(scope='module')
def handout(tmp_path_factory):
    folder = tmp_path_factory.mktemp('handout') / 'copy'
    exercise.main(['handout', str(folder)])
    return folder


def test_empty_functions_and_printed_errors_are_rejected(tmp_path):
    jobs = [(name, exercise.emptied(ours(name), name), None) for name in EXERCISES]
    jobs += [(name, exercise.as_printed(ours(name), name), None) for name in ERRATA]
    jobs.append(('ts', 'nonsense', None))
    jobs.append(('rank-loss', exercise.as_printed(ours('ts'), 'ts'), None))     # another function
    output, codes = run_checks(tmp_path, exercise.ROOT, jobs, '-x')
    assert codes == [1] * (len(jobs) - 1) + [0], output
    assert output.count('not done yet') >= len(EXERCISES)       # for the right reason
    assert output.count('cannot be imported') == 1              # only the last but one
    assert "cannot be imported: NameError: name 'nonsense'" in output
    assert '::test_rank_loss_by_hand PASSED' in output


def test_the_printed_receptive_fields_are_those_of_tables_4_and_5(tmp_path):
    path = tmp_path / 'c3d.py'
    path.write_text(exercise.as_printed(ours('receptive-field'), 'receptive-field'))
    field = runpy.run_path(str(path))['receptive_field']
    assert [field(f'pool{n}')['y'] for n in (2, 3, 4, 5)] == [
        (4, -7, 2), (8, -15, 6), (16, -31, 14), (32, -63, 30)]
    assert [field(f'aligned{n}', inside=f'pool{n}')['t'] for n in (2, 3, 4)] == [
        (8, -14, 7), (4, -6, 4), (2, -2, 1)]
    assert field('aligned2')['x'] == (32, -63, 30)      # the paper's total
    assert field('aligned3')['x'] == (32, -63, 38)      # which its own tables do not give here


def test_our_functions_are_accepted_one_after_another_in_a_handout(handout, tmp_path):
    """When exercise k is checked, functions 1 to k are ours, and the others are empty."""
    copy = shutil.copytree(handout, tmp_path / 'copy')
    jobs = []
    names = list(EXERCISES)
    for k, name in enumerate(names):
        source = ours(name)
        for later in names[k + 1:]:
            if EXERCISES[later].file == EXERCISES[name].file:
                source = exercise.emptied(source, later)
        jobs.append((name, source, copy / EXERCISES[name].file))
    output, codes = run_checks(tmp_path, copy, jobs)
    assert codes == [0] * len(jobs), output


def test_the_printed_function_can_be_put_into_a_handout(handout, tmp_path, monkeypatch):
    """Then the file is the one that is rejected above, and the one that is checked. All other
    functions in it are ours here."""
    copy = shutil.copytree(handout, tmp_path / 'copy')
    expected = {name: exercise.as_printed(ours(name), name) for name in ERRATA}
    stubs = {name: exercise.emptied(ours(name), name) for name in ERRATA}
    printed = runpy.run_path(str(copy / 'tools' / 'errata.py'))['ERRATA']
    for name, value in (('ROOT', copy), ('MARK', copy / 'HANDOUT.md'), ('ERRATA', printed)):
        monkeypatch.setattr(exercise, name, value)
    calls = []

    def run(command, **options):
        calls.append(options)
        return SimpleNamespace(returncode=7)

    monkeypatch.setattr(subprocess, 'run', run)
    for name in ERRATA:
        path = copy / EXERCISES[name].file
        path.write_text(stubs[name], encoding='utf-8')
        exercise.main(['start', name, '--as-printed'])
        assert exercise.read(path) == expected[name]
        assert exercise.read(max(copy.glob(f'{path.name}.*.bak'))) == stubs[name]
        assert exercise.main(['check', name]) == 1
        assert calls[-1]['cwd'] == copy and calls[-1]['env']['EXERCISE_FILE'] == str(path)


@pytest.mark.parametrize('name', EXERCISES)
def test_only_the_body_of_the_function_is_taken_out(name):
    source = ours(name)
    stub = exercise.emptied(source, name)
    before, after = (definition(code, EXERCISES[name].place) for code in (source, stub))
    lines = source.split('\n')
    stub_lines = stub.split('\n')
    assert stub_lines[:before.lineno] == lines[:before.lineno]                  # the signature
    assert stub_lines[after.end_lineno:] == lines[before.end_lineno:]
    assert len(after.body) <= 2 and max(map(len, stub_lines)) <= 100
    assert exercise.ast.get_docstring(after) == exercise.ast.get_docstring(before)


def test_start_never_overwrites_and_a_check_says_what_failed(work, capfd, monkeypatch):
    exercise.main(['start', 'rank-loss'])
    path = work / 'stats.py'
    path.write_text(re.sub(r'raise NotImplementedError.*', 'return w.sum(1)', path.read_text())
                    + '# mine\n')
    with pytest.raises(BadInput, match='stats.py exists .* --again'):
        exercise.main(['start', 'ts'])
    assert exercise.main(['check', 'rank-loss']) == 1
    said = capfd.readouterr().out
    assert '::test_rank_loss_by_hand FAILED' in said
    assert 'assert rank_loss(' in said and 'Obtained | Expected' in said
    exercise.main(['start', 'ts', '--again'])
    exercise.main(['start', 'ts', '--again', '--as-printed'])
    assert (work / 'stats.py.1.bak').read_text().endswith('# mine\n')
    assert 'exercise ts' in (work / 'stats.py.2.bak').read_text()
    path.write_text('while True: pass')
    monkeypatch.setattr(exercise, 'SECONDS', 0.5)
    assert exercise.main(['check', 'ts']) == 1
    assert 'never end' in capfd.readouterr().out


def test_the_solution_is_the_difference_from_our_file(work, capsys):
    exercise.main(['solution', 'reinforce'])
    assert '+    return -advantage.detach() * logp.sum(1)\n' in capsys.readouterr().out
    exercise.main(['start', 'vimco', '--as-printed'])
    exercise.main(['solution', 'vimco'])
    shown = capsys.readouterr().out
    assert '+    # DEVIATION: paper prints omega_k' in shown and shown.count('\n@@') == 1


@pytest.mark.parametrize('argv, message', [
    (['start', 'nothing'], "NAME: invalid choice: 'nothing' .choose from 'word-logp'"),
    (['check', 'beam'], 'no .*decode.py to check: run python -m tools.exercise start beam first'),
    (['start', 'beam', '--as-printed'], 'no error is known.*leave out --as-printed'),
    (['handout', str(exercise.ROOT)], 'not empty: choose a new folder'),
])
def test_mistakes_are_explained(work, argv, message):
    with pytest.raises(BadInput, match=message):
        exercise.main(argv)


def test_the_list_shows_every_exercise_and_an_unknown_name_ends_with_exit_code_2(
        capsys, monkeypatch):
    exercise.main(['list'])
    lines = capsys.readouterr().out.strip().split('\n')[1:]
    assert [line.split()[0] for line in lines] == list(EXERCISES)
    assert [line.split()[0] for line in lines if '--as-printed' in line] == list(ERRATA)
    monkeypatch.setattr(sys, 'argv', ['exercise.py', 'solution', 'x'])
    with pytest.raises(SystemExit) as end:
        runs.user_main(exercise.main)
    assert end.value.code == 2 and capsys.readouterr().err.count('\n') == 1


def test_a_handout_has_all_files_but_no_solution(handout, monkeypatch):
    for path in exercise.our_files():
        assert (handout / path).is_file()
    assert not (handout / '.git').exists() and not (handout / 'tests/test_exercise.py').exists()
    sources = [path for path in handout.rglob('*.py') if path.parent.name != 'tests']
    copies = ''.join(path.read_text() for path in sources)
    for name in EXERCISES:
        assert f'exercise {name} is not done yet' in copies
    for several in ERRATA.values():
        assert several[-1][1] not in copies
    monkeypatch.setattr(exercise, 'MARK', handout / 'HANDOUT.md')
    for command in ('start', 'solution'):
        with pytest.raises(BadInput, match='this copy has no solutions'):
            exercise.main([command, 'ts'])
