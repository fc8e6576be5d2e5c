"""Train one of the papers: python train.py --model stats --dataset msvd

Without flags it trains STaTS on the embedded world of moving shapes, which is rendered on first
use. Each run has a folder:

    log.jsonl       first line: settings and versions; then one object per epoch
    last.pt         the newest state, for --resume
    best.pt         the best state on validation (and best-STAGE.pt for papers with several stages)
    captions.json   every test video with its caption, references and scores
    attention.png   one caption, and what the model looked at while generating it

To use several processes or machines: torchrun --nproc-per-node 2 train.py ...
torchrun warns that it sets OMP_NUM_THREADS to 1, one thread per process, which is right. If
train.py fails, torchrun adds a report, "ChildFailedError"; our message stands above this report.

A paper is one file at the top level: `--model plain` trains plain.py. The file must contain

    Config       a dataclass: what the paper says. One field is required: `features`, the names of
                 the features that the model reads. The settings of training and decoding (class
                 Training in tools/runs.py) have defaults, which Config may override by fields of
                 the same name.
    Captioner    an nn.Module, Captioner(cfg, sizes), with
                     encode(batch)              -> memory, state        (see decode.py)
                     step(token, state, memory) -> logits, state, aux
                     forward(batch, *, epoch=0, reward_fn=None) -> loss, logs {name: float}
    Recogniser   instead of Captioner or in addition, if the paper classifies videos:
                 Recogniser(cfg, sizes), with
                     forward(batch, *, epoch=0) -> loss, logs
                     predict(batch) -> probabilities (N, classes), aux

and may contain

    PRESETS         {dataset, dataset/task or dataset/features: {field: value}}: other defaults
    VARIANTS        the choices of --variant; in the same way POOLS are those of a field `pool`
    TASK_FIELDS     {task: fields of Config that only this task reads}, if there are two tasks
    stages(cfg)     [(name, epochs, rate)], if training has several stages. Config then has a field
                    `stage`, and the model a method start(state_dict), which receives the best
                    weights of the previous stage
    SHARED_BUFFERS  names of buffers in which each process fills the entries of its own captions;
                    the processes exchange them after every epoch
    VIEW            what pictures of this paper show (see tools/figures.py)
"""
import shapes  # noqa: F401, imported first: it makes Ctrl-C during imports print one line

import contextlib
import dataclasses
import functools
import math
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

import data
import evaluate
from data import BadInput
from tools import checkpoints, flags, grounding, java, log, machine, runs
from tools.runs import Progress
from tools.word2vec import fill_embedding

OPTIMIZERS = {                      # and the names of what they store for each parameter
    'adam': (functools.partial(torch.optim.Adam, fused=True),   # fused: 8 times as fast on a CPU
             ('step', 'exp_avg', 'exp_avg_sq')),
    'adamw': (torch.optim.AdamW, ('step', 'exp_avg', 'exp_avg_sq')),
    'rmsprop': (torch.optim.RMSprop, ('step', 'square_avg')),
}


# --------------------------------------------------------------------------------------- messages

def process():
    """-> number of this process, number of processes"""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def say(text):
    if process()[0] == 0:
        try:
            print(text, flush=True)
        except BrokenPipeError:                         # the reader has ended, as in `| head -1`:
            sys.stdout = open(os.devnull, 'w')          # save and stop, as after Ctrl-C
            INTERRUPTS.append('closed pipe')


# --------------------------------------------------------------------------------------- training

@dataclass
class Stage:
    """All that one stage of training needs. Most papers have a single stage."""
    epochs: int
    rate: float
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: data.Batches
    options: dict                                       # reward_fn, for papers with rewards
    pace: dict = field(default_factory=dict)            # times of steps, see tools/machine.py


def make_stage(run, train, epochs, rate):
    """-> Stage with a new model"""
    torch.manual_seed(run.seed)
    model = run.build()
    parameters = [p for p in model.parameters() if p.requires_grad]
    make_optimizer, _ = OPTIMIZERS[run.training.optimizer]
    optimizer = make_optimizer(parameters, lr=rate, weight_decay=run.training.weight_decay)
    options = {}
    if run.training.reward and not run.recognises:
        options['reward_fn'] = evaluate.make_reward(run.training.reward, train.captions,
                                                    run.vocabulary)
    return Stage(epochs, rate, model, optimizer, evaluate.batches(run, train), options)


