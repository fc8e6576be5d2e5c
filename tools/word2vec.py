"""Pretrained word vectors, in Google's binary format or as text, for the words of a vocabulary."""
import os

import numpy as np
import torch

from data import BadInput


def read_binary(path):
    """A .bin file: a line "count width", then for each word the word, a space and float32 numbers.
    Yields (place for error messages, word, numbers)."""
    with open(path, 'rb') as file:
        try:
            count, width = map(int, file.readline(100).split())
        except ValueError:
            count = width = 0
        if count < 1 or not 1 <= width <= os.path.getsize(path) // 4:
            raise BadInput(f'{path}: a .bin file must begin with a line "words numbers", such as '
                           '"3000000 300"; name the file .txt if it is text')
        for i in range(1, count + 1):
            word = bytearray()
            while (byte := file.read(1)) not in (b' ', b''):
                word += byte
            numbers = file.read(4 * width)
            if len(numbers) < 4 * width:
                raise BadInput(f'{path}: the file ends inside word {i} of {count}')
            word = word.decode('utf-8', 'replace').lstrip('\n')
            yield f'word {i}', word, np.frombuffer(numbers, dtype='<f4').tolist()
        if file.read(2).strip():
            raise BadInput(f'{path}: there is more in it than the {count} words of its first line')


def read_text(path):
    """A text file: one word per line, followed by its numbers. A first line "count width" is
    skipped. Yields the same as read_binary."""
    with open(path, encoding='utf-8') as file:
        for i, line in enumerate(file, 1):
            try:
                word, *numbers = line.split()
                numbers = [float(number) for number in numbers]
            except ValueError:
                raise BadInput(f'{path}, line {i}: expected a word and numbers, '
                               f'found {line[:60]!r}') from None
            if i > 1 or len(numbers) > 1:
                yield f'line {i}', word, numbers


def fill_embedding(embedding, path, vocabulary):
    """Start an nn.Embedding from the vectors of a file -> number of words that the file contains"""
    found = set()
    size = embedding.embedding_dim
    read = read_binary if str(path).endswith('.bin') else read_text
    try:
        for place, word, numbers in read(path):
            if len(numbers) != size:
                raise BadInput(f'{path}, {place}: {len(numbers)} numbers, but the embedding has '
                               f'{size}; use --embed {len(numbers)}')
            if word in vocabulary.index:
                vector = torch.tensor(numbers)
                if not vector.isfinite().all():
                    raise BadInput(f'{path}, {place}: the vector of {word!r} is not finite')
                embedding.weight.data[vocabulary.index[word]] = vector
                found.add(word)
    except UnicodeDecodeError:
        raise BadInput(f'{path}: not UTF-8 text; unpack it if it is packed, and give it a name '
                       "that ends with .bin if it is in Google's binary format") from None
    except OSError as error:
        raise BadInput(f'{path}: cannot be read ({error.strerror})') from None
    return len(found)
