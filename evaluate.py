"""How good are the captions?  python evaluate.py RUN

    score(references, captions)   BLEU-1..4, METEOR, ROUGE-L and CIDEr, by pycocoevalcap
    make_reward('cider', ...)     the same metrics as rewards, fast enough for every training batch
    evaluate(run, model, corpus)  scores of a model on one split
    report(runs, model, corpus)   the same, printed and written to the run's folder
"""
import shapes  # noqa: F401, imported first: it makes Ctrl-C during imports print one line

import functools
import math
import os
import time
from collections import Counter

import numpy as np
import torch
from tqdm import tqdm

import data
import decode
from data import PAD, BadInput
from shapes import puzzles
from shapes import words as shape_words
from tools import checkpoints, java, machine, runs

# ---------------------------------------------------------------------------------------- metrics


def complain(what, ids):
    """Refuse to score if a problem occurs. what: the problem; ids: the videos that have it"""
    if ids:
        raise ValueError(f'{what}: {len(ids)} videos, such as {", ".join(map(repr, ids[:5]))}')


def check_scorable(references, captions):
    """Both must be dicts from the same ids to lists, with one caption per video."""
    if not references:
        raise ValueError('nothing to score: there are no references')
    complain('references without a caption', [i for i in references if i not in captions])
    complain('captions without references', [i for i in captions if i not in references])
    complain('not a list of references',
             [i for i, several in references.items() if not isinstance(several, list)])
    complain('not a list of one caption',
             [i for i, c in captions.items() if not isinstance(c, list) or len(c) != 1])


