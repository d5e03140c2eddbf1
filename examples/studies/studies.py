"""The studies: what the paper ran, as grids of overrides at its size and at one for two CPU cores.

Labels of the cells are those of the published numbers, which stand here once.
"""

from engine import Grid, Overrides, Study

# Sizes -------------------------------------------------------------------------------------------

_CPU = {"threads": 1, "data.n_val": 0}
# 43 x 43 points; C=64, B=2, M=32 and the optimiser are those of the quick experiments.
DARCY = _CPU | {
    "experiment": "quick/darcy",
    "data.n_train": 1000,
    "data.n_test": 100,
    "data.batch_size": 4,
    "data.n_points": 256,
    "training.optimizer": "muon",
    "training.steps": 1000,
    "training.evaluate_every": "null",  # about 20 times, at most once an epoch
}
# As many tokens, of one case: its 972 points are too few to draw from.
ELASTICITY = DARCY | {
    "experiment": "quick/elasticity",
    "data.batch_size": 1,
    "data.n_points": "null",
}
CARS = _CPU | {
    "experiment": "quick/cars",
    "training.steps": 1000,
    "training.evaluate_every": "null",
}
SMALL = {"darcy": DARCY}
TWO = SMALL | {"elasticity": ELASTICITY}
# Of large grids: evaluating full attention on all of 16,641 points takes longer than training it.
FEW = {"data.n_train": 200, "data.n_test": 50, "training.evaluate_every": 10}
LONG = {
    f"{name}, {steps:,} steps": own | {"training.steps": steps}
    for steps in (3000, 20_000)
    for name, own in TWO.items()
}
MINUTES = {name: own | {"training.steps": 3000} for name, own in TWO.items()}
WIDE = {"model.slice_num": 64, "model.n_layers": 2}
LONGER = LONG["elasticity, 20,000 steps"] | WIDE
LONG_STARTS = {name: own | WIDE for name, own in LONG.items() if "20,000" in name}
# 500 epochs of 1,000 cases, two at a time.
PAPER: Overrides = {"training.evaluate_every": 50}


def named(key: str, *values: object, **renamed: object) -> dict[str, Overrides]:
    """Return an axis over the values of one setting."""
    return {str(v): {key: v} for v in values} | {k: {key: v} for k, v in renamed.items()}


def models(*names: str) -> dict[str, Overrides]:
    """Return an axis over models."""
    return named("model", *names)


def experiments(*names: str, **more: object) -> dict[str, Overrides]:
    """Return an axis over sets at the published size."""
    return {name: {"experiment": name, **more} for name in names}


# Published numbers -------------------------------------------------------------------------------

SETS = ("elasticity", "darcy", "airfoil", "pipe", "drivaerml_40k")
_TABLE1 = {
    "attention": (0.41, 0.43, 0.58, None, None),
    "perceiver_io": (2.80, 2.06, 0.77, 0.69, 24.80),
    "set_transformer": (0.52, 1.25, 0.80, 0.39, 6.20),
    "gnot": (1.33, 1.69, 10.30, 0.59, 11.50),
    "lno": (0.93, 0.76, 1.78, 0.81, 14.60),
    "transolver": (0.72, 1.04, 0.60, 0.38, 7.39),
    "transolver_plus": (1.02, 2.76, 1.27, 0.76, 9.39),
    "transolver3": (0.68, 1.03, 0.73, 0.44, 7.36),
    "flare": (0.64, 0.76, 0.57, 0.51, 7.22),
    "flarepp": (0.38, 0.59, 0.52, 0.34, 6.04),
    # Of the later paper, arXiv 2608.11519.
    "flarepp_gated": (0.39, 0.62, 0.50, 0.35, 5.80),
}
TABLE1 = {
    (name, model): value
    for model, values in _TABLE1.items()
    for name, value in zip(SETS, values, strict=True)
    if value is not None
}
# (set, model, M, B); "32-128" is a mean over M. flare_first, arXiv 2508.12594, has C=64.
LATENTS = {
    (name, model, latents, blocks): value
    for name, model, latents, values in (
        ("elasticity", "flare", "32-128", (1.76, 0.93, 0.68)),
        ("elasticity", "flarepp", "32-128", (0.96, 0.52, 0.38)),
        ("elasticity", "flare_first", "64", (1.00, 0.52, 0.38)),
        ("elasticity", "flare", "32", (1.63, 0.90)),
        ("elasticity", "flare", "128", (1.91, 0.95)),
        ("elasticity", "flarepp", "32", (1.02, 0.40)),
        ("elasticity", "flarepp", "128", (0.90, 0.35)),
        ("darcy", "flare", "128", (1.66, 1.04, 0.76)),
        ("darcy", "flarepp", "128", (1.04, 0.75, 0.59)),
        ("darcy", "flare_first", "128", (0.77, 0.59, 0.54)),
    )
    for blocks, value in zip(("2", "4", "8"), values, strict=False)
}

