"""Speed and accuracy of linear probes, against scikit-learn's LogisticRegression in a loop.

    python -m benchmarks.probing [--probes 200] [--rounds 5] [--sample 4]

4,096 rows of 128 features, 16 classes, in two readings: many label sets on one feature matrix,
and as many feature matrices with a label set each. Everything runs in this process, turn by turn;
scikit-learn fits only a sample of the probes in a round, another one each time, and its time is
scaled up. It runs with its defaults and with one thread, which at this size is the faster; ours
run with all threads. Accuracy is on 4,096 further rows; differences are over the sampled probes.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.timing import interleaved, machine, milliseconds, ratio
from probes.linear import LinearProbes, RidgeStatistics
from probes.logistic import fit_logistic

ROWS, HELD_OUT, FEATURES, CLASSES = 4096, 4096, 128, 16

PENALTY = 1 / ROWS
"""scikit-learn's default `C = 1` for features of unit variance; the closed forms use it too."""


@dataclass(frozen=True)
class Data:
    """Rows to fit on, then as many held out.

    Attributes:
        features: `[site, rows, features]`.
        labels: `[site, target, rows]`; either one site or one target.
    """

    features: Tensor
    labels: Tensor

    def fitted_on(self) -> tuple[Tensor, Tensor]:
        """Features and labels."""
        return self.features[:, :ROWS], self.labels[..., :ROWS]

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Features and labels."""
        return self.features[:, ROWS:], self.labels[..., ROWS:]


def draw(sites: int, targets: int, features: int = FEATURES, spread: float = 0.0) -> Data:
    """Normal features of mean variance 1, and labels drawn from a softmax of linear scores.

    Args:
        spread: the deviation along the k-th direction goes as `k ** -spread`.
    """
    generator = torch.Generator().manual_seed(0)
    deviation = torch.arange(1, features + 1) ** -spread
    deviation = deviation / deviation.square().mean().sqrt()
    turn = torch.linalg.qr(torch.randn(features, features, generator=generator))[0]
    X = torch.randn(sites, ROWS + HELD_OUT, features, generator=generator)
    labels = torch.empty(sites, targets, ROWS + HELD_OUT, dtype=torch.int64)
    for site in range(sites):
        for target in range(targets):
            weight = torch.randn(features, CLASSES, generator=generator)
            scores = X[site] @ weight * 3 / features**0.5
            uniform = torch.rand(scores.shape, generator=generator)
            labels[site, target] = (scores - (-uniform.log()).log()).argmax(-1)
        X[site] = X[site] * deviation @ turn
    return Data(X, labels)


def ridge(data: Data) -> LinearProbes:
    """One pass over the rows, one eigendecomposition a site, one penalty."""
    return _statistics(data).path().ridge(PENALTY)


def ridge_path(data: Data) -> list[LinearProbes]:
    """The same for ten penalties."""
    path = _statistics(data).path()
    return [path.ridge(PENALTY * 10 ** (step / 2)) for step in range(10)]


def discriminant(data: Data) -> LinearProbes:
    """From the same factorisation."""
    return _statistics(data).path().discriminant(PENALTY)


def logistic(data: Data) -> LinearProbes:
    """To the tolerance that is the default."""
    X, labels = data.fitted_on()
    return fit_logistic(X, labels, CLASSES, penalty=PENALTY).probes


OURS: dict[str, Callable[[Data], object]] = {
    "ridge": ridge,
    "ridge, 10 penalties": ridge_path,
    "discriminant": discriminant,
    "logistic": logistic,
}


def _statistics(data: Data) -> RidgeStatistics:
    X, labels = data.fitted_on()
    gathered = RidgeStatistics([CLASSES] * labels.shape[1])
    gathered.add(X, labels)
    return gathered


@dataclass(frozen=True)
class Peer:
    """scikit-learn's defaults on a sample of the probes, another one at every call.

    Attributes:
        threads: of its BLAS and OpenMP; None leaves them as they are.
        accuracy: held out, by probe number; filled in by the calls.
        iterations: by probe number.
    """

    data: Data
    sample: int
    threads: int | None
    accuracy: dict[int, float]
    iterations: dict[int, int]

    def __call__(self) -> None:
        """Fit the sample and score it, which takes about 1% of the time."""
        sites, targets, _ = self.data.labels.shape
        X, labels = self.data.fitted_on()
        test_X, test_labels = self.data.held_out()
        begin = len(self.accuracy)
        for number in range(begin, begin + self.sample):
            site, target = divmod(number % (sites * targets), targets)
            with threadpool_limits(self.threads):
                peer = LogisticRegression().fit(X[site].numpy(), labels[site, target].numpy())
            self.iterations[number] = int(peer.n_iter_.max())
            self.accuracy[number] = peer.score(
                test_X[site].numpy(), test_labels[site, target].numpy()
            )


def against_the_loop(name: str, data: Data, rounds: int, sample: int) -> None:
    """One table: times, ratios, and what the accuracies differ by."""
    peer, one_thread = Peer(data, sample, None, {}, {}), Peer(data, sample, 1, {}, {})
    functions: dict[str, Callable[[], object]] = {"defaults": peer, "one thread": one_thread}
    functions |= {method: partial(fit, data) for method, fit in OURS.items()}
    times = interleaved(functions, rounds)
    probes = data.labels.shape[0] * data.labels.shape[1]
    loop, alone = (
        [seconds * probes / sample for seconds in times[name]]
        for name in ("defaults", "one thread")
    )
    low, high = min(peer.iterations.values()), max(peer.iterations.values())
    theirs = statistics.mean(peer.accuracy.values())
    print(f"\n{name}; {sample} of scikit-learn's fits a round, scaled to {probes}\n")
    print("| | ms | times as fast as defaults | as one thread | held out | mean less | largest |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| scikit-learn, {low} … {high} iterations | {milliseconds(loop)} | | | {theirs:.4f} | | |"
    )
    print(f"| scikit-learn, one thread | {milliseconds(alone)} | {ratio(loop, alone)} | | | | |")
    for method, fit in OURS.items():
        ours = times[method]
        row = f"| {method} | {milliseconds(ours)} | {ratio(loop, ours)} | {ratio(alone, ours)} "
        fitted = fit(data)
        if isinstance(fitted, LinearProbes):
            share = fitted.hits(*data.held_out()).double().flatten() / HELD_OUT
            same = [share[number % probes].item() for number in peer.accuracy]
            less = [b - a for a, b in zip(same, peer.accuracy.values(), strict=True)]
            row += (
                f"| {statistics.mean(same):.4f} | {100 * statistics.mean(less):.2f} points "
                f"| {100 * max(less, key=abs):.2f} points "
            )
        else:
            row += "| | | "
        print(row + "|", flush=True)


def growth(rounds: int) -> None:
    """How the cost grows, one target a site."""
    sizes = {f"{sites} sites": (sites, FEATURES) for sites in (10, 20, 40, 80)}
    sizes |= {f"{features} features": (20, features) for features in (32, 64, 256, 512)}
    print("\nMilliseconds a site, with 128 features or with 20 sites\n")
    print("| | ridge | logistic |\n|---|---|---|")
    for name, (sites, features) in sizes.items():
        data = draw(sites, 1, features)
        times = interleaved(
            {"ridge": partial(ridge, data), "logistic": partial(logistic, data)}, rounds
        )
        each = {method: [t / sites for t in seconds] for method, seconds in times.items()}
        print(f"| {name} | {milliseconds(each['ridge'])} | {milliseconds(each['logistic'])} |")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample", type=int, default=4, help="scikit-learn's fits in a round")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # the table says how many iterations
    print(machine())
    many, rounds, sample = options.probes, options.rounds, options.sample
    equal, unequal = "features of equal variance", "features of variance 1/k along direction k"
    one, each = f"{many} label sets on one feature matrix", f"{many} matrices with a label set each"
    against_the_loop(f"{one}, {equal}", draw(1, many), rounds, sample)
    against_the_loop(f"{each}, {equal}", draw(many, 1), rounds, sample)
    against_the_loop(f"{one}, {unequal}", draw(1, many, spread=0.5), rounds, sample)
    growth(3)


if __name__ == "__main__":
    main()
