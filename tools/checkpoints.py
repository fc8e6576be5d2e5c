"""Checkpoints: read what train.py saved, and refuse what it cannot have written."""
import dataclasses
import zipfile
from pathlib import Path

import torch

import data
from data import BadInput
from tools import datasets, machine
from tools.runs import FORMAT, Paper, Progress, Run, Training, papers

NONE = type(None)


def read_checkpoint(path):
    """A .pt file, or a run's folder (its best.pt) -> the dict that train.py saved"""
    path = Path(path)
    if path.is_dir():
        path = path / 'best.pt'
    if not path.is_file():
        raise BadInput(f'{path}: there is no such checkpoint; a run is a folder that train.py made')
    with data.reading(path, 'not a checkpoint of train.py, or damaged'):
        with zipfile.ZipFile(path) as archive:          # torch itself overlooks a changed byte
            stored = all(one.compress_type == zipfile.ZIP_STORED for one in archive.infolist())
            if not stored or archive.testzip():
                raise ValueError('the zip file is damaged')
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        if checkpoint.get('format') != FORMAT:
            raise ValueError('this version of train.py did not write it; train it again')
        model = checkpoint['model']
        if model not in papers():                       # never import what a checkpoint names
            raise ValueError(f'a run of {model}, but there is no {model}.py beside train.py')
    return checkpoint


def fits(value, form):
    """form: a type, or object for any; (form, other form, ...); [form of each item]; {name: form};
    {str: form of each value}; or a tensor, for one of the same shape that holds numbers of the
    same kind: weights that come with the project are in half precision"""
    if isinstance(form, torch.Tensor):
        return isinstance(value, torch.Tensor) and value.layout == torch.strided and (
            value.shape == form.shape and not value.is_complex()
            and value.is_floating_point() == form.is_floating_point())
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, list):
        return type(value) in (list, tuple) and all(fits(item, form[0]) for item in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            type(name) is str and fits(item, form[str]) for name, item in value.items())
    return type(value) is form or form is object


def check_forms(values, forms):
    """Refuse values that are missing, unknown or of another form. forms: {name: form}"""
    if not isinstance(values, dict):
        raise BadInput(f'found a {type(values).__name__} instead of a dict')
    for name in [*forms, *values]:
        if name not in forms or name not in values or not fits(values[name], forms[name]):
            raise BadInput(f'{str(name)[:60]!r} is missing, unknown, or of another type or size')


def forms_of(kind, **others):
    """A dataclass -> {field: type of its default}. others: {field: its form, if it has another}"""
    forms = {one.name: type(one.default) for one in dataclasses.fields(kind)}
    return {name: {float: (float, int), NONE: object}.get(form, form)
            for name, form in forms.items()} | others


def checked(kind, values, **others):
    """values {field: value} -> the dataclass made of them. others: as in forms_of()"""
    check_forms(values, forms_of(kind, **others))
    return kind(**values)


def restore(checkpoint, path, root, device='cpu'):
    """checkpoint: dict that train.py saved -> Run. Whatever train.py cannot have written is refused
    before it is used, and the weights before the model takes memory."""
    from tools import flags                             # which imports this file
    try:
        paper = Paper(checkpoint['model'])
        # A run of an older version may lack a setting of Training.
        training = dataclasses.asdict(Training()) | checkpoint['training']
        forms = forms_of(Training) | forms_of(paper.Config)
        check_forms(training, forms_of(Training))
        check_forms(checkpoint['config'], forms_of(paper.Config))
        check_forms(checkpoint['given'], {name: forms[name] for name in checkpoint['given']})
        cfg, training = flags.settings(paper, training | checkpoint['config'])
        dataset = checked(datasets.Dataset, {**checkpoint['dataset'], 'root': str(root)},
                          limit=(int, NONE))
        data.choose('--dataset', dataset.name, datasets.NAMES)
        data.choose('--split-scheme', dataset.scheme, datasets.schemes(dataset.name))
        sizes = checked(data.Sizes, checkpoint['sizes'], feats={str: [int]})
        others = {'metric': str, 'encoders': {str: dict}, 'seed': int, 'vocab': ([str], NONE)}
        check_forms({name: checkpoint[name] for name in others}, others)
        progress = {one.name: checkpoint[one.name] for one in dataclasses.fields(Progress)}
        progress = checked(Progress, progress, sums={str: (float, int)},
                           entry={str: (float, int, str)})
        counts = (progress.epoch, progress.batch, progress.best_epoch)
        if min(counts) < 0 or progress.batch and 'loss' not in progress.sums:
            raise BadInput('a count, or the loss so far, is missing or out of range')
        flags.check_number('seed', checkpoint['seed'])
        flags.check_number('limit', dataset.limit)
        words = checkpoint['vocab'] or []
        if len(words) != sizes.vocab:
            raise BadInput(f'the vocabulary of {len(words)} words is not the one of the weights')
        run = Run(paper, cfg, training, dataset, sizes, path=Path(path), device=device,
                  vocabulary=data.Vocabulary(words) if words else None,
                  **{name: checkpoint[name] for name in ('encoders', 'given', 'seed', 'metric')})
        check_weights(run.outline(), checkpoint['state_dict'])
    except Exception as error:                          # a damaged value can raise any error
        raise BadInput(f'{path} is damaged, or does not fit {checkpoint["model"]}.py as it is now: '
                       f'{str(error)[:300]}') from None
    return run


def check_weights(model, weights):
    """Refuse weights of other names, sizes or types, and weights that are not numbers."""
    check_forms(weights, model.state_dict())
    for name, _ in model.named_parameters():
        if not weights[name].isfinite().all():
            raise BadInput(f'the weights {name!r} contain NaN or infinite numbers')


def check_optimizer(state, parameters, kept):
    """Refuse what an optimizer cannot have stored. state: {number of a parameter: what is stored
    for it}; kept: the names of what the optimizer stores"""
    for number, found in state.items():
        forms = dict.fromkeys(kept, parameters[number].detach())
        check_forms(found, forms | {'step': torch.tensor(0.0)})


def load(path, root='data', device='cpu'):
    """A run's folder or one of its .pt files -> Run, model in eval mode"""
    checkpoint = read_checkpoint(path)
    run = restore(checkpoint, path, root, device)
    model = run.build()
    model.load_state_dict(checkpoint['state_dict'])
    return run, model.eval()


def load_all(args):
    """-> [(run, model)], all of the same dataset, with the beam and step that the flags give"""
    machine.set_up(args.device, args.threads)
    if args.beam is not None and not 1 <= args.beam <= 100:
        raise BadInput(f'--beam {args.beam}: the beam width must be from 1 to 100')
    if args.length_penalty is not None and not 0 <= args.length_penalty <= 10:
        raise BadInput(f'--length-penalty {args.length_penalty}: must be a number from 0 to 10')
    loaded = [load(path, args.root, args.device) for path in args.runs]
    first = loaded[0][0]
    for run, model in loaded:
        if run.dataset != first.dataset:
            raise BadInput(f'{run.path} was trained on {run.dataset.name}, {first.path} on '
                           f'{first.dataset.name}, or with another split or --limit: use one alone')
        run.training.beam = args.beam or run.training.beam
        if args.length_penalty is not None:
            run.training.length_penalty = args.length_penalty
        if args.step and 'step' not in run.paper.fields():
            raise BadInput(f'--step {args.step}: {run.path} is not a run of vre')
        if args.step:
            run.cfg = model.cfg = dataclasses.replace(run.cfg, step=args.step)
    return loaded