# Studies -----------------------------------------------------------------------------------------

STARTS = {
    "weights": {"published": {"model.init": "paper"}, "balanced": {}},
    "optimizer": {"AdamW": {"training.optimizer": "adamw"}, "Muon": {"training.optimizer": "muon"}},
    "model": models("flare", "flarepp"),
}
QUERIES = {
    "fixed": {"model": "flare"},
    "separate": {"model": "flarepp"},
    "shared": {"model": "flarepp", "model.shared_projections": "true"},
    "gated": {"model": "flarepp_gated"},
    "deep synthesis": {"model": "flarepp", "model.synthesis_layers": 4},
}
EQUAL_COST_MODELS = models(
    *("flare", "flare_first", "flarepp", "flarepp_deep", "flarepp_gated"),
    *("transolver", "attention"),
)
EQUAL_COST = {
    **EQUAL_COST_MODELS,
    "flare B=4": {"model": "flare", "model.n_layers": 4},
    "flarepp B=4": {"model": "flarepp", "model.n_layers": 4},
    **{
        f"{name}, 3 x as long": {"model": name, "training.steps": 3000}
        for name in ("flare", "flare_first", "flarepp")
    },
}


def sizes(*pairs: tuple[int, int]) -> dict[str, Overrides]:
    """Return an axis over pairs of blocks and channels."""
    return {f"B={b} C={c}": {"model.n_layers": b, "model.n_hidden": c} for b, c in pairs}


# The files of two tasks cannot be generated: $IMDB and $CIFAR10 say where they are.
LRA = {
    "listops": {"experiment": "lra/quick/listops"},
    "image": {"experiment": "lra/quick/image", "data.root": "${oc.env:CIFAR10}"},
    "pathfinder": {"experiment": "lra/quick/pathfinder"},
    "text": {"experiment": "lra/quick/text", "data.root": "${oc.env:IMDB}"},
}
LRA_PAPER = {
    name: own | {"experiment": f"lra/{name}"}
    for name, own in (LRA | {"retrieval": {"data.root": "${oc.env:AAN}"}}).items()
}
LRA_PUBLISHED = {
    (task, model): 100 - accuracy
    for model, values in (
        ("flare", (36.85, 65.23, 78.07, 36.86, 73.39)),
        ("flarepp", (38.05, 66.56, 78.31, 42.04, 76.85)),
    )
    for task, accuracy in zip(
        ("listops", "text", "retrieval", "image", "pathfinder"), values, strict=True
    )
}
# The rest of their recipes is in conf/baselines.yaml.
COMPLETE = {
    name: {"model": name, "training.optimizer": "adamw"}
    for name in ("perceiver_io", "set_transformer", "gnot", "lno")
}
HALF = models("attention", "flare", "flarepp", "flarepp_gated")
PRECISIONS = {"fp32": {}} | {
    half: {"training.precision": half, "model.norm": "rms"} for half in ("bf16", "fp16")
}
WEIGHTS = {"none": {}, "measure": {"data.weights": "measure", "training.norm": "measure"}}
MIXERS = {"mixer": named("--mixer", "flare", "flarepp"), "M": named("--latents", 64, 128)}
COST = {"--models": "flare flarepp transolver3", "--mlp-ratio": 4, "--norm": "rms"}
SLICES = {"M": named("--slices", 64, 128, 256)}
BOTH = experiments("darcy", "elasticity")
MESHES = {"elasticity": ELASTICITY, "cars": CARS}
SIZED_MODELS = models("flare", "flare_first", "flarepp", "transolver")
REDUCED_SIZES = sizes((2, 64), (4, 64), (8, 64), (2, 128), (4, 32))
PAPER_SIZES = sizes((8, 128), (4, 128), (2, 128), (8, 64), (4, 64), (2, 64))
MESH_MODELS = models("flare", "flare_first", "flarepp", "flarepp_gated", "transolver")
LRA_MODELS = models("attention", "flare", "flarepp", "transolver")

