"""A library that is loaded into a process: flock fails, and files that are opened to be changed are listed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

int flock(int descriptor, int operation) {
    const char *failure = getenv("FLOCK_ERRNO");
    if (failure) { errno = atoi(failure); return -1; }
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(descriptor, operation);
}

/* Lists what is opened or cut in a folder, through links or not: "flags path". */
static void list(const char *path, int flags) {
    const char *folder = getenv("LIST_FOLDER"), *listing = getenv("LIST_FILE");
    if (!folder || !listing || !(flags & (O_WRONLY | O_RDWR))) return;
    char whole[2 * PATH_MAX], line[3 * PATH_MAX];
    if (path[0] == '/') snprintf(whole, sizeof whole, "%s", path);
    else { if (!getcwd(whole, PATH_MAX)) return; strcat(whole, "/"); strncat(whole, path, PATH_MAX - 1); }
    if (strncmp(whole, folder, strlen(folder))) return;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    int out = real(listing, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int size = snprintf(line, sizeof line, "%s %s\n", flags & (O_NOFOLLOW | O_DIRECTORY) ? "safe" : "UNSAFE", whole);
    if (write(out, line, size) != size) abort();
    close(out);
}

#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
    list(path, flags); \
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
    list(path, flags); \
    return ((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name))(folder, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)
#define FOPEN(name) FILE *name(const char *path, const char *mode) { \
    list(path, mode[0] == 'r' && !strchr(mode, '+') ? O_RDONLY : O_RDWR); \
    return ((FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, #name))(path, mode); }
FOPEN(fopen)
FOPEN(fopen64)
#define CUT(name) int name(const char *path, off_t size) { \
    list(path, O_RDWR); return ((int (*)(const char *, off_t))dlsym(RTLD_NEXT, #name))(path, size); }
CUT(truncate)
CUT(truncate64)
"""


def library_in(folder: Path) -> Path:
    """The library, compiled into a folder; the test is skipped where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler is here")
    source, library = folder / "preloaded.c", folder / "preloaded.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source, "-ldl"], check=True)
    return library


def with_library(library: Path, **more: object) -> dict[str, str]:
    """The environment of a process that loads the library."""
    return {**os.environ, "LD_PRELOAD": str(library), **{name: str(value) for name, value in more.items()}}
