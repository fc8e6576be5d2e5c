"""The one decoder loop: every paper says its words through here.

A model offers two functions, and this file knows nothing else of it:

    encode(batch)              -> memory, state        one row per video; memory stays, state changes with every word
    step(token, state, memory) -> logits, state, aux   token (B,), None before the first word; logits (B, V); aux {name: (B, ...)}

`memory` and `state` are trees: tensors in nested dicts, lists and tuples, each with the batch as dim 0. The ways to decode
differ only in where the next token comes from:

    teacher_force   the given words (or, with scheduled sampling, now and then the model's own)
    sample          a draw from the model's distribution: REINFORCE
    greedy          the most probable word
    beam            the K most probable captions so far

Letters: N videos, B captions or rows, K beams, T words, V vocabulary.
"""
import torch
import torch.nn.functional as F

from data import EOS, PAD


def tree_map(function, tree):
    """Apply function to every tensor of a tree; None stays None."""
    if isinstance(tree, dict):
        return {name: tree_map(function, branch) for name, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, branch) for branch in tree)
    return None if tree is None else function(tree)


def select(tree, rows):
    """tree with dim 0 = N, rows (B,) -> the tree with dim 0 = B: each caption gets the rows of its video."""
    return tree_map(lambda x: x.index_select(0, rows), tree)


def word_logp(logits):
    """logits (B, V) -> log-probabilities (B, V). The only place where <pad> is banned."""
    return logits.index_fill(1, torch.tensor(PAD, device=logits.device), float('-inf')).log_softmax(1)


def teacher_force(model, memory, state, words, ss_prob=0.0):
    """words (B, T), padded with <pad> -> logp (B, T) of these words, aux: dict of (B, T, ...); both 0 where no word is.

    ss_prob: scheduled sampling, the chance that a step reads a draw from the model in place of the given word.
    Rows are ordered by length, so that a step runs on those that still speak, and put back at the end."""
    (B, T), lengths = words.shape, (words != PAD).sum(1)
    order = lengths.argsort(descending=True, stable=True)
    if not torch.equal(order, torch.arange(B, device=order.device)):
        memory, state, words = select((memory, state, words), order)
    token, logps, auxes = None, [], []
    for t, n in enumerate((lengths[:, None] > torch.arange(T, device=words.device)).sum(0).tolist()):
        if n == 0:
            break
        if n < B:
            memory, state, token = tree_map(lambda x: x[:n], (memory, state, token))
        logits, state, aux = model.step(token, state, memory)
        distribution, token = word_logp(logits), words[:n, t]
        logps.append(distribution.gather(1, token[:, None])[:, 0])
        auxes.append(aux)
        swap = (torch.rand(n, device=token.device) < ss_prob).nonzero()[:, 0] if ss_prob > 0 else ()
        if len(swap):                                       # only these rows are drawn: a draw costs as much as a softmax
            own = distribution[swap].detach().exp().multinomial(1)[:, 0]
            token = token.index_copy(0, swap, own)

    def put_back(steps):                                    # a tensor (n, ...) per step -> (B, T, ...) in the given order
        rows = [F.pad(x, [0, 0] * (x.dim() - 1) + [0, B - len(x)]) for x in steps]
        rows += [torch.zeros_like(rows[0])] * (T - len(rows))
        return torch.stack(rows, 1).index_select(0, order.argsort())

    return put_back(logps), {name: put_back([aux[name] for aux in auxes]) for name in auxes[0]}


def speak(model, memory, state, max_len, choose):
    """choose: log-probabilities (B, V) -> token (B,). Returns words (B, T <= max_len) and their logp (B, T), which is
    differentiable; <eos> is a word, after it all is <pad> and 0. A caption of max_len words has no <eos>."""
    token, words, logps, silent = None, [], [], None
    for _ in range(max_len):
        logits, state, _ = model.step(token, state, memory)
        distribution = word_logp(logits)
        token = choose(distribution.detach())
        logp = distribution.gather(1, token[:, None])[:, 0]
        if silent is not None:
            token, logp = token.masked_fill(silent, PAD), logp.masked_fill(silent, 0.0)
        words.append(token)
        logps.append(logp)
        silent = (token == EOS) | (token == PAD)
        if silent.all():
            break
    return torch.stack(words, 1), torch.stack(logps, 1)


def sample(model, memory, state, max_len):
    """Draw one caption per row -> words (B, T), logp (B, T). Words and log-probabilities come from the same pass, so
    that under dropout the gradient belongs to the very distribution that was drawn from."""
    return speak(model, memory, state, max_len, lambda logp: logp.exp().multinomial(1)[:, 0])


@torch.no_grad()
def greedy(model, memory, state, max_len):
    """The most probable word at every step -> words (B, T), logp (B, T)."""
    return speak(model, memory, state, max_len, lambda logp: logp.argmax(1))


@torch.no_grad()
def beam(model, memory, state, max_len, K, length_penalty=0.0):
    """Beam search over all N rows at once -> words (N, T), score (N,): the sum of the words' log-probabilities.

    Hypotheses are ranked by score / length ** length_penalty at the end (0: by the score alone). The best unfinished one is
    returned only where none has finished."""
    tensors = []
    tree_map(tensors.append, state)
    N, rows = len(tensors[0]), torch.arange(len(tensors[0]), device=tensors[0].device)
    memory, state = select((memory, state), rows.repeat_interleave(K))
    score = torch.full((N, K), float('-inf'), device=rows.device)
    score[:, 0] = 0                                         # K equal beams at the start: only one may speak
    done = torch.zeros(N, K, dtype=torch.bool, device=rows.device)
    words = torch.empty(N, K, 0, dtype=torch.long, device=rows.device)
    for t in range(max_len):
        token = words[:, :, -1].flatten() if t else None
        logits, state, _ = model.step(token, state, memory)
        logp = word_logp(logits).view(N, K, -1)
        V = logp.shape[2]
        free_pad = torch.full((V,), float('-inf'), device=rows.device)
        free_pad[PAD] = 0                                   # a finished caption only grows by <pad>, at no cost
        logp = torch.where(done[..., None], free_pad, logp)
        score, best = (score[..., None] + logp).view(N, K * V).topk(K)      # (N, K)
        parent, token = best // V, best % V
        state = select(state, (rows[:, None] * K + parent).flatten())       # memory rows are the same for all beams
        words = torch.cat([words.gather(1, parent[..., None].expand(-1, -1, t)), token[..., None]], 2)
        done = done.gather(1, parent) | (token == EOS)
        if done.all() or (length_penalty == 0 and done[:, 0].all()):        # log-probabilities only fall: nothing can overtake
            break
    length = (words != PAD).sum(2)
    rank = (score / length ** length_penalty).masked_fill(~done & done.any(1, keepdim=True), float('-inf'))
    best = rank.argmax(1)
    return words[rows, best], score[rows, best]


class Ensemble:
    """Several models that speak with one voice: the average of their probabilities. To the loops it is one more model."""

    def __init__(self, models):
        self.models = models

    def encode(self, batch):
        """-> memory, state: lists with one tree per model"""
        memories, states = zip(*(model.encode(batch) for model in self.models))
        return list(memories), list(states)

    def step(self, token, state, memory):
        """-> logits (B, V): log of the summed probabilities, which word_logp makes the mean's; states; aux of the first model"""
        logits, states, auxes = zip(*(m.step(token, s, x) for m, s, x in zip(self.models, state, memory)))
        return torch.stack([word_logp(x) for x in logits]).logsumexp(0), list(states), auxes[0]