STUDIES = {
    "start": Study(
        "How much of FLARE++'s gain is the start: first weights and optimiser?",
        "Published weights and AdamW everywhere; FLARE++ is 38 % better at B=2 on Darcy.",
        Grid({}, {"set": TWO | LONG_STARTS, **STARTS}, seeds=3),
        Grid(PAPER, {"set": BOTH, **STARTS}, seeds=3),
    ),
    "equal_cost": Study(
        "Which mixer gives the lowest error for the same training time?",
        "Not studied; the paper compares equal numbers of epochs.",
        Grid({}, {"set": SMALL, "model": EQUAL_COST}, seeds=3, equal_time=True),
        Grid(
            PAPER | {"training.steps": 250_000},
            {"set": experiments("darcy"), "model": EQUAL_COST_MODELS},
            seeds=3,
            equal_time=True,
        ),
    ),
    "equal_cost_sizes": Study(
        "How many blocks and channels, for the same training time?",
        "Not studied.",
        Grid(
            {},
            {"set": MINUTES, "size": REDUCED_SIZES, "model": SIZED_MODELS},
            seeds=3,
            equal_time=True,
        ),
        Grid(
            PAPER | {"training.steps": 250_000},
            {"set": BOTH, "size": PAPER_SIZES, "model": SIZED_MODELS},
            seeds=3,
            equal_time=True,
        ),
    ),
    "equal_cost_meshes": Study(
        "Which mixer gives the lowest error for the same training time on meshes?",
        "Not studied.",
        Grid({}, {"set": MESHES, "model": MESH_MODELS}, seeds=3, equal_time=True),
        Grid(
            PAPER | {"training.steps": 250_000},
            {"set": experiments("elasticity", "drivaerml_40k"), "model": MESH_MODELS},
            seeds=3,
            equal_time=True,
        ),
    ),
    "equal_cost_long": Study(
        "Which of FLARE and FLARE++ is better after twenty times as long?",
        "Not studied.",
        Grid(
            LONGER, {"model": models("flare", "flarepp", "flare_first")}, seeds=3, equal_time=True
        ),
        Grid(
            PAPER | {"experiment": "elasticity", "training.steps": 250_000},
            {"model": models("flare", "flare_first", "flarepp")},
            seeds=3,
            equal_time=True,
        ),
    ),
    "long_range_arena": Study(
        "Which mixer learns the tasks of Long Range Arena?",
        "FLARE++ 60.36 on average, FLARE 58.08; on the dev split, padding not masked.",
        Grid({}, {"task": LRA, "model": LRA_MODELS}, seeds=3),
        Grid({}, {"task": LRA_PAPER, "model": LRA_MODELS}),
        LRA_PUBLISHED,
        classes=True,
    ),
    "data_scaling": Study(
        "Do synthesised queries pay with more training cases?",
        "Not studied.",
        Grid(
            DARCY,
            {
                "cases": named("data.n_train", 100, 300, 1000, 3000),
                "model": models("flare", "flarepp"),
            },
            seeds=3,
        ),
        Grid(
            PAPER | {"experiment": "darcy", "data": "darcy", "training.steps": 250_000},
            {
                "cases": named("data.n_train", 100, 300, 1000, 3000),
                "model": models("flare", "flare_first", "flarepp"),
            },
            seeds=3,
        ),
    ),
    "queries": Study(
        "Which way of making the queries is best?",
        "Separate k~, v~ in the first FLARE++, one shared gated projection in the later one.",
        Grid({}, {"set": SMALL, "queries": QUERIES}, seeds=3),
        Grid(PAPER, {"set": BOTH, "queries": QUERIES}, seeds=3),
    ),
    "latents_and_depth": Study(
        "How does the error fall with latents M and blocks B, and over time?",
        "FLARE++ with half the blocks of FLARE is as good; FLARE does not gain from M.",
        Grid(
            {},
            {
                "set": LONG,
                "model": models("flare", "flarepp"),
                "M": named("model.slice_num", 16, 64),
                "B": named("model.n_layers", 2, 4),
            },
        ),
        Grid(
            PAPER,
            {
                "set": BOTH,
                "model": models("flare", "flarepp", "flare_first"),
                "M": named("model.slice_num", 32, 64, 128),
                "B": named("model.n_layers", 2, 4, 8),
            },
        ),
        LATENTS,
    ),
    "precision": Study(
        "Which mixers train in half precision?",
        "FLARE++ matches fp32 in fp16; the later paper calls the first form hard to train there.",
        Grid(
            {},
            {
                "set": {"elasticity": ELASTICITY | {"data.n_points": 64}},
                "model": HALF,
                "precision": PRECISIONS,
            },
            seeds=3,
        ),
        Grid(
            PAPER,
            {
                "set": BOTH,
                "model": HALF,
                "precision": PRECISIONS,
            },
            seeds=3,
        ),
    ),
    "table1": Study(
        "How do all models compare on all sets?",
        "FLARE++ is best among models of linear cost on every set.",
        Grid(
            {},
            {
                "set": {
                    "elasticity": ELASTICITY,
                    "darcy": DARCY,
                    "airfoil": DARCY | FEW | {"experiment": "quick/airfoil"},
                    "pipe": DARCY | FEW | {"experiment": "quick/pipe"},
                    "cars": CARS,
                },
                "model": models(*_TABLE1, "flare_first") | COMPLETE,
            },
        ),
        Grid(PAPER, {"set": experiments(*SETS), "model": models(*_TABLE1, "flare_first")}),
        TABLE1,
    ),
    "resolution": Study(
        "What changes on refined, decimated and remeshed meshes, with and without weights?",
        "Not studied.",
        Grid(
            ELASTICITY,
            {"weights": WEIGHTS, "model": models("flare", "flarepp")},
            after={"--cases": 20},
        ),
        Grid(
            PAPER | {"experiment": "elasticity"},
            {"weights": WEIGHTS, "model": models("flare", "flarepp", "flare_first")},
            seeds=3,
            after={},
        ),
    ),
    "cost": Study(
        "What do time and memory of a step grow with?",
        "FLARE++ / FLARE: 1.3-1.5 x time, 1.18 x memory, flat in N; memory independent of M.",
        Grid(
            COST | {"--tokens": "1000 10000", "--layers": 2, "--threads": 1},
            SLICES,
            script="time_memory.py",
        ),
        Grid(
            COST | {"--tokens": "1000 10000 100000 1000000", "--autocast": "float16"},
            SLICES,
            script="time_memory.py",
        ),
    ),
    "context_parallel": Study(
        "How well do ranks share the tokens of one case?",
        "Time efficiency >= 0.92 and memory efficiency >= 0.95 on 4 GPUs.",
        Grid(
            {"--ranks": "1 2", "--tokens": 20_000, "--layers": 2, "--steps": 5},
            MIXERS,
            script="context_parallel.py",
        ),
        Grid(
            {"--ranks": "1 2 4", "--tokens": 1_000_000, "--layers": 8, "--steps": 30},
            MIXERS,
            script="context_parallel.py",
        ),
    ),
}
