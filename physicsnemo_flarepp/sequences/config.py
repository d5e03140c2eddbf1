"""Settings of the data of sequence tasks; nothing slow is imported here."""

from dataclasses import dataclass

from ..datapipes.config import setting


@dataclass
class SequenceConfig:
    """Which sequences a run reads, and how; an unknown key is an error."""

    sequences: str = setting("listops", "listops, text, retrieval, image or pathfinder.")
    root: str | None = setting(
        None, "Folder of the published files; for text also the archive itself."
    )
    builtin: str | None = setting(
        None, "Generated set instead: listops, listops_short, pathfinder or pathfinder_small."
    )
    length: int = setting(2048, "Most tokens of a sequence; texts are cut there.")
    mask_padding: bool = setting(
        True,
        "Hide padding from mixers and pooling. false: pad every sequence to `length` with a token "
        "like any other, as in the authors' runs.",
    )
    n_train: int | None = setting(None, "Training sequences; null takes all.")
    n_val: int | None = setting(None, "Validation sequences; null takes all.")
    n_test: int | None = setting(None, "Test sequences; null takes all.")
    downscale: int = setting(1, "Images: pixels per side that are averaged into one.")
    batch_size: int = setting(32, "Training sequences per step over all data ranks.")
    batch_size_test: int = setting(64, "Sequences per batch of an evaluation, on each rank.")
