"""Inputs that are URLs: file systems of pyarrow (s3://, gs://, hdfs://) and, if installed, of fsspec."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from ooc_pegasos.errors import InputError

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_remote(name: str) -> bool:
    """True if an input is a URL."""
    return _URL.match(name) is not None


def url_without_secrets(url: str) -> str:
    """Return a URL without secrets."""
    return re.sub(r"\?.*$", "", re.sub(r"//[^/@]*@", "//", url))


def is_metadata_file(path: str) -> bool:
    """True if a file in a folder is metadata, by the convention of Hadoop: `_SUCCESS`, `_delta_log/0.json`."""
    return any(part.startswith(("_", ".")) and "=" not in part for part in path.split("/"))


def stat_remote(url: str) -> tuple[int, int]:
    """Return (size, time of the last change in nanoseconds) of a file."""
    filesystem, path = _filesystem_of(url)
    with _errors(url):
        info = filesystem.get_file_info(path)
    if not info.is_file:
        raise InputError(f"{url_without_secrets(url)}: no such file; check the address")
    return info.size or 0, info.mtime_ns or 0


def open_remote(url: str) -> Any:
    """Open a file for random access."""
    filesystem, path = _filesystem_of(url)
    with _errors(url):
        return filesystem.open_input_file(path)


def expand_url(url: str) -> list[str]:
    """Return the files that a URL names, sorted: the file itself, those below it, or those that match a pattern."""
    import pyarrow.fs as pafs

    head, question, options = url.partition("?")
    if "=" not in options:  # a question mark of a pattern
        head, question, options = url, "", ""
    base = re.split(r"[*?\[]", head)[0]
    if base != head:
        base = base[: base.rfind("/") + 1].rstrip("/")
    filesystem, path = _filesystem_of(base + question + options)
    with _errors(url):
        info = filesystem.get_file_info(path)
        if info.is_file:
            return [url]
        below = filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    wanted = path + head[len(base) :] if base != head else path.rstrip("/") + "/*"
    start, everything = head[: len(base)], base == head
    found = [
        start + file.path[len(path) :] + question + options
        for file in below
        if file.is_file
        and fnmatch.fnmatchcase(file.path, wanted)
        and not (everything and is_metadata_file(file.path[len(path) :]))
    ]
    if not found:
        raise InputError(f"{url_without_secrets(url)}: no such file, and none below it or like it; check the address")
    return sorted(found)


def _filesystem_of(url: str) -> tuple[Any, str]:
    import pyarrow as pa
    import pyarrow.fs as pafs

    try:
        filesystem, path = pafs.FileSystem.from_uri(url)
        return filesystem, path
    except pa.ArrowInvalid as error:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            other, path = url_to_fs(url)
        except Exception as unknown:  # each file system has its own
            problem = f"pyarrow: {error}; fsspec: {unknown}"
            raise InputError(
                f"{url_without_secrets(url)}: {problem}; check the address, or install what it needs"
            ) from error
        return pafs.PyFileSystem(pafs.FSSpecHandler(other)), path
    except OSError as error:
        raise InputError(
            f"{url_without_secrets(url)}: {' '.join(str(error).split())[:160]}; check the address"
        ) from error


class _errors:  # noqa: N801
    """Convert errors of a file system into InputError."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, error: BaseException | None, _where: Any) -> None:
        import pyarrow as pa

        if isinstance(error, OSError | pa.ArrowException):
            problem = " ".join(str(error).split())[:160]
            raise InputError(
                f"{url_without_secrets(self._url)}: {problem}; check the address and your rights"
            ) from error