def save(path, checkpoint):
    with machine.replacing(path) as temporary:
        torch.save(checkpoint, temporary)


def snapshot(run, stage, progress):
    """-> the content of a checkpoint"""
    return {**run.checkpoint(), **dataclasses.asdict(progress),
            'state_dict': stage.model.state_dict(), 'optimizer': stage.optimizer.state_dict(),
            'rng': torch.get_rng_state()}


def set_rate(stage, schedule, done):
    """Set the learning rate. done: the fraction of the stage that is done, from 0 to 1"""
    factor = 0.5 * (1 + math.cos(math.pi * done)) if schedule == 'cosine' else 1.0
    for group in stage.optimizer.param_groups:
        group['lr'] = stage.rate * factor


INTERRUPTS = []                                         # reasons to stop: signals, 'closed pipe'


def interrupt(number, _):
    """Ctrl-C: finish the batch, save and stop. A second Ctrl-C stops at once."""
    if INTERRUPTS:
        sys.exit(130)
    INTERRUPTS.append(number)


def root_flag(run):
    return '' if run.dataset.root == 'data' else f' --root {run.dataset.root}'


def stop_if_interrupted(run, stage, progress):
    """After Ctrl-C: save, print how to continue, and stop."""
    if not INTERRUPTS:
        return
    save(run.path / 'last.pt', snapshot(run, stage, progress))
    say(f'\nstopped in epoch {progress.epoch + 1}; to continue: '
        f'python train.py --resume --out {run.path}{root_flag(run)}')
    sys.exit(130)


def train_epoch(run, stage, progress, amp=False):
    """Train on the remaining batches of an epoch -> mean of every logged number over the epoch"""
    rank, world = process()
    epoch = progress.epoch
    count = len(stage.batches)
    began = time.time() - progress.seconds
    bar = tqdm(stage.batches.epoch(epoch, run.seed, progress.batch, rank, world), total=count,
               initial=progress.batch, desc=f'epoch {epoch + 1}/{stage.epochs}', leave=False,
               disable=rank > 0 or None, mininterval=0.5)     # None: a bar only in a terminal
    stage.model.train()
    for number, batch in enumerate(bar, progress.batch):
        step_began = time.time()
        batch = data.to(batch, run.device)
        place = f'epoch {epoch + 1}, batch {number + 1}'
        set_rate(stage, run.training.schedule, (epoch + number / count) / stage.epochs)
        with torch.autocast(run.device.split(':')[0], torch.bfloat16, enabled=amp):
            loss, logs = stage.model(batch, epoch=epoch, **stage.options)
        evaluate.check_finite({'loss': loss.item(), **logs}, place)
        stage.optimizer.zero_grad()
        # The gradients of all processes are added up. Each process multiplies its loss by its share
        # of the captions, so the sum is the gradient of the mean over the joined batch.
        (loss * batch['share']).backward()
        if world > 1:
            sum_gradients(list(stage.model.parameters()))
        norm = torch.nn.utils.clip_grad_norm_(stage.model.parameters(), run.training.clip)
        evaluate.check_finite({'norm of the gradient': norm.item()}, place)
        stage.optimizer.step()
        for name, value in {'loss': loss.item(), **logs}.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + value * batch['share']
        bar.set_postfix(loss=f'{progress.sums["loss"] / (number + 1):.3f}', refresh=False)
        progress.batch = number + 1
        progress.seconds = time.time() - began
        seconds = time.time() - step_began
        if run.device == 'cpu' and machine.slowed_down(stage.pace, seconds, tuple(logs)):
            bar.write(f'{machine.SLOW}Ctrl-C saves this run; continue it with --resume --threads 1')
        if number + 1 < count:
            stop_if_interrupted(run, stage, progress)
    means = {name: total / count for name, total in joined(progress.sums).items()}
    progress.epoch += 1
    progress.batch = 0
    progress.sums = {}
    return means


def sum_gradients(parameters):
    """Under torchrun: give every process the sum of all gradients. A parameter that no process has
    used keeps None, so that the optimizer leaves it alone."""
    used = torch.tensor([float(p.grad is not None) for p in parameters])
    dist.all_reduce(used)
    for parameter, count in zip(parameters, used.tolist()):
        if count:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


