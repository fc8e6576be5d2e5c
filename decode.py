"""The one decoder loop: every paper generates its captions here.

A model provides two functions, and this file knows nothing else about it:

    encode(batch)              -> memory, state        one row per video. Memory stays fixed;
                                                       state changes with every word
    step(token, state, memory) -> logits, state, aux   token (B,), None before the first word;
                                                       logits (B, V); aux {name: (B, ...)}:
                                                       other outputs, such as attention

`memory` and `state` are trees: nested dicts, lists and tuples of tensors, each with the batch as
dim 0. The ways to decode differ only in where the next token comes from:

    teacher_force   the given words (with scheduled sampling, sometimes the model's own)
    sample          a draw from the model's distribution, for REINFORCE
    greedy          the most probable word
    beam            the K most probable captions so far

Captions of the same video read the same memory. A large tensor in it may be wrapped in Shared. Then
it is not copied for each caption, and one matrix product serves all captions of a video.

Letters: N videos, B captions or rows, K beams, T words, V vocabulary.
"""
import torch
import torch.nn.functional as F

from data import EOS, PAD


class Shared:
    """A tensor x (N, ...), one row per video, that B captions read without a copy for each of them.
    rows (B,) is the video of each caption. select() and the loops below change only rows."""

    def __init__(self, x, rows=None):
        self.x = x
        self.rows = torch.arange(len(x), device=x.device) if rows is None else rows

    def einsum(self, formula, weights):
        """What torch.einsum(formula, weights, x) would give if x had one row per caption. All three
        terms of the formula begin with b, as in 'bf,bfd->bd'; n and g must not occur in it."""
        left, right, result = formula.replace('->', ',').split(',')
        # Lay the captions out by video, (N, G): caption b is the slot[b]-th that reads its video.
        slot = (self.rows[:, None] == self.rows).tril(-1).sum(1)            # (B,)
        grouped = weights.new_zeros(len(self.x), int(slot.max()) + 1, *weights.shape[1:])
        grouped = grouped.index_put((self.rows, slot), weights)             # (N, G, ...)
        by_video = f'ng{left[1:]},n{right[1:]}->ng{result[1:]}'
        return torch.einsum(by_video, grouped, self.x)[self.rows, slot]     # (B, ...)


def tree_map(function, tree):
    """Apply function to every tensor of a tree, and to the rows of a Shared; None stays None."""
    if tree is None:
        return None
    if isinstance(tree, Shared):
        return Shared(tree.x, function(tree.rows))
    if isinstance(tree, dict):
        return {name: tree_map(function, branch) for name, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(function, branch) for branch in tree)
    return function(tree)


def select(tree, rows):
    """tree with dim 0 = N, rows (B,) -> tree with dim 0 = B: each caption gets its video's row."""
    return tree_map(lambda x: x.index_select(0, rows), tree)


def word_logp(logits):
    """logits (B, V) -> log-probabilities (B, V). This is the only place where <pad> is banned."""
    pad = torch.tensor(PAD, device=logits.device)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))    # bfloat16 is too coarse
    return logits.index_fill(1, pad, float('-inf')).log_softmax(1)


def teacher_force(model, memory, state, words, ss_prob=0.0):
    """words (B, T), padded with <pad> -> logp (B, T) of these words, aux {name: (B, T, ...)}.
    Both are exactly 0 where there is no word.

    ss_prob: scheduled sampling, the probability that the next input is a word that the model draws
    instead of the given word.

    Captions are sorted by length, longest first, so that each step computes only those that have
    a word left. The results are put back in the given order."""
    B, T = words.shape
    lengths = (words != PAD).sum(1)
    order = lengths.argsort(descending=True, stable=True)
    if not torch.equal(order, torch.arange(B, device=order.device)):
        memory, state, words = select((memory, state, words), order)
    with_word = lengths[:, None] > torch.arange(T, device=words.device)     # (B, T)
    token = None
    logps = []
    auxes = []
    for t, n in enumerate(with_word.sum(0).tolist()):                       # n captions have word t
        if n == 0:
            break
        if n < B:
            memory, state, token = first_rows((memory, state, token), n)
        logits, state, aux = model.step(token, state, memory)
        distribution = word_logp(logits)                                    # (n, V)
        token = words[:n, t]
        logps.append(distribution.gather(1, token[:, None])[:, 0])
        auxes.append(aux)
        if ss_prob > 0:
            token = mix_in_own_words(token, distribution.detach(), ss_prob)
    back = order.argsort()
    aux = {name: stack_steps([aux[name] for aux in auxes], T, back) for name in auxes[0]}
    return stack_steps(logps, T, back), aux


def first_rows(tree, n):
    """The first n rows of every tensor"""
    return tree_map(lambda x: x[:n], tree)


def mix_in_own_words(token, distribution, ss_prob):
    """token (n,), log-probabilities (n, V) -> token (n,), some replaced by a draw"""
    replaced = torch.rand(len(token), device=token.device) < ss_prob
    rows = replaced.nonzero()[:, 0]
    if len(rows) == 0:
        return token
    # Only the replaced rows draw a word, because a draw costs as much as a softmax.
    own = distribution[rows].exp().multinomial(1)[:, 0]
    return token.index_copy(0, rows, own)


