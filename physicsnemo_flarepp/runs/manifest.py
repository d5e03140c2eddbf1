"""A manifest: the files that a folder vouches for and facts about them, under its own checksum."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from .. import __version__
from ..files import (
    Fingerprint,
    check_inside,
    checked_json,
    read_checked_json,
    replace_text,
    verify_file,
)


@dataclass(frozen=True)
class Manifest:
    """What the JSON file `path` says of the files beside it; runs and checkpoints have one each."""

    path: Path
    files: Mapping[str, Fingerprint] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, facts: Mapping[str, type | tuple[type, ...]]) -> Self:
        """Read a manifest with facts of these types; anything wrong is a ValueError."""
        try:
            content = read_checked_json(path)
            files = {name: Fingerprint(**entry) for name, entry in content["files"].items()}
            check_inside(files)
            found = {name: content[name] for name in facts}
            for name, kind in facts.items():
                if not isinstance(found[name], kind):
                    raise ValueError(f"its {name} is {found[name]!r}")
        except FileNotFoundError as error:
            raise ValueError(f"{path} is missing") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} cannot be used: {type(error).__name__}: {error}") from error
        return cls(path, files, found)

    def write(self) -> Self:
        """Bring the manifest to the disk."""
        content = {
            "files": {name: entry._asdict() for name, entry in self.files.items()},
            **self.facts,
            "package_version": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        replace_text(self.path, checked_json(content))
        return self

    def with_files(self, files: Mapping[str, Fingerprint], *, without: Iterable[str] = ()) -> Self:
        """Return a manifest with these files too, and none called as in `without`."""
        kept = {name: entry for name, entry in self.files.items() if name not in set(without)}
        return replace(self, files={**kept, **files})

    def with_facts(self, facts: Mapping[str, Any]) -> Self:
        """Return a manifest in which these facts are replaced."""
        return replace(self, facts={**self.facts, **facts})

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Raise ValueError if one of these files, by default any, is not as it was written."""
        for name in self.files if names is None else names:
            path = self.path.parent / name
            if name not in self.files:
                raise ValueError(f"{path} is not in {self.path.name}")
            verify_file(path, self.files[name])