def joined(sums):
    """{name: number of this process} -> {name: sum over all processes}"""
    if process()[1] == 1:
        return sums
    totals = torch.tensor(list(sums.values()), dtype=torch.float64)
    dist.all_reduce(totals)
    return dict(zip(sums, totals.tolist()))


def merge_buffers(buffers, before):
    """Under torchrun: give every process the entries that others have changed since `before`."""
    for name, buffer in buffers.items():
        changed = ~torch.isclose(buffer, before[name], rtol=0, atol=0, equal_nan=True)
        count = changed.to(buffer.dtype)
        total = torch.where(changed, buffer, 0.0)
        dist.all_reduce(count)
        dist.all_reduce(total)
        buffer.copy_(torch.where(count > 0, total / count, buffer))


def validate(run, stage, progress, val, means):
    """Score the captions of the validation videos; save, log and print."""
    stage.model.eval()
    began = time.time()
    scores, _, _ = evaluate.evaluate(run, stage.model, val)
    progress.seconds += time.time() - began
    value = -scores[run.metric] if run.metric == 'loss' else scores[run.metric]
    better = value > progress.best
    if better:
        progress.best = value
        progress.best_epoch = progress.epoch
    entry = {'epoch': progress.epoch, **means}
    if progress.stage:
        entry['stage'] = progress.stage
    entry |= {f'val_{name}': value for name, value in scores.items()}
    entry |= grounding.numbers_by_role(run, stage.model, val)
    entry['seconds'] = round(progress.seconds, 1)
    progress.entry = entry                              # in case we are killed before write_log
    checkpoint = snapshot(run, stage, progress)
    if better and progress.stage:
        save(run.path / f'best-{progress.stage}.pt', checkpoint)
    if better:
        save(run.path / 'best.pt', checkpoint)
    save(run.path / 'last.pt', checkpoint)
    log.write_log(run, entry)
    shown = '  '.join(f'{name} {value:.3f}' for name, value in scores.items())
    terms = ', '.join(f'{name} {value:.3f}' for name, value in means.items() if name != 'loss')
    say(f'epoch {progress.epoch:3d}  {progress.seconds:5.0f} s  training loss '
        f'{means["loss"]:.3f} ({terms})  validation: {shown}{"  *" if better else ""}')


def patience_is_over(run, progress):
    """Has the validation score stopped improving? When rewards begin, the objective changes, so the
    count of epochs without improvement starts again."""
    since = max(progress.best_epoch, run.training.reward_after)
    if progress.best_epoch == 0 or progress.epoch - since < run.training.patience:
        return False
    say(f'{run.metric} has not improved for {run.training.patience} epochs: stopping early')
    return True


def train_stage(run, stage, progress, val, args):
    """Train for the remaining epochs of one stage."""
    rank, world = process()
    shared = {name: stage.model.get_buffer(name) for name in run.paper.SHARED_BUFFERS}
    resumed_at = progress.batch
    rng = torch.get_rng_state()
    while progress.epoch < stage.epochs and not patience_is_over(run, progress):
        # The seed depends on the epoch, so that a resumed run draws the same random numbers. If it
        # was stopped within an epoch, it continues with the random state from the checkpoint.
        torch.manual_seed(run.seed + 1000 * (progress.epoch + 1) + rank)
        if resumed_at:
            torch.set_rng_state(rng)
            resumed_at = 0
        before = {name: buffer.clone() for name, buffer in shared.items()}
        means = train_epoch(run, stage, progress, args.amp)
        if world > 1:
            merge_buffers(shared, before)
        if rank == 0:
            validate(run, stage, progress, val, means)
        if world > 1:                                   # all must stop after the same epoch
            told = [progress]
            dist.broadcast_object_list(told)
            progress = told[0]
        stop_if_interrupted(run, stage, progress)


def start_stage(run, model, name, vectors):
    """Load what a stage starts from: the best model of the previous stage or, for the first stage,
    word vectors, if --word2vec names a file."""
    if name:
        everything = dataclasses.replace(run.cfg, stage='all')
        names = [one for one, _, _ in run.paper.stages(everything)]
        if name != names[0]:
            best = run.path / f'best-{names[names.index(name) - 1]}.pt'
            model.start(checkpoints.load(best, run.dataset.root, run.device)[1].state_dict())
            return
    if vectors:
        found = fill_embedding(model.embed, vectors, run.vocabulary)
        say(f'word2vec: {found} of {len(run.vocabulary)} words found; the others start at random')


