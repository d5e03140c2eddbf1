from physicsnemo_flarepp.datapipes import BENCHMARKS
from physicsnemo_flarepp.visualization import Preset, preset_for
from physicsnemo_flarepp.visualization.views import PRESETS


def test_every_benchmark_has_a_preset():
    assert set(BENCHMARKS) <= set(PRESETS)


def test_presets_name_channels_of_their_benchmarks():
    for name, spec in BENCHMARKS.items():
        preset = preset_for(name, builtin=True)
        assert preset.source is None or preset.source in spec.inputs
        if "z" not in spec.inputs:  # vehicles share the names of several publishers
            assert set(preset.labels) | set(preset.units) <= {*spec.inputs, *spec.outputs}


def test_units_of_the_published_elasticity_are_not_invented():
    assert preset_for("elasticity").units == {}
    assert preset_for("elasticity", builtin=True).units == {"stress": "kPa"}


def test_sets_without_a_preset_go_by_dimension():
    assert preset_for("my own", dimension=3) == preset_for("cars")
    assert preset_for("my own", dimension=2) == Preset()


def test_every_field_of_the_built_in_cars_and_their_air_has_a_label_and_units():
    preset = preset_for("car_volumes", builtin=True)
    for name in ("pMeanTrim", "wallShearStressMeanTrim", "UMeanTrim", "UMeanTrim_x"):
        assert preset.labels[name] != name and preset.units[name]
