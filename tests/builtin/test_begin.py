import pytest

from physicsnemo_flarepp.builtin import engine


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(engine.CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def test_a_set_that_was_begun_is_solved_once(monkeypatch):
    with engine.begin("darcy", 2, 1, 0, 0):
        monkeypatch.setattr(engine, "solve_cases", lambda *_: pytest.fail("solved again"))
        path = engine.generate("darcy", n_train=2, n_test=1)
        assert engine.generate("darcy", n_train=2, n_test=1) == path
    assert engine.read_stamp(path)["n_train"] == 2


def test_another_set_does_not_wait_for_the_one_that_was_begun(cache):
    with engine.begin("darcy", 2, 1, 0, 0):
        path = engine.generate("darcy", n_train=1, n_test=1, progress=False)
    assert engine.read_stamp(path)["n_train"] == 1
    assert not (cache / "darcy-v3-s0-2+1").exists()


def test_a_set_that_nobody_asks_for_is_left_unfinished(cache):
    with engine.begin("darcy", 1, 1, 0, 0):
        pass
    assert not list(cache.glob("*/stamp.json"))
    assert engine.generate("darcy", n_train=1, n_test=1, progress=False).is_dir()