def score(references, captions, quick=False):
    """references: id -> list of str, captions: id -> list of one str
    -> {'Bleu_1': ..., 'CIDEr': ...}, id -> {'Bleu_4', 'METEOR', 'ROUGE_L', 'CIDEr'}

    A caption without words scores 0. quick is for validation during training: it does not start
    Java, so captions are split at spaces and METEOR is left out."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    check_scorable(references, captions)
    ids = list(references)
    sentences = [sentence for i in ids for sentence in references[i] + captions[i]]
    tokenized = iter([java.clean(s) for s in sentences] if quick else java.tokenize(sentences))
    true = {}
    said = {}
    for i in ids:
        several = [next(tokenized) for _ in references[i]]
        true[i] = [reference for reference in several if reference.strip()]
        said[i] = [next(tokenized)]
    complain('no words in any reference', [i for i in ids if not true[i]])

    bleu, bleu_each = Bleu(4).compute_score(true, said, verbose=0)
    total = {f'Bleu_{n}': float(value) for n, value in enumerate(bleu, 1)}
    each = {'Bleu_4': bleu_each[3]}
    if not quick:
        meteor = java.shared_meteor()
        total['METEOR'], each['METEOR'] = meteor.score([true[i] for i in ids],
                                                       [said[i][0] for i in ids])
    for name, metric in (('ROUGE_L', Rouge()), ('CIDEr', Cider())):
        value, each[name] = metric.compute_score(true, said)
        total[name] = float(value)
    by_video = {}
    for n, i in enumerate(ids):
        by_video[i] = {name: float(values[n]) for name, values in each.items()}
    return total, by_video


# ---------------------------------------------------- rewards; captions are split at spaces only

def ngrams(text):
    """How often each sequence of 1 to 4 words occurs in the text: {('a', 'man'): 1, ...}"""
    words = text.split()
    found = Counter()
    for n in range(1, 5):
        found.update(tuple(words[i:i + n]) for i in range(len(words) - n + 1))
    return found


def score_each(metric, ids, captions):
    """The method `score` of metrics that score one caption at a time: B ids, B str -> (B,)"""
    return np.array([metric.one(i, c) for i, c in zip(ids, captions, strict=True)])


class CiderD:
    """CIDEr-D (Vedantam et al. 2015), which pycocoevalcap calls CIDEr: the cosine between tf-idf
    vectors of n-grams, with clipped counts, times a penalty on the difference in length. The part
    that depends only on the references is computed once, in __init__."""

    def __init__(self, references, sigma=6.0, end=''):
        """references: id -> list of str. Document frequencies are counted over all of them. end is
        added to every reference and caption."""
        self.sigma = sigma
        self.end = end
        references = {i: [text + end for text in several] for i, several in references.items()}
        self.unseen = math.log(len(references))         # idf of an n-gram that occurs nowhere
        videos_with = Counter()
        for several in references.values():
            videos_with.update(set().union(*map(ngrams, several)))
        self.idf = {gram: self.unseen - math.log(n) for gram, n in videos_with.items()}
        self.videos = {i: self.index(several) for i, several in references.items()}

    def index(self, references):
        """R str -> {n-gram: [(number of a reference, count in it), ...]}, [size() of each]"""
        where = {}
        sizes = []
        for r, counts in enumerate(map(ngrams, references)):
            sizes.append(self.size(counts))
            for gram, count in counts.items():
                where.setdefault(gram, []).append((r, count))
        return where, sizes

    def size(self, counts):
        """n-gram counts -> norm of the tf-idf vector for each n; number of bigrams, which the
        original code takes as the length of the caption"""
        squares = [0.0] * 4
        length = 0
        for gram, count in counts.items():
            squares[len(gram) - 1] += (count * self.idf.get(gram, self.unseen)) ** 2
            if len(gram) == 2:
                length += count
        return [math.sqrt(square) for square in squares], length

    score = score_each

    def one(self, video, caption):
        """id, str -> CIDEr-D from 0 to 10: ten times the mean, over the references and n = 1 to 4,
        of the cosine between the tf-idf vectors of n-grams, times the penalty on the length"""
        where, sizes = self.videos[video]
        counts = ngrams(caption + self.end)
        norms, length = self.size(counts)
        cosines = [0.0] * len(sizes)                    # with each reference, summed over n
        for gram, count in counts.items():
            idf = self.idf.get(gram)
            if not idf:                                 # it occurs in no video, or in every video
                continue
            n = len(gram) - 1
            for r, other in where.get(gram, ()):
                clipped = min(count, other) * other * idf ** 2
                cosines[r] += clipped / (norms[n] * sizes[r][0][n])
        total = 0.0
        for cosine, (_, other) in zip(cosines, sizes):
            total += cosine * math.exp(-(length - other) ** 2 / (2 * self.sigma ** 2))
        return 10 / 4 * total / len(sizes)


class Bleu4:
    """BLEU-4 of single captions, by NLTK. Most of them share no 4-gram with any reference and would
    score 0, so 1 is added to the counts for n > 1 (Lin and Och 2004)."""

    def __init__(self, references):
        self.references = {i: [r.split() for r in several] for i, several in references.items()}

    score = score_each

    def one(self, video, caption):
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
        return float(sentence_bleu(self.references[video], caption.split(),
                                   smoothing_function=SmoothingFunction().method2))


class RougeL:
    """ROUGE-L of single captions, by pycocoevalcap"""

    def __init__(self, references):
        from pycocoevalcap.rouge.rouge import Rouge
        self.rouge = Rouge()
        self.references = references

    score = score_each

    def one(self, video, caption):
        return self.rouge.calc_score([caption], self.references[video]) if caption else 0.0


class MeteorReward:
    """METEOR of single captions, by the Java process of tools/java.py"""

    def __init__(self, references):
        self.references = references

    def score(self, ids, captions):
        """B ids, B str -> (B,)"""
        return java.shared_meteor().score([self.references[i] for i in ids], captions)[1]


REWARDS = {
    # The end of a caption counts as a word. Otherwise all n-grams of "a man is playing a" would be
    # correct, and the model would learn to stop too soon.
    'cider': functools.partial(CiderD, end=' <eos>'),
    'bleu4': Bleu4, 'rouge': RougeL, 'meteor': MeteorReward,
}


def make_reward(spec, references, vocabulary):
    """spec: 'cider', or a sum such as 'meteor+bleu4'; references: id -> list of str, normalised
    -> reward_fn(ids of B videos, tokens (B, T)) -> float (B,)"""
    names = spec.split('+')
    for name in names:
        data.choose('--reward', name, REWARDS)
    metrics = [REWARDS[name](references) for name in names]

    def reward_fn(ids, tokens):
        captions = [vocabulary.decode(row) for row in tokens.tolist()]
        pairs = list(zip(ids, captions, strict=True))
        different = list(dict.fromkeys(pairs))          # many samples are equal: score each once
        videos = [video for video, _ in different]
        said = [caption for _, caption in different]
        values = sum(metric.score(videos, said) for metric in metrics)
        by_pair = dict(zip(different, values.tolist()))
        return torch.tensor([by_pair[pair] for pair in pairs], device=tokens.device)

    return reward_fn


# --------------------------------------------------------------------------- a model on one split

def main_metric(run, corpus):
    """The score that decides which epoch is best. For captions it is CIDEr, for puzzles slots. For
    action labels it is accuracy, or mean average precision (mAP) if clips have several labels."""
    if corpus.answers:
        return 'slots'
    if not run.recognises:
        return 'CIDEr'
    several = any(len(labels) > 1 for labels in corpus.labels.values())
    return 'mAP' if several else 'accuracy'


def batches(run, corpus):
    """-> Batches of this split as the run reads them"""
    t = run.training
    return data.Batches(corpus, run.vocabulary, t.videos_per_batch, t.captions_per_video, t.max_len)


@torch.no_grad()
def describe(run, model, corpus, beam=1, progress=False):
    """-> id -> caption, generated greedily or with a beam of that width"""
    captions = {}
    pace = {}
    bar = tqdm(total=len(corpus.ids), desc=f'captions, beam {beam}', leave=False,
               disable=not progress)
    for batch in batches(run, corpus).in_order():
        began = time.time()
        memory, state = model.encode(data.to(batch, run.device))
        if beam > 1:
            words, _ = decode.beam(model, memory, state, run.training.max_len, beam,
                                   length_penalty=run.training.length_penalty)
        else:
            words, _ = decode.greedy(model, memory, state, run.training.max_len)
        captions.update(zip(batch['ids'], map(run.vocabulary.decode, words.tolist())))
        bar.update(len(batch['ids']))
        # Per frame, because the videos of some batches are longer
        seconds = (time.time() - began) / sum(mask.numel() for mask in batch['mask'].values())
        if progress and run.device == 'cpu' and machine.slowed_down(pace, seconds, beam):
            bar.write(f'{machine.SLOW}Ctrl-C, then start again with --threads 1')
    bar.close()
    return captions


@torch.no_grad()
def loss_per_word(run, model, corpus):
    """Mean negative log-likelihood of the references' words, <eos> included"""
    total = 0.0
    count = 0
    for batch in batches(run, corpus).epoch(0):
        batch = data.to(batch, run.device)
        memory, state = decode.select(model.encode(batch), batch['rows'])
        logp, _ = decode.teacher_force(model, memory, state, batch['captions'])
        total -= logp.sum().item()
        count += (batch['captions'] != PAD).sum().item()
    return total / count


