"""Train one of the papers: python train.py --model stats --dataset msvd

Without flags it trains on the embedded world of moving shapes, which is rendered on first use. One folder per run:

    log.jsonl       first line: flags, configuration, versions; then one object per epoch
    last.pt         to go on from (--resume); best.pt: the best on validation; both are plain dicts, written whole or not at all
    captions.json   every test video with its caption, references and scores
    attention.png   what the model looked at while it spoke

Several processes or machines: torchrun --nproc-per-node 2 train.py ...
"""
import argparse
import dataclasses
import functools
import importlib
import inspect
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import data
import evaluate
import shapes
from data import BadInput

MODELS = ('stats', 'astar', 'sta', 'vre', 'c3d')
OPTIMIZERS = {'adam': functools.partial(torch.optim.Adam, fused=True),       # fused: 8 times faster on a CPU
              'adamw': torch.optim.AdamW, 'rmsprop': torch.optim.RMSprop}


def parse(argv, strict=True):
    """-> args (the run), cfg (the paper's Config), the paper's module. A flag wins over the dataset's preset, a preset over the
    paper's default. Not strict: unknown flags may be those of another paper."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0], add_help=False, allow_abbrev=False)
    run = parser.add_argument_group('the run')
    add = run.add_argument
    add('-h', '--help', action='store_true', help='this page; with --model NAME the flags of that paper')
    add('--model', default='stats', choices=MODELS, help='the paper (default: stats)')
    add('--dataset', default='shapes', choices=sorted(data.READERS), help='(default: shapes, the embedded world)')
    add('--root', default='data', help='folder that holds DATASET/ (default: data)')
    add('--out', help='folder of the run (default: runs/MODEL-DATASET..., with a number if it is taken)')
    add('--resume', action='store_true', help='go on where the run in --out (or the newest of its name) stopped')
    add('--seed', type=int, default=0, help='same seed, same numbers on a CPU (default: 0)')
    add('--split-scheme', default='official', choices=data.SCHEMES, help='msrvtt: the split of a paper (default: official)')
    add('--fold', type=int, default=1, choices=(1, 2, 3), help='hmdb51: which of its three splits (default: 1)')
    add('--limit', type=int, metavar='N', help='use the first N videos of each split only')
    add('--patience', type=int, default=5, metavar='N', help='stop after N epochs without a better validation (default: 5)')
    add('--metric', help='what "better" means (default: CIDEr; recognition: accuracy, or mAP with several labels a clip)')
    add('--word2vec', metavar='FILE', help="start the words' embedding from these vectors (Google's .bin, or text)")
    add('--device', default='cuda' if torch.cuda.is_available() else 'cpu', help='(default: %(default)s)')
    add('--amp', action='store_true', help='bfloat16 on a GPU')
    known, _ = parser.parse_known_args(argv)
    paper = importlib.import_module(known.model)
    comments = dict(re.findall(r'^ +(\w+): .*?# (.*)$', inspect.getsource(paper.Config), re.M))
    group = parser.add_argument_group(f'the paper: {known.model}.py, class Config; defaults as there, or as its presets say')
    for field in dataclasses.fields(paper.Config):
        if field.name in ('vocab', 'feats', 'frames', 'classes', 'categories', 'captions'):     # the data decides these
            continue
        options = {'type': type(field.default), 'metavar': type(field.default).__name__.upper()}
        if type(field.default) is bool:
            options = {'action': argparse.BooleanOptionalAction}
        elif type(field.default) is tuple:
            options = {'nargs': '+', 'metavar': 'NAME'}
        elif field.name == 'variant':
            options = {'choices': paper.VARIANTS}
        group.add_argument(f'--{field.name.replace("_", "-")}', dest=f'cfg_{field.name}',
                           help=comments.get(field.name, '').replace('%', '%%'), **options)
    if known.help:
        parser.print_help()
        sys.exit()
    args = parser.parse_args(argv) if strict else parser.parse_known_args(argv)[0]
    given = {name[4:]: value for name, value in vars(args).items() if name.startswith('cfg_') and value is not None}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    task = given.get('task', getattr(paper.Config, 'task', ''))
    cfg = paper.Config(**{**paper.PRESETS.get(args.dataset, {}), **paper.PRESETS.get(f'{args.dataset}/{task}', {}), **given})
    args = argparse.Namespace(**{name: value for name, value in vars(args).items() if not name.startswith(('cfg_', 'help'))},
                              argv=argv, given=sorted(given))
    if args.amp and args.device == 'cpu':
        raise BadInput('--amp needs a GPU: bfloat16 on a CPU is many times slower')
    return args, cfg, paper


def run_folder(args, cfg):
    """The folder of this run: --out, or runs/MODEL-DATASET-VARIANT with a number that is free (with --resume: the newest)."""
    if args.out:
        out = Path(args.out)
        if (out / 'last.pt').exists() and not args.resume and 'stage' not in args.given:        # a later stage joins the first
            raise BadInput(f'{out} holds a run already: --resume goes on with it, another --out starts anew')
    else:
        name = '-'.join([args.model, args.dataset] + [str(getattr(cfg, f)) for f in ('task', 'variant') if f in args.given])
        numbered = [Path('runs') / (name if i == 1 else f'{name}-{i}') for i in range(1, 10_000)]
        free = next(i for i, path in enumerate(numbered) if not path.exists())
        out = numbered[max(free - 1, 0)] if args.resume else numbered[free]
    if args.resume and not (out / 'last.pt').exists():
        raise BadInput(f'nothing to resume: {out / "last.pt"} is not there')
    return out


def save(path, checkpoint):
    """Whole or not at all: to a temporary name first, then renamed."""
    temporary = path.with_suffix('.tmp')
    try:
        torch.save(checkpoint, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise BadInput(f'cannot write {path}: {error}. Free the disk or choose another --out; '
                       f'{"the older " + path.name + " is whole" if path.exists() else "nothing was saved yet"}') from None


def write_log(out, entry):
    try:
        with open(out / 'log.jsonl', 'a') as file:
            file.write(json.dumps(entry) + '\n')
    except OSError as error:
        raise BadInput(f'cannot write {out / "log.jsonl"}: {error}') from None


def git_hash():
    found = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=Path(__file__).parent, capture_output=True, text=True)
    return found.stdout.strip() or None


def open_data(args, cfg, paper, vocabulary):
    """-> the dataset's folder name, training and validation Corpus, features by name, vocabulary. Bad input is told here, before
    any training, and what the data decides is filled into cfg."""
    dataset = shapes.prepare(args.root, args.limit, cfg.features).name if args.dataset == 'shapes' else args.dataset
    train, val = (data.load(dataset, args.root, split, args.split_scheme, args.fold) for split in ('train', 'val'))
    if args.limit:
        train, val = train.limit(args.limit), val.limit(args.limit)
    features, cfg.feats, cfg.frames = evaluate.open_features(args.root, dataset, cfg.features, train.ids + val.ids)
    cfg.classes, cfg.categories = len(train.classes), len(train.categories)
    if hasattr(paper, 'Captioner') and getattr(cfg, 'task', '') != 'recognise':
        captions = [caption for several in train.captions.values() for caption in several]
        vocabulary = vocabulary or data.Vocabulary.build(captions, cfg.min_count)
        cfg.vocab, cfg.captions = len(vocabulary), len(captions)
    return dataset, train, val, features, vocabulary


def set_rate(optimizer, cfg, part):
    """part: how much of the training is done, 0..1. A stage may have a rate of its own."""
    rate = getattr(cfg, f'{getattr(cfg, "stage", "")}_rate', cfg.rate)
    for group in optimizer.param_groups:
        group['lr'] = rate * (0.5 * (1 + math.cos(math.pi * part)) if cfg.schedule == 'cosine' else 1.0)


def check_finite(what, value, logs, place):
    if not math.isfinite(value):
        terms = ', '.join(f'{name} = {x}' for name, x in logs.items() if not math.isfinite(x))
        raise BadInput(f'the {what} is {value} in {place} ({terms or "every term is finite"}). Stopped; last.pt is the state '
                       'before this epoch: try a smaller --rate or --clip')


def train_stage(args, cfg, paper, out, epochs, dataset, train, val, features, vocabulary, checkpoint=None, previous=None):
    """One stage of training (most papers have one). checkpoint: to go on from; previous: the best state of the stage before."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(args.seed)
    model = evaluate.build(paper, cfg).to(args.device)
    if previous is not None:
        model.start(previous)
    if args.word2vec and checkpoint is None:
        vectors, found = data.word2vec(args.word2vec, vocabulary, model.embed.embedding_dim)
        model.embed.weight.data[found] = vectors[found].to(args.device)
        say(rank, f'word2vec: {int(found.sum())} of {len(vocabulary)} words found, the others start at random')
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[cfg.optimizer](parameters, lr=cfg.rate, weight_decay=cfg.weight_decay)
    progress = dict(epoch=0, batch=0, sums={}, best=-math.inf, best_epoch=0, seconds=0.0)
    if checkpoint:
        model.load_state_dict(checkpoint['state_dict'])
        optimizer.load_state_dict(checkpoint['optimizer'])
        progress = {name: checkpoint[name] for name in progress}
    constant = dict(model=args.model, dataset=dataset, scheme=args.split_scheme, fold=args.fold, limit=args.limit,
                    argv=args.argv, encoders={name: one.info for name, one in features.items()}, config=dataclasses.asdict(cfg),
                    vocab=vocabulary.words if vocabulary else None)
    batches = data.Batches(train, features, vocabulary, cfg.videos_per_batch, cfg.captions_per_video, cfg.max_len, args.seed,
                           rank, world)
    options = {}
    if getattr(cfg, 'reward', ''):
        options['reward_fn'] = evaluate.make_reward(cfg.reward, train.captions, vocabulary)
    metric = args.metric or evaluate.main_metric(val, vocabulary)
    runner = DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False) if world > 1 else model
    pressed = []                                            # Ctrl-C: finish the batch, save, leave; a second one leaves at once
    if world == 1:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130) if pressed else pressed.append(True))

    def snapshot(**changes):
        progress.update(changes)
        return {**constant, **progress, 'state_dict': model.state_dict(), 'optimizer': optimizer.state_dict(),
                'rng': torch.get_rng_state()}

    def leave(where):
        say(rank, f'\nstopped {where}; to go on: python train.py --resume --out {out}')
        sys.exit(130)

    for epoch in range(progress['epoch'], epochs):
        waited = epoch - max(progress['best_epoch'], getattr(cfg, 'reward_after', 0))   # a new objective has its own patience
        if waited >= args.patience and progress['best_epoch']:
            say(rank, f'{metric} has not risen for {args.patience} epochs: stopped early')
            break
        # The seed depends on the epoch, so that a resumed run draws what an unbroken one would have drawn.
        torch.manual_seed(args.seed + 1000 * (epoch + 1) + rank)
        if progress['batch']:                               # resumed inside an epoch
            torch.set_rng_state(checkpoint['rng'])
        began, first, sums = time.time() - progress['seconds'], progress['batch'], dict(progress['sums'])
        bar = tqdm(batches.epoch(epoch, first), total=len(batches), initial=first, desc=f'epoch {epoch + 1}/{epochs}',
                   leave=False, disable=rank > 0, mininterval=0.5)
        runner.train()
        for number, batch in enumerate(bar, first):
            batch, place = data.to(batch, args.device), f'epoch {epoch + 1}, batch {number + 1}'
            set_rate(optimizer, cfg, (epoch + number / len(batches)) / epochs)
            with torch.autocast(args.device.split(':')[0], torch.bfloat16, enabled=args.amp):
                loss, logs = runner(batch, epoch=epoch, **options)
            check_finite('loss', loss.item(), logs, place)
            optimizer.zero_grad()
            (loss * batch['share'] * world).backward()      # DDP averages over processes: this makes it the joined batch's mean
            norm = torch.nn.utils.clip_grad_norm_(parameters, cfg.clip)
            check_finite('gradient', norm.item(), logs, place)
            optimizer.step()
            for name, value in {'loss': loss.item(), **logs}.items():
                sums[name] = sums.get(name, 0.0) + value
            bar.set_postfix(loss=f'{sums["loss"] / (number + 1):.3f}')
            if pressed and number + 1 < len(batches):
                bar.close()
                save(out / 'last.pt', snapshot(epoch=epoch, batch=number + 1, sums=sums, seconds=time.time() - began))
                leave(f'in epoch {epoch + 1}')
        if hasattr(model, 'end_epoch'):
            model.end_epoch()
        if rank == 0:
            scores, _, _ = evaluate.evaluate(model, val, features, vocabulary, args.device)
            if metric not in scores:
                raise BadInput(f'--metric {metric}: choose one of {", ".join(scores)}')
            value = -scores[metric] if metric == 'loss' else scores[metric]
            better = value > progress['best']
            best = {'best': value, 'best_epoch': epoch + 1} if better else {}
            whole = snapshot(epoch=epoch + 1, batch=0, sums={}, seconds=time.time() - began, **best)
            means = {name: value / len(batches) for name, value in sums.items()}
            if better:
                save(out / 'best.pt', whole)
            save(out / 'last.pt', whole)
            write_log(out, {'epoch': epoch + 1, **({'stage': cfg.stage} if hasattr(cfg, 'stage') else {}), **means,
                            **{f'val_{name}': value for name, value in scores.items()}, 'seconds': round(whole['seconds'], 1)})
            shown = '  '.join(f'{name} {value:.3f}' for name, value in scores.items())
            say(rank, f'epoch {epoch + 1:3d}  {whole["seconds"]:5.0f} s  training loss {means["loss"]:.3f}  validation: {shown}'
                      f'{"  *" if better else ""}')
        if world > 1:                                       # everyone must know when to stop early
            told = [progress]
            dist.broadcast_object_list(told)
            progress = told[0]
        if pressed:
            leave(f'after epoch {epoch + 1}')
    signal.signal(signal.SIGINT, signal.default_int_handler)


