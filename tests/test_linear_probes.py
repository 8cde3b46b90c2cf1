"""Linear probes: equal to independent fits, blind to test prompts, and honest about their floors.

Ridge, the discriminant and the logistic are compared with scikit-learn or a dense solve, streamed
fits with fits of everything at once. Where a signal is planted the table shows it with high
selectivity; where a probe can only learn inputs by heart, with low.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge

from probes import fit_ridge
from probes.controls import accuracy_interval, control_labels, shuffled, token_keys
from probes.fitters import discriminant, logistic, ridge
from probes.linear import RidgeStatistics
from probes.logistic import fit_logistic
from probes.probing import PromptSplit, Target, probe_sites, transfer

FITTERS = {"ridge": ridge, "discriminant": discriminant, "logistic": logistic}


def noisy_classes(generator, sites, rows, features, classes):
    """Features of very different variance, and labels drawn from a softmax of them."""
    deviation = torch.logspace(0, -1.5, features)
    X = torch.randn(sites, rows, features, generator=generator) * deviation
    weight = torch.randn(sites, features, classes, generator=generator) / deviation[:, None] / 3
    gumbel = -(-torch.rand(sites, rows, classes, generator=generator).log()).log()
    return X, (X @ weight + gumbel).argmax(-1)


def statistics_of(X, labels, classes, sizes=None):
    statistics = RidgeStatistics(classes)
    begin = 0
    for size in sizes or [X.shape[1]]:
        statistics.add(X[:, begin : begin + size], labels[..., begin : begin + size])
        begin += size
    assert begin == X.shape[1]
    return statistics


def test_ridge_equals_scikit_learn(generator):
    X = torch.randn(300, 12, generator=generator)
    labels = [torch.randint(4, (300,), generator=generator), (X[:, 0] > 0).long()]
    ours = fit_ridge(X, labels, [4, 2], ridge=0.01)
    centred = X.double() - X.double().mean(0)
    alpha = 0.01 * float((centred**2).sum(0).mean())
    for probe, y, classes in zip(ours, labels, [4, 2], strict=True):
        peer = Ridge(alpha=alpha).fit(X.double().numpy(), np.eye(classes)[y.numpy()])
        np.testing.assert_allclose(probe.weight.numpy(), peer.coef_.T, atol=1e-8)
        np.testing.assert_allclose(probe.bias.numpy(), peer.intercept_, atol=1e-8)
    assert ours[1].accuracy(X, labels[1]) > 0.95


def test_ridge_ignores_rounding_noise(generator):
    """A feature that varies by 1e-17 carries labels here; no probe may read it."""
    labels = torch.randint(2, (400,), generator=generator)
    X = torch.randn(400, 3, generator=generator).double()
    X = torch.cat([X, 1e-17 * labels[:, None].double()], dim=1)
    assert fit_ridge(X, [labels], [2])[0].accuracy(X, labels) < 0.65
    assert fit_ridge(torch.zeros(10, 3), [labels[:10]], [2])[0].weight.abs().max() == 0


def test_ridge_refuses_what_cannot_be_fitted(generator):
    X, y = torch.randn(10, 3, generator=generator), torch.zeros(10, dtype=torch.int64)
    with pytest.raises(ValueError, match="features have 10 rows"):
        fit_ridge(X, [y[:5]], [2])
    with pytest.raises(ValueError, match="there are 2 classes"):
        fit_ridge(X, [y + 2], [2])
    with pytest.raises(ValueError, match="not finite"):
        fit_ridge(X * float("nan"), [y], [2])


def test_the_whole_path_equals_fresh_solves(generator):
    """At every penalty, site and target, from one eigendecomposition a site."""
    X, y = noisy_classes(generator, 2, 400, 10, 4)
    labels = torch.stack([y, torch.randint(3, y.shape, generator=generator)], dim=1)
    path = statistics_of(X, labels, [4, 3]).path()
    for penalty in (1e-6, 1e-3, 1.0, 100.0):
        probes = path.ridge(penalty)
        for site in range(2):
            x = X[site].double().numpy()
            alpha = penalty * x.var(0).mean() * len(x)
            for target, classes in enumerate([4, 3]):
                peer = Ridge(alpha=alpha).fit(x, np.eye(classes)[labels[site, target].numpy()])
                ours = probes.probe(site, target)
                np.testing.assert_allclose(ours.weight.numpy(), peer.coef_.T, atol=1e-8)
                np.testing.assert_allclose(ours.bias.numpy(), peer.intercept_, atol=1e-8)


def test_the_discriminant_equals_a_dense_solve(generator):
    """With the scatter within classes inverted outright, for classes of very different size."""
    X, y = noisy_classes(generator, 1, 600, 8, 3)
    y[0, :300] = 0
    probe = statistics_of(X, y[None], [3]).path().discriminant(0.1).probe(0, 0)
    x, label = X[0].double(), y[0]
    means = torch.stack([x[label == k].mean(0) for k in range(3)])
    within = (x - means[label]).mT @ (x - means[label])
    penalty = 0.1 * x.var(0, correction=0).mean() * len(x)
    precision = torch.linalg.inv((within + penalty * torch.eye(8)) / len(x))
    weight = precision @ means.mT
    rate = torch.bincount(label) / len(x)
    bias = rate.log() - (means.mT * weight).sum(0) / 2
    common = (probe.weight - weight).mean(1, keepdim=True)  # added to all scores, changes nothing
    torch.testing.assert_close(probe.weight, weight + common, atol=1e-8, rtol=1e-8)
    scores, expected = x @ probe.weight + probe.bias, x @ weight + bias
    torch.testing.assert_close(scores.log_softmax(-1), expected.log_softmax(-1), atol=1e-6, rtol=0)


def test_the_discriminant_sees_a_class_between_others(generator):
    """On a line, ridge to one-hot labels never prefers the middle class; the discriminant does."""
    y = torch.randint(3, (3000,), generator=generator)
    X = (y[:, None] + 0.1 * torch.randn(3000, 1, generator=generator))[None]
    path = statistics_of(X, y[None], [3]).path()
    assert path.ridge(1e-3).hits(X, y[None])[0, 0] / 3000 < 0.75
    assert path.discriminant(1e-3).hits(X, y[None])[0, 0] / 3000 > 0.99


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    shared=st.booleans(),
    offset=st.sampled_from([0.0, 1e3]),
    seed=st.integers(0, 2**31),
)
def test_streamed_in_any_chunks_equals_all_at_once(sizes, shared, offset, seed):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(3, sum(sizes), 5, generator=generator).double() + offset
    shape = (2, sum(sizes)) if shared else (3, 2, sum(sizes))
    labels = torch.randint(3, shape, generator=generator)
    whole, parts = (statistics_of(X, labels, [3, 4], s) for s in (None, sizes))
    assert whole.count == parts.count
    for name in ("mean", "rate", "gram", "cross"):
        torch.testing.assert_close(
            getattr(whole, name), getattr(parts, name), atol=1e-10 * len(X[0]), rtol=1e-10
        )


def test_a_large_common_offset_does_no_harm(generator):
    X, y = noisy_classes(generator, 1, 500, 6, 3)
    X = X.double()
    sizes = [7, 193, 300]
    plain = statistics_of(X, y[None], [3], sizes).path()
    moved = statistics_of(X + 1e6, y[None], [3], sizes).path()
    for method in ("ridge", "discriminant"):
        a, b = getattr(plain, method)(1e-3), getattr(moved, method)(1e-3)
        torch.testing.assert_close(a.weight, b.weight, atol=1e-6, rtol=1e-6)
        assert torch.equal(a.predict(X), b.predict(X + 1e6))
    far = fit_logistic(X + 1e6, y[None], 3).probes
    near = fit_logistic(X, y[None], 3).probes
    torch.testing.assert_close(far.weight, near.weight, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("fitted", ["ridge", "discriminant", "logistic"])
def test_constant_features_give_one_prediction(fitted, generator):
    """Such as the embedding of a token that all prompts have in common."""
    y = torch.cat([torch.zeros(40, dtype=torch.int64), torch.ones(30, dtype=torch.int64)])
    X = torch.randn(1, 1, 4, generator=generator).double().expand(1, 70, 4)
    if fitted == "logistic":
        probes = fit_logistic(X, y[None], 2).probes
    else:
        probes = getattr(statistics_of(X, y[None], [2], [13, 57]).path(), fitted)(1e-3)
    assert (probes.predict(X) == 0).all()


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("shared", [True, False])
def test_logistic_equals_scikit_learn(penalty, shared, generator):
    """Many targets on one site's features, and one target at each of many sites."""
    X, y = noisy_classes(generator, 3, 500, 12, 5)
    y[1, :250] = 2
    X, labels = (X[:1], y) if shared else (X, y[:, None])
    fit = fit_logistic(X, labels, 5, penalty=penalty, tolerance=1e-6)
    assert fit.converged.all()
    for index in range(3):
        site, target = (0, index) if shared else (index, 0)
        x, probe = X[site].double(), fit.probes.probe(site, target)
        ridge = penalty * x.var(0, correction=0).mean().item()
        peer = LogisticRegression(C=1 / (ridge * len(x)), tol=1e-8, solver="newton-cg")
        peer.fit(x.numpy(), y[index].numpy())

        def loss(weight, bias, x=x, ridge=ridge, label=y[index]):
            entropy = torch.nn.functional.cross_entropy(x @ weight + bias, label)
            return (entropy + ridge / 2 * (weight**2).sum()).item()

        reached = loss(torch.tensor(peer.coef_.T), torch.tensor(peer.intercept_))
        assert loss(probe.weight, probe.bias) == pytest.approx(reached, rel=1e-4)
        assert fit.loss[site, target] == pytest.approx(reached, rel=1e-4)
        same = probe.predict(x) == torch.tensor(peer.predict(x.numpy()))
        assert same.double().mean() > 0.99


