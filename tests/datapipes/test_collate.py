import pytest
import torch

from physicsnemo_flarepp.datapipes import DrivAerMLReader, PadCollator


@pytest.fixture
def samples(ragged_set):
    reader = DrivAerMLReader(ragged_set)
    return [reader[2], reader[0]]


def test_ragged_cases_are_padded_and_masked(samples):
    batch, metadata = PadCollator(collate_metadata=True)(samples)
    lengths = [34, 30]
    assert batch.batch_size == (2,) and batch["coordinates"].shape == (2, 34, 3)
    assert batch["token_mask"].dtype == torch.bool
    assert batch["token_mask"].sum(1).tolist() == lengths
    assert batch["case_index"].tolist() == [2, 0]
    assert [m["case_id"] for m in metadata] == ["run_2", "run_0"]
    for row, (sample, _) in enumerate(samples):
        for key in ("coordinates", "fields", "tokens"):
            assert torch.equal(batch[key][row, : lengths[row]], sample[key])
            assert not batch[key][row, lengths[row] :].any()


def test_equal_lengths_carry_no_mask(samples):
    batch = PadCollator()([samples[0], samples[0]])
    assert "token_mask" not in batch.keys()
    assert torch.equal(batch["fields"][1], samples[0][0]["fields"])
