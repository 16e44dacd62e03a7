"""A chain tagger with a certificate: tags for words, on sentences drawn from a hidden Markov model.

    python scripts/chain_tagger.py [--sentences 2000] [--tags 6] [--words 100] [--lambda 0.01] [--tolerance 0.01]

How to write a task of your own (`ooc_pegasos.training.structured`), by this example:

1. What is an input x, what is an output y? Here both are arrays of small integers, one a word; anything will do.
2. `features(x, y)`: which numbers, linear in the weights, make the score of an output? Number them from 0. Here each
   (tag, word) and each (tag, next tag) counts 1, so an output touches two features a word. Indices may repeat.
3. cost(y, y'): what does it cost to say y' where y is right? It is 0 for y itself. Here it is the number of wrong tags.
4. `most_violating(weights, x, y)`: the y' with the largest cost + score. If the cost is a sum over the same parts as
   the score, this is `best` with some scores raised; here each wrong tag gets 1 more. It has to be the largest, or the
   objective is measured too low; what can be checked of that at little cost is checked.
5. `best(weights, x)`: the y with the largest score, by dynamic programming, sorting, matching, or trying all.
6. `examples[i]` is a pair (x, y). A list will do; so will an object with `__len__` and `__getitem__` that reads from
   disk, since pairs are asked for one by one and not kept.

Prints the certified gap and the share of wrong tags, beside two rulers: the most frequent tag of each word, which
knows nothing of order, and the tags that are likeliest by the very model the sentences were drawn from, which nobody
can do better than.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_pegasos.training.structured import StructuredConfig, train_structured

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ChainTask:
    """Scores of tags: one for each (tag, word), one for each (tag, next tag)."""

    tags: int
    words: int

    @property
    def n_features(self) -> int:
        """Return the number of weights: one a (tag, word), then one a (tag, next tag)."""
        return self.tags * (self.words + self.tags)

    def features(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features that occur, each counted as often as it occurs."""
        emissions = y * self.words + x
        transitions = self.tags * self.words + y[:-1] * self.tags + y[1:]
        indices = np.concatenate([emissions, transitions])
        return indices, np.ones(len(indices))

    def tables(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights as (tag, word) and (tag, next tag)."""
        cut = self.tags * self.words
        return weights[:cut].reshape(self.tags, self.words), weights[cut:].reshape(self.tags, self.tags)

    def most_violating(self, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the tags with the largest number of wrong tags plus score, and their number of wrong tags."""
        emission, transition = self.tables(weights)
        places = emission.T[x] + 1.0
        places[np.arange(len(x)), y] -= 1.0
        y_hat = viterbi(places, transition)
        return y_hat, float((y_hat != y).sum())

    def best(self, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the tags with the largest score."""
        emission, transition = self.tables(weights)
        return viterbi(emission.T[x], transition)


def viterbi(places: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """Return the path with the largest sum of `places[position, tag]` and `transition[tag, next tag]`."""
    length, tags = places.shape
    came_from = np.empty((length, tags), np.int64)
    reached = places[0]
    for position in range(1, length):
        ways = reached[:, None] + transition
        came_from[position] = ways.argmax(axis=0)
        reached = ways.max(axis=0) + places[position]
    path = np.empty(length, np.int64)
    path[-1] = reached.argmax()
    for position in range(length - 1, 0, -1):
        path[position - 1] = came_from[position, path[position]]
    return path


@dataclass(frozen=True)
class HiddenMarkov:
    """Distribution of the sentences: probabilities of the first tag, of the next tag, and of words."""

    first: np.ndarray
    following: np.ndarray
    emission: np.ndarray

    @classmethod
    def make(cls, tags: int, words: int, rng: np.random.Generator) -> HiddenMarkov:
        """Draw a model with a few likely successors for each tag, and words that several tags share."""
        following = rng.dirichlet(np.full(tags, 0.15), tags)
        return cls(np.full(tags, 1 / tags), following, rng.dirichlet(np.full(words, 0.05), tags))

    def sentence(self, rng: np.random.Generator) -> Pair:
        """Draw (words, tags), 5 to 15 of them."""
        tags = [int(rng.choice(len(self.first), p=self.first))]
        for _ in range(int(rng.integers(4, 15))):
            tags.append(int(rng.choice(len(self.first), p=self.following[tags[-1]])))
        words = [rng.choice(self.emission.shape[1], p=self.emission[tag]) for tag in tags]
        return np.array(words), np.array(tags)

    def likeliest(self, x: np.ndarray) -> np.ndarray:
        """Return the most probable tag of each word given the sentence, by the forward-backward algorithm."""
        seen = self.emission.T[x]
        forward, backward = np.empty_like(seen), np.ones_like(seen)
        forward[0] = self.first * seen[0]
        for position in range(1, len(x)):
            reached = forward[position - 1] / forward[position - 1].sum()
            forward[position] = reached @ self.following * seen[position]
        for position in range(len(x) - 2, -1, -1):
            left = self.following @ (seen[position + 1] * backward[position + 1])
            backward[position] = left / left.sum()
        return (forward * backward).argmax(axis=1)


def most_frequent(sentences: list[Pair], tags: int, words: int) -> np.ndarray:
    """Return for each word its most frequent tag; for an unknown word, the most frequent tag of all."""
    counts = np.zeros((words, tags))
    for x, y in sentences:
        np.add.at(counts, (x, y), 1)
    counts += counts.sum(axis=0) / (counts.sum() + 1)  # less than 1, so that only ties are affected
    return counts.argmax(axis=1)


def error(tagger: Callable[[np.ndarray], np.ndarray], sentences: list[Pair]) -> float:
    """Return the share of wrong tags."""
    wrong = sum(int((tagger(x) != y).sum()) for x, y in sentences)
    return wrong / sum(len(y) for _, y in sentences)


def main() -> int:
    """Draw sentences, train, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=2000, help="to train on; half as many again to test")
    parser.add_argument("--tags", type=int, default=6)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--lambda", dest="lam", type=float, default=0.01)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--max-epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    rng = np.random.default_rng(given.seed)
    source = HiddenMarkov.make(given.tags, given.words, rng)
    training = [source.sentence(rng) for _ in range(given.sentences)]
    test = [source.sentence(rng) for _ in range(given.sentences // 2)]

    task = ChainTask(given.tags, given.words)
    config = StructuredConfig(given.lam, given.tolerance, given.max_epochs, given.seed)
    result = train_structured(task, training, task.n_features, config)

    print(f"{len(training)} sentences, {given.tags} tags, {given.words} words, {task.n_features} features")
    print(f"objective {result.primal:.5f}, lower bound {result.lower_bound:.5f}, epochs {result.history.num_rows}")
    print(f"certified gap {100 * result.gap:.2f} %{'' if result.converged else ', not within the tolerance'}")
    majority = most_frequent(training, given.tags, given.words)
    taggers = {
        "this tagger": lambda x: task.best(result.weights, x),
        "most frequent tag of each word": lambda x: majority[x],
        "likeliest tags by the true model": source.likeliest,
    }
    print(f"{'wrong tags':34}training      test")
    for name, tagger in taggers.items():
        print(f"{name:34}{100 * error(tagger, training):6.2f} %  {100 * error(tagger, test):6.2f} %")
    return 0 if result.converged else 4


if __name__ == "__main__":
    sys.exit(main())