def test_logistic_fits_separable_classes(generator):
    """Tight clusters, whose curvature vanishes where the fit is confident."""
    y = torch.randint(6, (600,), generator=generator)
    centres = torch.randn(6, 16, generator=generator)
    X = (centres[y] + 0.01 * torch.randn(600, 16, generator=generator))[None]
    fit = fit_logistic(X, y[None], 6, penalty=1e-3)
    assert fit.converged.all()
    assert fit.probes.hits(X, y[None]).item() == 600


def test_a_probe_does_not_depend_on_those_beside_it(generator):
    X, y = noisy_classes(generator, 4, 300, 8, 3)
    together = fit_logistic(X, y[:, None], 3).probes
    alone = fit_logistic(X[2:3], y[2:3, None], 3).probes
    torch.testing.assert_close(together.weight[2:3], alone.weight, atol=1e-4, rtol=1e-4)


def test_no_convergence_is_reported(generator):
    X, y = noisy_classes(generator, 2, 300, 8, 3)
    with pytest.warns(RuntimeWarning, match="2 of 2 logistic probes did not converge in 2 iter"):
        fit = fit_logistic(X, y[:, None], 3, penalty=1e-4, iterations=2)
    assert not fit.converged.any()
    assert (fit.iterations == 2).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_logistic(X, y[:, None], 3, penalty=1e-4).converged.all()