def stack_steps(steps, T, back):
    """steps: at most T tensors (n, ...), whose number of rows n never grows; back (B,)
    -> (B, T, ...), filled up with zeros, with its rows in the order `back`"""
    B = len(back)
    columns = [F.pad(x, [0, 0] * (x.dim() - 1) + [0, B - len(x)]) for x in steps]
    columns += [torch.zeros_like(columns[0])] * (T - len(columns))
    return torch.stack(columns, 1).index_select(0, back)


def generate(model, memory, state, max_len, pick):
    """Generate one caption per row. pick chooses a word: log-probabilities (B, V) -> token (B,).

    Returns words (B, T) and their log-probabilities (B, T), which are differentiable. T is at most
    max_len + 1: as in training, <eos> may follow max_len words. After <eos> the words are <pad> and
    the log-probabilities 0. A caption that has not reached <eos> by then is cut off."""
    token = None
    finished = None
    words = []
    logps = []
    for _ in range(max_len + 1):
        logits, state, _ = model.step(token, state, memory)
        distribution = word_logp(logits)
        token = pick(distribution.detach())
        logp = distribution.gather(1, token[:, None])[:, 0]
        if finished is not None:
            token = token.masked_fill(finished, PAD)
            logp = logp.masked_fill(finished, 0.0)
        words.append(token)
        logps.append(logp)
        finished = (token == EOS) | (token == PAD)
        if finished.all():
            break
    return torch.stack(words, 1), torch.stack(logps, 1)


def sample(model, memory, state, max_len):
    """Draw one caption per row -> words (B, T), logp (B, T). Words and log-probabilities come from
    the same pass. So, even with dropout, the gradient is that of the distribution from which the
    words were drawn."""
    return generate(model, memory, state, max_len, lambda logp: logp.exp().multinomial(1)[:, 0])


@torch.no_grad()
def greedy(model, memory, state, max_len):
    """The most probable word at every step -> words (B, T), logp (B, T)"""
    return generate(model, memory, state, max_len, lambda logp: logp.argmax(1))


@torch.no_grad()
def beam(model, memory, state, max_len, K, *, length_penalty=0.0):
    """Beam search for all N rows at once -> words (N, T), score (N,): the sum of the words'
    log-probabilities.

    At the end captions are ranked by score / length ** length_penalty (0: by the score alone). An
    unfinished caption is returned only if no beam has finished."""
    leaves = []
    tree_map(leaves.append, state)                      # only to find N and the device
    N = len(leaves[0])
    device = leaves[0].device
    rows = torch.arange(N, device=device)
    memory, state = select((memory, state), rows.repeat_interleave(K))
    score = torch.full((N, K), float('-inf'), device=device)
    score[:, 0] = 0                                     # at first all beams are equal: use only one
    done = torch.zeros(N, K, dtype=torch.bool, device=device)
    words = torch.empty(N, K, 0, dtype=torch.long, device=device)
    for t in range(max_len + 1):                        # as in generate()
        token = words[:, :, -1].flatten() if t else None
        logits, state, _ = model.step(token, state, memory)
        logp = word_logp(logits).view(N, K, -1)
        V = logp.shape[2]
        # A finished caption grows only by <pad>, which leaves its score as it is.
        free_pad = torch.full((V,), float('-inf'), device=device)
        free_pad[PAD] = 0
        logp = torch.where(done[..., None], free_pad, logp)
        score, best = (score[..., None] + logp).view(N, K * V).topk(K)      # (N, K)
        parent = best // V
        token = best % V
        # Only the state is reordered: the memory is the same for all beams of a video.
        state = select(state, (rows[:, None] * K + parent).flatten())
        kept = words.gather(1, parent[..., None].expand(-1, -1, t))
        words = torch.cat([kept, token[..., None]], 2)
        done = done.gather(1, parent) | (token == EOS)
        # Scores never rise. So if the best beam has finished, no other can overtake it, except
        # through the length penalty.
        if done.all() or (length_penalty == 0 and done[:, 0].all()):
            break
    ranking = score / (words != PAD).sum(2) ** length_penalty               # (N, K)
    unfinished = ~done & done.any(1, keepdim=True)
    best = ranking.masked_fill(unfinished, float('-inf')).argmax(1)
    return words[rows, best], score[rows, best]


class Ensemble:
    """Several models that generate one caption from the average of their probabilities. It has the
    same two functions as a single model, so the loops above work with it unchanged."""

    def __init__(self, models):
        self.models = models

    def encode(self, batch):
        """-> memory, state: lists with one tree per model"""
        encoded = [model.encode(batch) for model in self.models]
        return [memory for memory, _ in encoded], [state for _, state in encoded]

    def step(self, token, state, memory):
        """-> logits (B, V): the log of the summed probabilities, which word_logp turns into the log
        of their mean; one state per model; aux of the first model"""
        logps = []
        states = []
        auxes = []
        for model, one_state, one_memory in zip(self.models, state, memory):
            logits, new_state, aux = model.step(token, one_state, one_memory)
            logps.append(word_logp(logits))
            states.append(new_state)
            auxes.append(aux)
        return torch.stack(logps).logsumexp(0), states, auxes[0]
