"""The paper's generator: a world with a known truth that looks like UCI Adult, the same for the same seed."""

import warnings

import numpy as np
import pytest

from experiments import semi_synthetic as module
from experiments.cache import cached_arrays
from experiments.networks import Network, choose_engine, fit_network
from experiments.semi_synthetic import SemiSynthetic
from lowcal.data.errors import InvalidInput, MissingExtra
from lowcal.datasets import load_adult


@pytest.fixture(scope="module")
def world():
    return SemiSynthetic("numpy", n_rows=3000, cache=False)


def test_rows_have_adults_columns_and_labels_drawn_from_f_star(world):
    data = world.sample(20_000, random_state=0)
    assert set(data.X) == {*module.NUMERIC, *module.TEXT}
    assert set(data.y) == {0, 1}
    assert np.all((data.f_star > 0) & (data.f_star < 1))
    # means of y and f* differ by noise only: by less than 5 standard errors, on all rows and where f* is large
    for rows in (np.ones(20_000, dtype=bool), data.f_star > 0.5):
        error = np.sqrt((data.f_star * (1 - data.f_star))[rows].sum()) / rows.sum()
        assert abs(data.y[rows].mean() - data.f_star[rows].mean()) < 5 * error


def test_features_look_like_those_of_adult(world):
    real, made = load_adult(), world.sample(20_000, random_state=1)
    share = [np.mean(data.X["sex"] == "Male") for data in (real, made)]
    assert abs(share[0] - share[1]) < 0.03
    ages = [np.mean(data.X["age"]) for data in (real, made)]
    assert abs(ages[0] - ages[1]) < 2
    zero = [np.mean(data.X["capital_gain"] == 0) for data in (real, made)]
    assert abs(zero[0] - zero[1]) < 0.03
    # and their dependence survives: the married are older than those who never were
    older = [
        np.mean(d.X["age"][d.X["marital_status"] == "Married-civ-spouse"])
        - np.mean(d.X["age"][d.X["marital_status"] == "Never-married"])
        for d in (real, made)
    ]
    assert older[1] > 0.3 * older[0] > 3


def test_f_star_has_learned_the_real_labels(world):
    data = load_adult("test")
    f = world.f_star(data.X)
    base = data.y.mean() * (1 - data.y.mean())
    assert np.mean((f - data.y) ** 2) < 0.75 * base


def test_the_same_seed_gives_the_same_rows_and_another_does_not(world):
    one, two, other = (world.sample(300, random_state=s) for s in (5, 5, 6))
    assert np.array_equal(one.y, two.y)
    assert all(np.array_equal(one.X[name], two.X[name]) for name in one.X)
    assert not np.array_equal(one.f_star, other.f_star)


def test_the_same_world_is_trained_again_and_another_seed_is_another_world(world):
    again = SemiSynthetic("numpy", n_rows=3000, cache=False)
    other = SemiSynthetic("numpy", random_state=1, n_rows=3000, cache=False)
    assert again.checksum == world.checksum
    assert other.checksum != world.checksum


def test_features_are_scaled_numbers_and_one_column_for_each_category(world):
    data = world.sample(500, random_state=0)
    A = world.features(data.X)
    levels = world._columns.levels
    starts = len(module.NUMERIC) + np.cumsum([0, *(len(levels[name]) for name in module.TEXT)])
    assert A.shape == (500, starts[-1])
    for name, first, last in zip(module.TEXT, starts, starts[1:], strict=False):
        assert np.array_equal(A[:, first:last].sum(axis=1), np.ones(500))
        assert np.array_equal(np.array(levels[name], dtype=object)[A[:, first:last].argmax(axis=1)], data.X[name])


def test_codes_and_columns_are_inverse_up_to_the_part_of_a_number(world):
    columns = world._columns
    codes = columns.codes(world._adult.X)
    again = columns.codes(columns.decode(codes, np.random.default_rng(0)))
    assert np.array_equal(codes, again)
    assert np.all(codes.max(axis=0) < np.array(columns.sizes))


def test_the_world_is_cached_and_a_damaged_file_is_made_again(tmp_path):
    first = SemiSynthetic("numpy", n_rows=500, cache=tmp_path)
    checksum = first.checksum
    (file,) = tmp_path.glob("*.npz")
    assert SemiSynthetic("numpy", n_rows=500, cache=tmp_path).checksum == checksum
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match=r"damaged \(Bad CRC-32 .*\); it is made again"):
        assert SemiSynthetic("numpy", n_rows=500, cache=tmp_path).checksum == checksum
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SemiSynthetic("numpy", n_rows=500, cache=tmp_path).checksum == checksum


def test_the_cache_is_read_and_not_made_again(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"a": np.arange(3.0)}

    for _ in range(2):
        assert np.array_equal(cached_arrays("some", make, tmp_path)["a"], np.arange(3.0))
    assert len(made) == 1


