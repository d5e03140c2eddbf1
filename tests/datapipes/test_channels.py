import json

import pytest

from physicsnemo_flarepp.datapipes import DrivAerMLReader
from physicsnemo_flarepp.datapipes.channels import Channels

SHEAR = "wallShearStressMeanTrim"


def test_channels_are_those_of_the_samples_and_survive_their_file(ragged_set, tmp_path):
    reader = DrivAerMLReader(ragged_set, fields=["pMeanTrim", SHEAR])
    channels = Channels.of_reader(reader)
    sample, metadata = reader[0]
    assert list(channels.field_names) == metadata["field_names"]
    assert sum(channels.fields.values()) == sample["fields"].shape[1]
    assert channels.association == "cell"  # of files of cell centres
    channels.save(tmp_path)
    assert Channels.load(tmp_path) == channels


def test_errors_are_joint_or_by_field():
    fields = {"p": 1, "shear": 3}
    assert Channels(3, fields, {}, {}, "cell").norms == fields
    assert Channels(3, fields, {}, {}, "cell", joint=True).norms == {"p shear": 4}
    assert Channels(3, fields, {}, {}, "cell").columns("shear") == slice(1, 4)
    with pytest.raises(ValueError, match=r"field 'q' is not among the fields \['p', 'shear'\]"):
        Channels(3, fields, {}, {}, "cell").columns("q")


@pytest.mark.parametrize(
    "change", [{"association": "edge"}, {"fields": {"p": 0}}, {"coordinates": "3"}, {"more": 1}]
)
def test_a_file_that_cannot_be_right_is_named(tmp_path, change):
    Channels(3, {"p": 1}, {}, {}, "cell").save(tmp_path)
    path = tmp_path / "channels.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="channels.json cannot be used"):
        Channels.load(tmp_path)
