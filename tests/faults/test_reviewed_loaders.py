"""Every place that opens a file or names a class by text was looked at; a new one must be too.

The list counts, per module, calls of functions that can run code from what they read. Before a
line is changed here, the call must be safe on a file of someone else (see SECURITY.md), and its
kind of file must be in the corpus of attacks.
"""

import ast
from collections import Counter
from pathlib import Path

import physicsnemo_flarepp

ROOT = Path(physicsnemo_flarepp.__file__).parent
# By the last name of the call, whatever it is imported as; some only together with their owner.
LOADERS = {
    "load_memmap", "load_file", "safe_open", "loadmat", "open_group", "open_array", "from_zarr",
    "from_checkpoint", "from_filename", "read_pickle", "unpickle", "loads", "memmap", "open_memmap",
    "instantiate", "import_module", "get_class", "get_method", "get_object", "locate", "run_path",
    "resolve_name", "run_module", "__import__", "eval", "exec", "compile", "unsafe_load",
    "full_load", "Unpickler", "create", "register_new_resolver", "read_hdf", "load_checkpoint",
    "unpack_archive", "extractall", "Popen", "system", "TarFile", "ZipFile",
}  # fmt: skip
OWNED = {
    "load": {"torch", "np", "numpy", "pickle", "yaml", "json", "joblib", "OmegaConf", "DomainMesh",
             "Mesh", "TensorDict", "zarr", "tensordict"},
    "read": {"pv", "pyvista", "meshio"},
    "open": {"zarr", "h5py", "tarfile"},
    "File": {"h5py"},
    "run": {"subprocess"},
    "call": {"subprocess"},
}  # fmt: skip
HARMLESS = {("json", "load"), ("json", "loads"), ("torch", "compile"), ("re", "compile")}

REVIEWED = {
    # Names of this package or of its own table.
    "__init__.py import_module": 1,
    "commands/dispatch.py import_module": 2,
    "models/layers.py import_module": 1,
    "meshes/vtk_process.py import_module": 1,
    "builtin/sets/__init__.py resolve_name": 1,
    "builtin/engine.py resolve_name": 1,
    "visualization/rendering.py import_module": 1,
    # Programs of this package, in a fresh interpreter.
    "meshes/reading.py Popen": 1,
    "visualization/rendering.py run": 1,
    # git, in the checkout of this package, for its commit.
    "runs/directory.py run": 1,
    # A class from the user's own config, or from a file whose author is trusted.
    "datapipes/sources.py get_class": 1,
    "models/feeding.py get_class": 2,
    "runs/model_files.py get_class": 1,
    # Values: YAML without tags that build objects, and no references in a file.
    "runs/trained_run.py create": 1,
    "models/feeding.py create": 1,
    "training/run.py create": 2,
    "commands/configs.py create": 1,
    "datapipes/config.py load": 1,
    "datapipes/inspection.py create": 1,
    "sequences/loading.py create": 1,
    # Weights: weights_only and torch's own list of types; members are never extracted.
    "runs/model_files.py ZipFile": 2,
    "runs/model_files.py load": 1,
    # What ranks of one job, the same program on the same user's machines, tell each other.
    "parallel/ranks.py imports pickle": 1,
    "parallel/ranks.py loads": 2,
    # Headers of arrays in .npz files; members are never extracted.
    "datapipes/readers/array_files.py ZipFile": 1,
    # Arrays: allow_pickle is False, by argument or by default.
    "datapipes/channels.py load": 1,
    "datapipes/readers/array_files.py load": 2,
    "builtin/engine.py load": 1,
    "inference/arrays.py load": 1,
    "sequences/reading.py load": 1,
    "inference/arrays.py open_memmap": 1,
    # Members of an archive: looked through first, then copied as bytes to names below the target.
    "datapipes/transfer.py open": 1,
    # Members of an archive, read as bytes and never extracted.
    "sequences/reading.py open": 1,
    # Formats of numbers: own datasets of HDF5, codecs of zarr, no pickles in memory maps.
    "datapipes/readers/array_files.py File": 4,
    "datapipes/readers/array_files.py open_group": 1,
    "datapipes/readers/array_files.py loadmat": 1,
    "datapipes/readers/contents.py load_memmap": 1,
    "datapipes/readers/contents.py open_group": 1,
    "datapipes/normalization.py safe_open": 1,
    "inference/state.py safe_open": 1,
    "evaluation/bounds.py safe_open": 1,
}


def loader_calls(source):
    """Names of the calls in a module that can run code from what they read."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.split(".")[0] for alias in node.names}
            names.add((getattr(node, "module", None) or "").split(".")[0])
            yield from sorted(f"imports {name}" for name in names & {"pickle", "marshal", "shelve"})
            yield from (a.name for a in node.names if a.asname and a.name in LOADERS)
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            owner, name = "", function.id
        elif isinstance(function, ast.Attribute):
            owner, name = ast.unparse(function.value).rsplit(".", 1)[-1], function.attr
        else:
            continue
        if (owner, name) in HARMLESS or owner and name in ("eval", "exec"):  # model.eval()
            continue
        if name in LOADERS or owner in OWNED.get(name, ()):
            yield name


def test_no_loader_is_new():
    found = Counter(
        f"{path.relative_to(ROOT)} {name}"
        for path in ROOT.rglob("*.py")
        for name in loader_calls(path.read_text())
    )
    # model_files imports pickle for the error that torch raises, not to load.
    assert found.pop("runs/model_files.py imports pickle") == 1
    assert found == REVIEWED


def test_the_search_sees_what_runs_code():
    source = """
import pickle
from hydra.utils import instantiate as make, get_class
a = torch.load(path); b = np.load(path); c = DomainMesh.load(path); d = pickle.loads(text)
e = yaml.load(text); f = Module.from_checkpoint(path); g = get_class(name)
h = json.loads(text); i = re.compile(text); j = Normalizer.load(path)
"""
    assert sorted(loader_calls(source)) == sorted(
        ["imports pickle", "instantiate", *["load"] * 4, "loads", "from_checkpoint", "get_class"]
    )