def test_the_folder_of_the_cache_may_be_named_by_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWCAL_CACHE", str(tmp_path))
    cached_arrays("named", lambda: {"a": np.zeros(1)})
    assert (tmp_path / "named.npz").exists()


def test_a_folder_that_can_not_be_written_only_warns(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(UserWarning, match="could not be cached"):
        found = cached_arrays("some", lambda: {"a": np.ones(1)}, file / "folder")
    assert found["a"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "jax"}, "engine must be one of auto, torch, numpy"),
        ({"engine": "numpy", "n_rows": 10}, "n_rows must be a whole number of at least 100"),
        ({"engine": "numpy", "random_state": -1}, "random_state must be a whole number of at least 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        SemiSynthetic(**options, cache=False).sample(10)


def test_rows_of_another_table_are_refused(world):
    with pytest.raises(InvalidInput, match="n must be a whole number of at least 1"):
        world.sample(0)
    with pytest.raises(InvalidInput, match="X lacks Adult's columns age"):
        world.f_star({"sex": np.array(["Male"], dtype=object)})
    data = world.sample(5, random_state=0)
    with pytest.raises(InvalidInput, match="the column sex holds 'Robot'"):
        world.f_star({**data.X, "sex": np.array(["Robot"] * 5, dtype=object)})


def test_without_torch_the_engine_is_numpy_and_torch_is_asked_for(monkeypatch):
    import experiments.networks as networks

    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    assert choose_engine("auto") == "numpy"

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(networks, "import_module", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'lowcal\[experiments\]'"):
        choose_engine("torch")


def test_a_network_computes_what_its_layers_say():
    rng = np.random.default_rng(0)
    W1, b1, W2, b2 = rng.normal(size=(3, 4)), rng.normal(size=4), rng.normal(size=(4, 1)), rng.normal(size=1)
    network = Network(((W1, b1), (W2, b2)))
    X = rng.normal(size=(6, 3))
    for x, p in zip(X, network.probability(X), strict=True):
        hidden = [max(sum(x[i] * W1[i, j] for i in range(3)) + b1[j], 0.0) for j in range(4)]
        score = sum(h * W2[j, 0] for j, h in enumerate(hidden)) + b2[0]
        assert p == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-12)
    again = Network.from_arrays(network.to_arrays("n."), "n.")
    assert np.array_equal(again(X), network(X))


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_a_network_learns_and_longer_training_makes_it_overconfident(engine):
    if engine == "torch":
        pytest.importorskip("torch", reason="torch is in the extra [experiments]")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    y = (rng.random(400) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(np.int64)
    kind = {"hidden": (32, 32), "engine": engine, "seed": 0}
    short, long = (fit_network(X[:200], y[:200], epochs=e, **kind) for e in (20, 300))
    fresh = X[200:]
    assert np.mean((short.probability(fresh) > 0.5) == y[200:]) > 0.7
    assert long.probability(fresh).var() > 1.5 * short.probability(fresh).var()
    again = fit_network(X[:200], y[:200], epochs=20, **kind)
    assert np.array_equal(again(fresh), short(fresh))


def test_the_autoencoder_learns_the_joint_distribution():
    torch = pytest.importorskip("torch", reason="torch is in the extra [experiments]")
    from experiments.feature_models import fit_autoencoder

    rng = np.random.default_rng(0)
    first = rng.integers(3, size=4000)
    codes = np.column_stack([first, (first + (rng.random(4000) < 0.1)) % 3])
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    model = fit_autoencoder(codes, (3, 3), epochs=30, seed=0)
    assert torch.equal(torch.random.get_rng_state(), state)  # the user's own stream is left alone
    assert torch.get_num_threads() == threads
    drawn = model.draw(4000, np.random.default_rng(1))
    assert np.bincount(drawn[:, 0]) / 4000 == pytest.approx([1 / 3] * 3, abs=0.06)
    assert np.mean(drawn[:, 0] == drawn[:, 1]) > 0.6  # independent columns would agree on a third


@pytest.mark.slow
def test_the_paper_s_world_is_trained_by_torch_twice_alike():
    pytest.importorskip("torch", reason="torch is in the extra [experiments]")
    one, two = (SemiSynthetic("torch", n_rows=5000, cache=False) for _ in range(2))
    assert one.checksum == two.checksum
    data = one.sample(5000, random_state=0)
    assert 0.15 < data.f_star.mean() < 0.35


def test_without_a_home_the_cache_is_a_temporary_folder(monkeypatch):
    from pathlib import Path

    from experiments import cache

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LOWCAL_CACHE", raising=False)
    monkeypatch.setattr(cache.Path, "home", homeless)
    assert cache.cache_folder().name == "lowcal"
    assert cache.cache_folder("here") == Path("here")