def continue_stage(run, stage, checkpoint):
    """Load the weights, the optimizer and the random numbers of last.pt -> Progress"""
    _, kept = OPTIMIZERS[run.training.optimizer]
    with data.reading(run.path / 'last.pt', 'damaged; start a new run'):
        stored = checkpoint['optimizer']['state']
        stage.model.load_state_dict(checkpoint['state_dict'])
        checkpoints.check_optimizer(stored, stage.optimizer.param_groups[0]['params'], kept)
        stage.optimizer.load_state_dict({**stage.optimizer.state_dict(), 'state': stored})
        torch.set_rng_state(checkpoint['rng'])
        return Progress(**{one.name: checkpoint[one.name] for one in dataclasses.fields(Progress)})


def train_all(run, splits, args, checkpoint):
    """Train all stages, or those from the checkpoint on."""
    train, val = splits
    stages = run.stages()
    if checkpoint:
        names = [name for name, _, _ in stages]
        data.choose('--stage: the run to resume is in stage', checkpoint['stage'], names)
        stages = stages[names.index(checkpoint['stage']):]
    for name, epochs, _ in stages[:-1]:
        if epochs < 1:
            raise BadInput(f'--{name}-epochs {epochs}: the next stage starts from the best model '
                           'of this one, so it needs at least one epoch')
    for name, epochs, rate in stages:
        progress = Progress(stage=name)
        if name:
            run = dataclasses.replace(run, cfg=dataclasses.replace(run.cfg, stage=name))
            say(f'stage {name}: {epochs} epochs')
        stage = make_stage(run, train, epochs, rate)
        if checkpoint:
            progress = continue_stage(run, stage, checkpoint)
            checkpoint = None
        else:
            start_stage(run, stage.model, name, args.word2vec)
        train_stage(run, stage, progress, val, args)
        if process()[1] > 1:
            dist.barrier()                              # wait until process 0 has written best.pt


def join_processes(args):
    """Under torchrun: connect to the other processes."""
    if int(os.environ.get('WORLD_SIZE', 1)) == 1:
        return
    if args.device.startswith('cuda'):
        args.device = f'cuda:{os.environ["LOCAL_RANK"]}'
        torch.cuda.set_device(args.device)
    dist.init_process_group('cpu:gloo,cuda:nccl' if args.device.startswith('cuda') else 'gloo')


def train_run(run, splits, args, checkpoint):
    """Train in the folder of the run, which no other process uses."""
    rank, world = process()
    if rank == 0:
        log.repair(run, checkpoint['entry'] if checkpoint else {})
        log.write_head(run, args, world)
    say(log.columns(run))
    before = {}
    if world == 1:                                      # during training, Ctrl-C saves first
        before = {name: signal.signal(name, interrupt) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        train_all(run, splits, args, checkpoint)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        if rank == 0 and [path.name for path in run.path.iterdir()] == ['log.jsonl']:
            shutil.rmtree(run.path)                     # a start that failed leaves no folder


def main(argv):
    INTERRUPTS.clear()
    args, run, checkpoint = flags.parse(argv)
    java.check_java()                                   # now, not after the first epoch
    join_processes(args)
    run.device = args.device
    rank, world = process()
    for turn in range(world):                           # in turn: the first renders, others load
        if turn == rank:
            train, val = runs.open_training(run)
        if world > 1:
            dist.barrier()
    run.metric = run.metric or evaluate.main_metric(run, val)
    folder = [None]
    if rank == 0:
        folder = [run.path or flags.claim_folder(args, run)]
    if world > 1:
        dist.broadcast_object_list(folder)
    run.path = Path(folder[0])
    say(runs.summary(run, train, val))
    with machine.locked(run.path) if rank == 0 else contextlib.nullcontext():
        train_run(run, (train, val), args, checkpoint)
    if world > 1:
        dist.destroy_process_group()
    if rank > 0:
        os._exit(0)                 # the usual way out sometimes aborts in a destructor of torch
    if (run.path / 'best.pt').exists():
        try:
            run, model = checkpoints.load(run.path, run.dataset.root, run.device)
            evaluate.report([run], model, runs.open_split(run))
        except KeyboardInterrupt:
            print(f'\nstopped; the run is complete; to score it: '
                  f'python evaluate.py {run.path}{root_flag(run)}', file=sys.stderr)
            return 130


if __name__ == '__main__':
    runs.user_main(main)