def say(rank, text):
    if rank == 0:
        print(text, flush=True)


def main(argv):
    args, cfg, paper = parse(argv, strict='--resume' not in argv)       # a resumed run knows its paper: see below
    data.check_device(args.device)                          # the one given now, not that of the first start
    rank, world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
    if world > 1:                                           # started by torchrun
        if args.device.startswith('cuda'):
            args.device = f'cuda:{os.environ["LOCAL_RANK"]}'
            torch.cuda.set_device(args.device)
        dist.init_process_group('nccl' if args.device.startswith('cuda') else 'gloo')
    names = [run_folder(args, cfg) if rank == 0 else None]
    if world > 1:
        dist.broadcast_object_list(names)
    out, checkpoint, vocabulary = names[0], None, None
    if args.resume:                                         # the flags of the first start, then those given now
        checkpoint, device = evaluate.load_checkpoint(out / 'last.pt'), args.device
        args, cfg, paper = parse(checkpoint['argv'] + argv)
        args.device, vocabulary = device, checkpoint['vocab'] and data.Vocabulary(checkpoint['vocab'])
    try:
        evaluate.check_java()                               # before training, not after the first epoch
    except RuntimeError as error:
        raise BadInput(error) from None
    for turn in range(world):                               # one process renders the embedded world, the others then find it
        if turn == rank:
            dataset, train, val, features, vocabulary = open_data(args, cfg, paper, vocabulary)
        if world > 1:
            dist.barrier()
    if rank == 0:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f'cannot make the folder {out}: {error}') from None
        write_log(out, {'args': vars(args), 'config': dataclasses.asdict(cfg), 'git': git_hash(), 'processes': world,
                        'threads': torch.get_num_threads(), 'python': sys.version.split()[0], 'torch': torch.__version__})
    size = {name: ' x '.join(map(str, cfg.feats[name])) for name in cfg.features}
    alone = ', one region' * (len(cfg.feats[cfg.features[0]]) == 1)      # the first is what is seen
    shown = ', '.join(f'{name} ({size[name]} a frame{alone if name == cfg.features[0] else ""})' for name in cfg.features)
    say(rank, f'{args.model} on {data.count(train)}; {cfg.captions:,} captions, {cfg.vocab:,} words; {data.count(val)}; '
              f'features {shown}; run {out}')

    every, previous = list(getattr(paper, 'STAGES', [''])), None         # most papers have one stage without a name
    stages = every if getattr(cfg, 'stage', 'all') == 'all' else [cfg.stage]
    if checkpoint and every != ['']:
        stages = stages[stages.index(checkpoint['config']['stage']):]
    elif stages[0] != every[0]:                             # one stage by itself needs the one before
        previous = evaluate.load_checkpoint(out / f'best-{every[every.index(stages[0]) - 1]}.pt')['state_dict']
    for stage in stages[:-1]:
        if getattr(cfg, f'{stage}_epochs') < 1:
            raise BadInput(f'--{stage}-epochs 0: the stage after it starts from its best model, so it needs an epoch at least')
    for stage in stages:
        epochs = getattr(cfg, f'{stage}_epochs' if stage else 'epochs')
        if stage:
            cfg.stage = stage
            say(rank, f'stage {stage}: {epochs} epochs')
        train_stage(args, cfg, paper, out, epochs, dataset, train, val, features, vocabulary, checkpoint, previous)
        if world > 1:
            dist.barrier()
        checkpoint, previous = None, evaluate.load_checkpoint(out / 'best.pt')['state_dict']
        if stage and rank == 0:
            shutil.copyfile(out / 'best.pt', out / f'best-{stage}.pt')
    if world > 1:
        dist.destroy_process_group()
    if rank == 0:
        evaluate.main([str(out), '--root', str(args.root), '--device', args.device])


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(f'error: {error}')