def test_wilson_interval_against_known_values():
    """Newcombe (1998), table I, method 3: 81/263, 15/148, 0/20 and 1/29."""
    for hits, total, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = accuracy_interval(torch.tensor([hits]), total)
        np.testing.assert_allclose(torch.cat(found).numpy(), [low, high], atol=6e-5)
    with pytest.raises(ValueError, match="among 5 trials"):
        accuracy_interval(torch.tensor([6]), 5)
    with pytest.raises(ValueError, match="level is 95"):
        accuracy_interval(torch.tensor([3]), 5, level=95)


@settings(deadline=None)
@given(total=st.integers(1, 10**6), share=st.floats(0, 1), level=st.floats(0.5, 0.999))
def test_wilson_interval_holds_the_rate(total, share, level):
    hits = torch.tensor([round(total * share)])
    low, high = accuracy_interval(hits, total, level)
    rate = hits.item() / total
    assert 0 <= low <= rate + 1e-12
    assert rate - 1e-12 <= high <= 1


@settings(deadline=None)
@given(distinct=st.integers(2, 40), classes=st.integers(1, 10), seed=st.integers(0, 2**31))
def test_control_labels_are_fixed_by_keys_and_balanced(distinct, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.arange(distinct).repeat(3)[torch.randperm(3 * distinct, generator=generator)] * 7
    if distinct < classes:
        with pytest.raises(ValueError, match="distinct keys"):
            control_labels(keys, classes, generator)
        return
    labels = control_labels(keys, classes, generator)
    pairs = {tuple(pair) for pair in torch.stack([keys, labels], dim=1).tolist()}
    assert len(pairs) == distinct
    counts = torch.bincount(torch.tensor([label for _, label in pairs]), minlength=classes)
    assert len(counts) == classes
    assert counts.max() - counts.min() <= 1


def test_keys_and_shuffles(generator):
    keys = token_keys(torch.tensor([[3, 1], [0, 5], [3, 1], [3, 2]]))
    assert keys.tolist() == [1, 0, 1, 2]
    labels = torch.arange(50)
    assert torch.equal(shuffled(labels, generator).sort().values, labels)
    again = [shuffled(labels, torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*again)
    with pytest.raises(ValueError, match="tokens have shape"):
        token_keys(labels)


PROMPTS = 2000
SPLIT = PromptSplit.of(PROMPTS)


def planted(seed=0):
    """Site 0 holds the label, site 1 the same code, site 2 a rotated one; site 3 is noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (PROMPTS,), generator=generator)
    code = 3 * torch.eye(4)[y] @ torch.linalg.qr(torch.randn(12, 12, generator=generator))[0][:4]
    turn = torch.linalg.qr(torch.randn(12, 12, generator=generator))[0]
    noise = 0.1 * torch.randn(3, PROMPTS, 12, generator=generator)
    sites = [code + noise[0], code + noise[1], code @ turn + noise[2]]
    sites.append(torch.randn(PROMPTS, 5, generator=generator))
    keys = torch.randint(64, (PROMPTS,), generator=generator)
    return sites, {"y": Target(y, 4, keys=keys), "odd": Target(y % 2, 2, chance=0.5)}


def reader(sites):
    return lambda prompts: [site[prompts] for site in sites]


@pytest.mark.parametrize("name", FITTERS)
def test_a_planted_signal_is_found_and_noise_is_not(name):
    sites, targets = planted()
    table = probe_sites(
        reader(sites), targets, SPLIT, fit=FITTERS[name], penalties=(1e-3, 1e-1), chunk=333
    )
    assert table.targets == ("y", "odd")
    assert (table.accuracy[:3] == 1).all()
    assert (table.low[:3] > 0.99).all()
    assert (table.selectivity[:3, 0] > 0.65).all()
    assert table.selectivity[:, 1].isnan().all()
    total = SPLIT.test.stop - SPLIT.test.start
    for target, classes in enumerate([4, 2]):
        chance = 1 / classes
        width = 4 * (chance * (1 - chance) / total) ** 0.5
        assert (table.shuffled[3:, target] - chance).abs().max() < width
        assert abs(table.accuracy[3, target] - chance) < width
        assert table.chance[target] == chance
        assert abs(table.frequency_baseline[target] - chance) < width
    assert table.untrained.isnan().all()
    floor = probe_sites(reader([torch.randn_like(x) for x in sites]), targets, SPLIT)
    assert torch.equal(table.with_floor(floor).untrained, floor.accuracy)


def test_shuffled_floor_is_near_chance_where_the_signal_is_strong():
    """Averaged over seeds, since with a strong code all prompts of a value are hit or missed."""
    sites, targets = planted()
    floors = [
        probe_sites(reader(sites[:1]), targets, SPLIT, penalties=(1e-3,), seed=seed).shuffled[0, 0]
        for seed in range(20)
    ]
    assert abs(torch.stack(floors).mean() - 0.25) < 0.12


def test_a_probe_that_learns_inputs_by_heart_is_not_selective(generator):
    """Features that are one-hot in a few keys read any labels of the keys."""
    keys = torch.randint(24, (PROMPTS,), generator=generator)
    label_of_key = torch.randint(4, (24,), generator=generator)
    features = torch.eye(24)[keys] + 0.01 * torch.randn(PROMPTS, 24, generator=generator)
    table = probe_sites(reader([features]), {"y": Target(label_of_key[keys], 4, keys=keys)}, SPLIT)
    assert table.accuracy.item() == 1
    assert abs(table.selectivity.item()) < 0.02


def test_transfer_shows_whether_sites_share_a_code():
    sites, targets = planted()
    table = probe_sites(reader(sites), targets, SPLIT)
    accuracy = transfer(table, reader(sites), targets, SPLIT, chunk=77)
    assert accuracy.shape == (4, 4, 2)
    torch.testing.assert_close(accuracy.diagonal().mT, table.accuracy)
    assert (accuracy[:2, :2] == 1).all()
    assert accuracy[0, 2, 0] < 0.7
    assert accuracy[2, 0, 0] < 0.7
    assert accuracy[3, :3].isnan().all()
    with pytest.raises(ValueError, match="not those of the table"):
        transfer(table, reader(sites), {"y": targets["y"]}, SPLIT)


@pytest.mark.parametrize("name", FITTERS)
def test_test_prompts_influence_nothing_that_is_fitted(name):
    sites, targets = planted()
    wild = [site.clone() for site in sites]
    for site in wild:
        site[SPLIT.test] = 1e6 * site[SPLIT.test].flip(0) - 3e7
    changed = targets["y"].labels.clone()
    changed[SPLIT.test] = 0
    others = {**targets, "y": replace(targets["y"], labels=changed)}
    tables = [
        probe_sites(reader(x), t, SPLIT, fit=FITTERS[name], penalties=(1e-3, 1.0))
        for x, t in [(sites, targets), (wild, others)]
    ]
    assert torch.equal(tables[0].penalty, tables[1].penalty)
    for a, b in zip(tables[0].fitted, tables[1].fitted, strict=True):
        assert a.sites == b.sites
        assert torch.equal(a.probes.weight, b.probes.weight)
        assert torch.equal(a.probes.bias, b.probes.bias)


def test_activations_are_read_in_chunks():
    """However many prompts there are, no more than a chunk is asked for at a time."""
    sites, targets = planted()
    asked = []

    def read(prompts):
        asked.append((prompts.start, prompts.stop))
        return [site[prompts] for site in sites]

    probe_sites(read, targets, SPLIT, chunk=100)
    assert max(stop - start for start, stop in asked) == 100
    assert len(asked) == 1 + PROMPTS // 100  # the first prompt shows the sites' shapes


def test_penalties_are_chosen_on_validation_prompts(generator):
    """With fewer prompts than features the least penalty learns noise; a greater one is taken."""
    y = torch.randint(2, (400,), generator=generator)
    X = torch.randn(400, 200, generator=generator)
    X[:, 0] += 4 * y
    table = probe_sites(
        reader([X]),
        {"y": Target(y, 2)},
        PromptSplit(slice(0, 210), slice(210, 300), slice(300, 400)),
        penalties=(1e-9, 1.0),
    )
    assert table.penalty.item() == 1.0
    assert table.accuracy.item() > 0.75


def test_wrong_shapes_are_refused_in_one_line(generator):
    sites, targets = planted()
    y = targets["y"].labels
    X = torch.randn(2, 10, 3, generator=generator)
    label = torch.zeros(1, 10, dtype=torch.int64)
    cases = {
        "sites of 3 features follow 2": lambda: [
            (s := RidgeStatistics([2])).add(X, label),
            s.add(X[:1], label),
        ],
        "labels have shape": lambda: RidgeStatistics([2]).add(X, label[:, :5]),
        r"\[site, rows, features\] is needed": lambda: RidgeStatistics([2]).add(X[0], label),
        "no rows were added": lambda: RidgeStatistics([2]).path(),
        "penalty is 0": lambda: fit_logistic(X, label, 2, penalty=0),
        "share prompts": lambda: PromptSplit(slice(0, 10), slice(9, 12), slice(12, 20)),
        "holds no prompts": lambda: PromptSplit(slice(0, 10), slice(10, 10), slice(12, 20)),
        "no range of prompts": lambda: PromptSplit(slice(10), slice(10, 12), slice(12, 20)),
        "no targets": lambda: probe_sites(reader(sites), {}, SPLIT),
        "labels of shape": lambda: probe_sites(reader(sites), {"y": Target(y[:9], 4)}, SPLIT),
        "keys of shape": lambda: probe_sites(reader(sites), {"y": Target(y, 4, keys=y[:9])}, SPLIT),
        "better 100 times": lambda: probe_sites(reader(sites), {"y": Target(y, 5000)}, SPLIT),
        "flatten what has more axes": lambda: probe_sites(
            reader([x[:, None] for x in sites]), targets, SPLIT
        ),
        "are no floor": lambda: probe_sites(reader(sites), targets, SPLIT).with_floor(
            probe_sites(reader(sites[:2]), targets, SPLIT)
        ),
    }
    for words, case in cases.items():
        with pytest.raises(ValueError, match=words) as caught:
            case()
        assert "\n" not in str(caught.value)