def check_finite(values, place):
    """Refuse numbers that are not finite. values: {name: number}"""
    wrong = [f'{name} = {value}' for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        raise BadInput(f'{", ".join(wrong)} in {place}, so nothing was saved: try a smaller --rate '
                       'or --clip')


def average_precision(scores, positive):
    """scores (N,), positive (N,) bool -> average precision: the mean, over the positives, of the
    precision among the entries that are ranked as high or higher"""
    ranked = positive[np.argsort(-scores, kind='stable')]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    return float(precision[ranked].mean())


@torch.no_grad()
def recognise(run, model, corpus):
    """-> scores {'accuracy', 'mAP'}, id -> probabilities (classes,)"""
    found = {}
    true = []
    for batch in batches(run, corpus).in_order():
        probabilities, _ = model.predict(data.to(batch, run.device))
        found.update(zip(batch['ids'], probabilities.cpu().numpy()))
        true.append(batch['labels'].numpy() > 0)
    true = np.concatenate(true)                         # (N, classes)
    guessed = np.stack(list(found.values()))
    check_finite({'probabilities': guessed.sum()}, f'the {corpus.split} split')
    right = true[np.arange(len(true)), guessed.argmax(1)]       # any label of the clip is right
    precisions = [average_precision(guessed[:, c], true[:, c])
                  for c in range(true.shape[1]) if true[:, c].any()]
    return {'accuracy': float(right.mean()), 'mAP': float(np.mean(precisions))}, found


def evaluate(run, model, corpus, beam=1, quick=True):
    """-> scores {name: number}; id -> caption, or class probabilities; id -> scores of its caption.
    quick: without Java, as in score()"""
    if run.recognises:
        scores, found = recognise(run, model, corpus)
        return scores, found, {}
    captions = describe(run, model, corpus, beam, progress=not quick)
    listed = {i: [caption] for i, caption in captions.items()}
    scores, each = score(corpus.captions, listed, quick)
    scores['loss'] = loss_per_word(run, model, corpus)
    check_finite(scores, f'the {corpus.split} split')
    if corpus.truth:
        scores |= shape_words.score(captions, corpus.truth)
    if corpus.answers:
        scores |= puzzles.score(captions, corpus.answers)
    return scores, captions, each


# ------------------------------------------------------------------------------------- the report

def table(scores):
    """{name: number} -> two lines of text"""
    head = '  '.join(f'{name:>8}' for name in scores)
    return head + '\n' + '  '.join(f'{value:8.3f}' for value in scores.values())


def print_captions(corpus, captions):
    """The first five captions, each with three references"""
    for i, caption in list(captions.items())[:5]:
        print(f'{i}: {caption}')
        for reference in corpus.captions[i][:3]:
            print(f'{"":{len(i)}}  | {reference}')
        print()


def print_classes(corpus, probabilities):
    """The first five clips"""
    print('clip: label | answer, its probability')
    for i, p in list(probabilities.items())[:5]:
        labels = ', '.join(corpus.classes[c] for c in corpus.labels[i])
        print(f'{i}: {labels} | {corpus.classes[p.argmax()]}, {p.max():.2f}')
    print()


def report(several, model, corpus, json_path=None):
    """Score one Run, or an ensemble of several. model: the run's model, or the Ensemble. Prints a
    table and some captions, writes all captions to captions.json (or ensemble.json), and draws one
    of them if there is a single run."""
    from tools import figures, scores                   # matplotlib takes a second to import
    run = several[0]
    path = json_path or scores.captions_path(several, corpus.split)
    if len(several) == 1:
        found = scores.full_scores(run, model, corpus)
    else:
        found = evaluate(run, model, corpus, run.training.beam, quick=False)
    if len(several) > 1 or run.recognises or json_path:
        scores.write_scores(path, several, corpus, found)
    totals, said, _ = found
    names = ' + '.join(str(one.path) for one in several)
    how = '' if run.recognises else f', {run.search}'
    print(f'\n{names}: {run.dataset.name}, {corpus.split} split, {len(said)} videos{how}')
    print(table(totals) + '\n')
    if run.recognises:
        print_classes(corpus, said)
    else:
        print_captions(corpus, said)
    print(f'captions    {path}')
    if len(several) == 1:
        video = corpus.ids[0]
        if not run.recognises:                          # draw the longest caption that is right
            right = [i for i in said if said[i] in corpus.captions[i]]
            video = max(right or said, key=lambda i: len(said[i].split()))
        picture = runs.output(run, 'attention', '.png')
        print(f'picture     {figures.draw_video([(run, model)], corpus, video, picture)}')


MOVED = {'--html': 'show page', '--show': 'show figures', '--curves': 'show curves',
         '--words': 'show words', '--glimpse': 'show glimpse', '--grounding': 'grounding'}


def parse(argv):
    for flag in [word.split('=')[0] for word in argv]:
        if flag in MOVED:
            raise BadInput(f'{flag} is a command of its own now: python -m tools.{MOVED[flag]} RUN')
    parser = runs.Parser(
        description='Score a run or an ensemble of runs, write all captions, and draw one.')
    runs.add_flags(parser)
    parser.add_argument('--json', metavar='FILE',
                        help='where to write captions and scores (default: RUN/captions.json)')
    parser.add_argument('--video', action='append', metavar='FILE',
                        help='describe and draw your own video instead; may be repeated')
    args = parser.parse_args(argv)
    if args.json is not None and (os.path.isdir(args.json)
                                  or not os.path.isdir(os.path.dirname(args.json) or '.')):
        raise BadInput(f'--json {args.json}: name a file in a folder that exists')
    return args


def main(argv):
    args = parse(argv)
    loaded = checkpoints.load_all(args)
    first, model = loaded[0]
    if len(loaded) > 1:
        for run, _ in loaded:
            if run.recognises or run.vocabulary.words != first.vocabulary.words:
                raise BadInput(f'{run.path} and {first.path} cannot form an ensemble: all '
                               'runs must generate captions with the same vocabulary')
        model = decode.Ensemble([model for _, model in loaded])
    if args.video:
        from tools import caption                       # needs a video decoder
        return caption.caption_files(loaded, args.video)
    java.check_java()
    corpus = runs.open_all(loaded, args.split)
    report([run for run, _ in loaded], model, corpus, args.json)


if __name__ == '__main__':
    runs.user_main(main)
