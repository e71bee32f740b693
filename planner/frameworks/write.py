"""How do launch files reach a folder so that nobody ever finds half of them?

Everything is written beside the folder first. A new or empty folder then appears at once; in a folder that
holds other things each file is replaced at once. Left out: deleting anything.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import FileInputError
from planner.spec.save import resolved


def write_files(files: Mapping[str, str], folder: Path, force: bool = False) -> list[Path]:
    """Write `files` (name -> text) into `folder`; scripts become executable. Returns their paths.

    Raises `FileInputError` where a file exists and `force` is not given, or nothing can be written.
    """
    for name in files:
        assert name == Path(name).name, f"{name!r} is no plain file name"
    try:
        target = resolved(folder)
        if target.exists() and not target.is_dir():
            raise FileInputError(str(folder), "must be a folder", "a file", "name another folder with -o")
        taken = [name for name in files if (target / name).exists() or (target / name).is_symlink()]
        if taken and not force:
            must = "must not hold files that the export would replace"
            raise FileInputError(str(folder), must, ", ".join(taken), "add --force, or name another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            _stage(files, staged)
            _publish(files, staged, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileInputError(str(folder), "must be a folder that can be written to", reason) from None
    return [folder / name for name in files]


def _stage(files: Mapping[str, str], staged: Path) -> None:
    for name, text in files.items():
        path = staged / name
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def _publish(files: Mapping[str, str], staged: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        staged.chmod(0o755)
        os.rename(staged, target)  # replaces an empty folder
        return
    for name in files:
        os.replace(staged / name, target / name)
