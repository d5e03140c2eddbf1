"""Every config is composed, and checked against what reads it."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hydra.errors import HydraException
from omegaconf import OmegaConf

from physicsnemo_flarepp.datapipes.config import DataConfig
from physicsnemo_flarepp.datapipes.specs import benchmark
from physicsnemo_flarepp.models.feeding import InputLayout, build_model
from physicsnemo_flarepp.training.config import RunConfig, TrainingConfig, check_config
from tests.conf.composing import COMPLETE, CONF, MIXERS, NAMED, composed, leaves, options, plain

pytestmark = pytest.mark.slow

# Of fields; those of sequences are in tests/sequences/test_configs.py.
EXPERIMENTS = [name for name in options("experiment") if not name.startswith("lra/")]
THEIRS = ("flare", "transolver", "geotransolver")
PAPER_SETS = ("elasticity", "darcy", "airfoil", "pipe", "plasticity", "drivaerml_40k")


# --- groups


def test_groups_offer_what_the_documentation_names():
    published = {name if name == "drivaerml_40k" else f"{name}_published" for name in PAPER_SETS}
    built_in = {"cars", "cars_wake", "car_volumes", "darcy", "elasticity", "pipe", "airfoil"}
    theirs = {f"physicsnemo_{name}" for name in THEIRS}
    assert set(options("model")) == {*MIXERS, *NAMED, *COMPLETE, *theirs}
    others = {"drivaerml_raw", "drivaerml_curated", "own", "prepared"}
    others |= {"ahmedml", "windsorml", "shapenet_car", "drivaernet"}
    assert set(options("data")) == built_in | published | others
    assert set(options("training")) == {"default", "cars", "quick"}
    quick = {f"quick/{name}" for name in (*PAPER_SETS, "cars", "cars_wake", "car_volumes")}
    surfaces = {"drivaerml_raw", "drivaerml_curated"}
    assert set(EXPERIMENTS) == {*PAPER_SETS, *quick, *surfaces, "none", "own"}


@pytest.mark.parametrize("name", [name for name in options("model") if name not in COMPLETE])
def test_models_have_the_size_of_the_paper(name):
    cfg = composed(f"model={name}").model
    sizes = (cfg.n_layers, cfg.n_hidden, cfg.n_head, cfg.slice_num, cfg.mlp_ratio)
    assert sizes == (8, 128, 8, None if name == "attention" else 64, 2)


@pytest.mark.parametrize("name", options("data"))
def test_data_has_exactly_the_keys_of_its_schema(name):
    data = composed(f"data={name}").data
    assert set(data) == set(asdict(DataConfig()))
    assert (data.root is None) != (data.builtin is None)


@pytest.mark.parametrize("group, kind", [("data", DataConfig), ("training", TrainingConfig)])
def test_files_hold_only_what_differs_from_the_code(group, kind):
    defaults = asdict(kind())
    for path in (CONF / group).glob("*.yaml"):
        own = plain(OmegaConf.load(path))
        del own["defaults"]
        for key, value in own.items():
            assert defaults[key] != value, f"{path.name}: {key} is {value} already"


def test_values_of_the_whole_run_are_those_of_the_code():
    entry = OmegaConf.load(CONF / "train.yaml")
    cfg, code = composed(), RunConfig(model=None, data=None, run_dir="")
    for key in ("seed", "device", "threads", "restart"):
        assert key not in entry and cfg[key] == getattr(code, key)
    assert plain(cfg.parallel) == asdict(code.parallel)
    assert set(cfg) == set(asdict(code))


@pytest.mark.parametrize("override", ["data.seeds=1", "training.lr=1", "training.epochs=many"])
def test_unknown_keys_and_wrong_types_are_refused_when_composed(override):
    with pytest.raises(HydraException, match="seeds|lr|many"):
        composed(override)


@pytest.mark.parametrize("content", ["training: {lr: 1}", "data: {n_point: 5}"])
def test_files_of_users_with_unknown_keys_are_refused_when_composed(content, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{content}\n")
    with pytest.raises(HydraException, match="lr|n_point"):
        composed("experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")


@pytest.mark.parametrize("name", PAPER_SETS)
def test_published_sets_are_looked_for_where_they_are_downloaded(name):
    choice = name if name == "drivaerml_40k" else f"{name}_published"
    data = composed(f"data={choice}").data
    assert (data.root, data.benchmark) == (f"data/{benchmark(name).folder}", name)


def test_prepared_cases_take_the_place_of_raw_ones():
    data = composed("experiment=drivaerml_raw", "data=prepared").data
    assert plain(data.reader) == {"_target_": "PreparedReader"}
    assert data.n_points == composed("experiment=drivaerml_raw").data.n_points


def test_default_training_is_that_of_the_code():
    assert plain(composed("training=default").training) == asdict(TrainingConfig())


@pytest.mark.parametrize("name", options("training"))
def test_training_has_exactly_the_keys_of_its_schema(name):
    training = composed(f"training={name}").training
    assert set(training) == set(asdict(TrainingConfig()))


# --- whole configs


@pytest.mark.parametrize("entry", ["train", "train_2d"])
def test_entry_is_a_whole_run(entry):
    cfg = check_config(composed(entry=entry))
    label = {"train": "cars", "train_2d": "darcy"}[entry]
    assert cfg.run_dir == f"outputs/{label}-flarepp-seed0" and cfg.data.builtin == label
    assert (cfg.parallel.context, cfg.device, cfg.restart) == (1, "auto", False)
    assert (cfg.model.n_layers, cfg.training.epochs <= 240) == (2, True)  # minutes on a CPU


def experiment_file(name):
    path = CONF / "experiment" / f"{name}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}


def group_choices(experiment):
    """The overrides of groups that an experiment file makes, as on a command line."""
    entries = experiment_file(experiment).get("defaults", [])
    chosen = {k: v for entry in entries if isinstance(entry, dict) for k, v in entry.items()}
    return [f"{group.removeprefix('override /')}={name}" for group, name in chosen.items()]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_adds_no_key_but_arguments_of_the_reader(name):
    before = leaves(plain(composed(*group_choices(name))))
    after = leaves(plain(check_config(composed(f"experiment={name}"))))
    assert {
        path for path in before.keys() ^ after.keys() if path[:2] != ("data", "reader")
    } == set()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_states_only_differences(name):
    shared = ["experiment=quick/_small"] if name.startswith("quick/") else []
    before = leaves(plain(composed(*group_choices(name), *shared)))
    own = experiment_file(name)
    own.pop("defaults", None)
    for path, value in leaves(own).items():
        assert before.get(path, "absent") != value, f"{'.'.join(path)} is {value} already"


# B, M, batch, weight decay of the published runs; plasticity has no row and follows elasticity.
@pytest.mark.parametrize(
    "name, blocks, latents, batch, decay, derivative",
    [
        ("elasticity", 8, 64, 2, 1e-5, 0.0),
        ("darcy", 8, 128, 2, 1e-5, 0.1),
        ("airfoil", 8, 64, 2, 1e-5, 0.0),
        ("pipe", 2, 64, 2, 1e-5, 0.0),
        ("drivaerml_40k", 4, 64, 1, 1e-2, 0.0),
        ("plasticity", 8, 64, 2, 1e-5, 0.0),
    ],
)
def test_experiment_has_the_settings_of_the_paper(name, blocks, latents, batch, decay, derivative):
    cfg = composed(f"experiment={name}")
    model, training = cfg.model, cfg.training
    assert (model.n_layers, model.slice_num, model.n_hidden, model.n_head) == (
        blocks,
        latents,
        128,
        8,
    )
    assert (cfg.data.batch_size, cfg.data.benchmark) == (batch, name)
    assert cfg.data.n_points is None and cfg.data.n_train is None
    assert (training.weight_decay, training.derivative_weight) == (decay, derivative)
    schedule = (training.epochs, training.learning_rate, training.pct_start, training.div_factor)
    assert schedule == (500, 1e-3, 0.1, 1e4) and training.final_div_factor == 1e4
    assert (training.clip_norm, training.ema_decay, training.precision) == (1.0, 0.999, "fp32")
    assert (training.optimizer, training.schedule, training.beta2) == ("adamw", "one_cycle", 0.999)
    assert (model.init, model.seed_norm, model.anchored_queries) == ("paper", True, False)
    assert (model.residual_projections, model.shared_projections) == (True, False)
    assert build_model(model, InputLayout(2, 1, 0, 1)).init == "paper"


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if "quick" in name])
def test_quick_experiment_is_small(name):
    cfg = composed(f"experiment={name}")
    model = cfg.model
    assert (model.n_hidden, model.n_layers, model.slice_num) == (64, 2, 32)
    # Of 40 cars in steps of 4, 235 epochs are 2,350 steps.
    assert cfg.training.epochs <= 240 and cfg.training.derivative_weight == 0
    own_name = Path(name).name
    if own_name in ("plasticity", "drivaerml_40k"):
        assert cfg.label == f"{own_name}_quick"  # not the directory of the full experiment
    else:
        assert cfg.data.builtin == cfg.label == own_name


# Batch and weight decay of the complete architectures, and their parameters on the data.
BATCHES = {
    "perceiver_io": (2, 2, 2, 2, 1),
    "set_transformer": (1, 4, 4, 4, 1),
    "gnot": (2, 4, 4, 4, 1),
    "lno": (4, 4, 4, 4, 1),
}
DECAYS = {"perceiver_io": 1e-5, "set_transformer": 1e-5, "gnot": 1e-5, "lno": 5e-5}
# pct_start, div_factor, clip_norm, beta2
SCHEDULES = {
    "perceiver_io": (0.1, 25, 1, 0.999),
    "set_transformer": (0.3, 25, 0.1, 0.999),
    "gnot": (0.3, 25, 0.1, 0.999),
    "lno": (0.2, 1e4, 1000, 0.99),
}
PARAMETERS = {
    "perceiver_io": (1_864_833, 1_864_961, 1_864_833, 1_864_833, 1_864_961),
    "set_transformer": (1_761_793, 1_761_921, 1_761_793, 1_761_793, 1_761_921),
    "gnot": (4_870_553, 4_904_345, 4_902_297, 4_902_297, 4_873_113),
    "lno": (1_831_745, 762_241, 1_291_905, 1_291_905, 762_241),
}
COMPARED_SETS = ("elasticity", "darcy", "airfoil", "pipe", "drivaerml_40k")
GRIDS = {"darcy": (85, 85), "airfoil": (221, 51), "pipe": (129, 129)}


@pytest.mark.parametrize("place, data", list(enumerate(COMPARED_SETS)))
@pytest.mark.parametrize("name", COMPLETE)
def test_complete_architecture_has_size_and_recipe_of_the_study(name, place, data):
    cfg = check_config(composed(f"experiment={data}", f"model={name}"))
    training = cfg.training
    decay = {"drivaerml_40k": 1e-4, "darcy": 5e-5 if name == "gnot" else DECAYS[name]}
    assert (cfg.data.batch_size, training.weight_decay) == (
        BATCHES[name][place],
        decay.get(data, DECAYS[name]),
    )
    schedule = (training.pct_start, training.div_factor, training.clip_norm, training.beta2)
    assert schedule == SCHEDULES[name] and training.final_div_factor == 1e4
    assert (training.epochs, training.learning_rate, training.precision) == (500, 1e-3, "fp32")
    channels = (3, 0) if data == "drivaerml_40k" else (2, int(data == "darcy"))
    model = build_model(cfg.model, InputLayout(*channels, 0, 1, GRIDS.get(data)))
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name][place]
    assert model.unified_pos == (name == "gnot" and data in GRIDS)


@pytest.mark.parametrize("name", COMPLETE)
def test_complete_architecture_is_small_with_a_recipe_of_its_own_in_quick_experiments(name):
    cfg = composed("experiment=quick/elasticity", f"model={name}", entry="compare")
    assert (cfg.model.n_hidden, cfg.model.n_layers, cfg.training.epochs) == (64, 2, 60)
    assert cfg.training.pct_start == SCHEDULES[name][0]
    model = build_model(cfg.model, InputLayout(2, 0, 0, 1, None))
    assert model(torch.rand(1, 7, 2)).shape == (1, 7, 1)


@pytest.mark.parametrize("name", [*MIXERS, *(f"physicsnemo_{name}" for name in THEIRS)])
def test_other_models_keep_the_settings_of_the_experiment(name):
    assert composed("experiment=darcy", f"model={name}").training == (
        composed("experiment=darcy").training
    )


def test_every_recipe_is_for_an_experiment_and_a_model():
    table = plain(OmegaConf.load(CONF / "baselines.yaml"))
    assert {*table} == {
        "study",
        "attention",
        "flare",  # on sequences
        "transolver",
        *COMPLETE,
        *(f"physicsnemo_{name}" for name in THEIRS),
    }
    for model in COMPLETE:
        assert {*table[model]} <= {"recipe", *COMPARED_SETS}


def test_the_command_line_overrules_a_recipe():
    cfg = composed("experiment=darcy", "model=gnot", "model.unified_pos=false", "data.batch_size=3")
    assert (cfg.model.unified_pos, cfg.data.batch_size) == (False, 3)


def test_any_model_can_be_chosen_for_any_experiment():
    cfg = composed("experiment=darcy", "model=transolver3", "seed=3")
    assert (cfg.model.mixer, cfg.model.slice_num) == ("transolver3", 128)
    assert cfg.run_dir == "outputs/darcy_published-transolver3-seed3"


def test_the_command_line_has_the_last_word():
    cfg = composed("experiment=quick/pipe", "model.n_layers=3", "label=mine", entry="train_2d")
    assert (cfg.data.builtin, cfg.model.n_layers, cfg.label) == ("pipe", 3, "mine")
