"""Captions and scores of a run, computed once and stored in its folder."""
import dataclasses
import hashlib
import json
from pathlib import Path

import evaluate
from tools import java, machine, runs


def fingerprint(run, corpus):
    """-> text that changes whenever the checkpoint, the settings, the features or the references
    change"""
    files = [Path(features.path) for features in corpus.features.values()]
    times = [file.stat().st_mtime for file in files if file.exists()]
    settings = [dataclasses.asdict(run.cfg), run.search, corpus.split, corpus.captions, times]
    digest = hashlib.sha256(run.file.read_bytes())
    digest.update(json.dumps(settings).encode())
    return digest.hexdigest()


def captions_path(several, split):
    """Where the captions and scores of a run, or of an ensemble, are stored"""
    name = 'captions' if len(several) == 1 else 'ensemble'
    return runs.output(several[0], name, '.json' if split == 'test' else f'-{split}.json')


def full_scores(run, model, corpus):
    """What evaluate.evaluate() returns, with the run's beam and METEOR. The captions and scores are
    stored in the run's folder, and used again until something changes: see fingerprint()."""
    if run.recognises:
        return evaluate.evaluate(run, model, corpus)
    path = captions_path([run], corpus.split)
    key = fingerprint(run, corpus)
    try:
        stored = json.loads(path.read_text())
        if stored['key'] == key:
            captions = {i: row['caption'] for i, row in stored['videos'].items()}
            return stored['scores'], captions, {i: row['scores']
                                                for i, row in stored['videos'].items()}
    except (OSError, ValueError, KeyError, TypeError):
        pass                                            # not scored yet, or by another version
    java.check_java()
    found = evaluate.evaluate(run, model, corpus, run.training.beam, quick=False)
    write_scores(path, [run], corpus, found, key)
    return found


def write_scores(path, several, corpus, found, key=None):
    """found: what evaluate() returned -> the file path, with everything about each video"""
    scores, said, each = found
    rows = {}
    for i, one in said.items():
        if several[0].recognises:
            rows[i] = {'labels': [corpus.classes[c] for c in corpus.labels[i]],
                       'class': corpus.classes[one.argmax()],
                       'probability': round(float(one.max()), 4)}
        else:
            rows[i] = {'caption': one, 'references': corpus.captions[i], 'scores': each[i]}
    content = {'runs': [str(run.path) for run in several], 'split': corpus.split,
               'beam': several[0].training.beam,
               'length_penalty': several[0].training.length_penalty, 'key': key,
               'scores': scores, 'videos': rows}
    with machine.replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1))
