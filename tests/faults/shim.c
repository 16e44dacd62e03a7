/* Faults of a disk for the process that this library is preloaded into.

   shim_arm(prefix, k, variant, report, journal) is called once in the process to be disturbed. From then on every call
   that concerns a file under `prefix` is counted and reported, one line a call, to the descriptor `report`; the k-th
   fails, with the error number `variant` of those that this kind of call can have, or does less than it was asked for.
   All that changes files under `prefix` is also recorded in the descriptor `journal`, if that is not negative, so that
   what a disk holds after a power cut can be worked out (see disks.py). System calls made here are not counted. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHORT -1
#define MOST 5

struct kind {
    const char *name;
    int errors[MOST];
};

static const struct kind OPEN = {"open", {EIO, EINTR}};
static const struct kind CREATE = {"create", {EIO, ENOSPC, EDQUOT, EINTR}};
static const struct kind READ = {"read", {EIO, EINTR, SHORT}};
static const struct kind WRITE = {"write", {EIO, ENOSPC, EDQUOT, EINTR, SHORT}};
static const struct kind SYNC = {"fsync", {EIO, ENOSPC, EDQUOT, EINTR}};
static const struct kind RENAME = {"rename", {EIO, ENOSPC, EDQUOT}};
static const struct kind UNLINK = {"unlink", {EIO}};
static const struct kind LINK = {"link", {EIO, ENOSPC, EDQUOT}};
static const struct kind MKDIR = {"mkdir", {EIO, ENOSPC, EDQUOT}};
static const struct kind RMDIR = {"rmdir", {EIO}};
static const struct kind TRUNCATE = {"truncate", {EIO, ENOSPC, EDQUOT, EINTR}};
static const struct kind ALLOCATE = {"allocate", {EIO, ENOSPC, EDQUOT, EINTR}};
static const struct kind CLOSE = {"close", {EIO, ENOSPC, EDQUOT, EINTR}};
static const struct kind MMAP = {"mmap", {ENOMEM, EIO}};
static const struct kind FLOCK = {"flock", {ENOLCK, EIO, EINTR}};

static char prefix[PATH_MAX];
static long chosen, count;
static int variant, report = -1, journal = -1, armed;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void shim_arm(const char *under, long k, int which, int report_to, int journal_to)
{
    snprintf(prefix, sizeof prefix, "%s", under);
    chosen = k;
    variant = which;
    report = report_to;
    journal = journal_to;
    count = 0;
    armed = 1;
}

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* --- names ------------------------------------------------------------------------------------ */

static int is_under(const char *path)
{
    size_t length = strlen(prefix);
    return !strncmp(path, prefix, length) && (path[length] == '/' || !path[length]);
}

static int name_of(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* The absolute name of `path`; returns whether it is under the prefix. */
static int resolve(int folder, const char *path, char *full)
{
    if (!armed || !path)
        return 0;
    char base[PATH_MAX] = "";
    if (path[0] != '/') {
        if (folder != AT_FDCWD)
            name_of(folder, base);
        else if (syscall(SYS_getcwd, base, sizeof base) < 0)
            return 0;
        strncat(base, "/", sizeof base - strlen(base) - 1);
    }
    if (snprintf(full, PATH_MAX, "%s%s", base, path) >= PATH_MAX)
        return 0;
    size_t length = strlen(full);
    while (length > 1 && (full[length - 1] == '/' || !strcmp(full + length - 2, "/.")))
        full[length -= full[length - 1] == '/' ? 1 : 2] = 0;
    return is_under(full);
}

static int concerns(int descriptor, char *path)
{
    if (!armed || descriptor < 0)
        return 0;
    int before = errno;
    int found = name_of(descriptor, path) && is_under(path);
    errno = before;
    return found;
}

/* --- faults ----------------------------------------------------------------------------------- */

/* The fault of the call that is about to be made: 0 for none, an error number, or SHORT. */
static int fault(const struct kind *kind, const char *path)
{
    int before = errno, among = 0, found = 0;
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    while (among < MOST && kind->errors[among])
        among++;
    if (number == chosen)
        found = kind->errors[variant % among];
    char line[PATH_MAX + 100];
    int length = snprintf(line, sizeof line, "%s %d %s %s\n", kind->name, among,
                          !found ? "-" : found == SHORT ? "SHORT" : strerrorname_np(found), path);
    if (report >= 0)
        syscall(SYS_write, report, line, length);
    errno = before;
    return found;
}

/* --- the journal ------------------------------------------------------------------------------ */

struct record {
    char what;
    uint64_t inode, at, size, first, second;
} __attribute__((packed));

static void write_all(const void *content, size_t size)
{
    for (size_t at = 0; at < size;) {
        long done = syscall(SYS_write, journal, (const char *)content + at, size - at);
        if (done <= 0)
            abort();
        at += done;
    }
}

static void record(char what, uint64_t inode, uint64_t at, const char *first, const char *second, uint64_t size)
{
    if (journal < 0)
        return;
    struct record made = {what, inode, at, size, strlen(first), strlen(second)};
    write_all(&made, sizeof made);
    write_all(first, made.first);
    write_all(second, made.second);
}

static uint64_t inode_of(int descriptor)
{
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}

static uint64_t inode_at(const char *path)
{
    struct stat found;
    return lstat(path, &found) ? 0 : found.st_ino;
}

static void record_written(int descriptor, const struct iovec *parts, int number, ssize_t done, off_t at)
{
    if (journal < 0 || done <= 0)
        return;
    if (at < 0)
        at = lseek(descriptor, 0, SEEK_CUR) - done;
    record('w', inode_of(descriptor), at, "", "", done);
    size_t left = done;
    for (int part = 0; part < number && left; part++) {
        size_t some = parts[part].iov_len < left ? parts[part].iov_len : left;
        write_all(parts[part].iov_base, some);
        left -= some;
    }
}

/* --- calls that name a file ------------------------------------------------------------------- */

/* Evaluates to the result of `call` on a name unless it is the one that fails; `then` is done if it succeeded. */
#define NAMED(kind, folder, path, failed, call, then)                                                                  \
    char full[PATH_MAX];                                                                                               \
    if (!resolve(folder, path, full))                                                                                  \
        return call;                                                                                                   \
    pthread_mutex_lock(&mutex);                                                                                        \
    int wrong = fault(kind, full);                                                                                     \
    __typeof__(call) result = failed;                                                                                  \
    if (wrong) {                                                                                                       \
        errno = wrong;                                                                                                 \
    } else {                                                                                                           \
        result = call;                                                                                                 \
        int before = errno;                                                                                            \
        if (result == 0 || failed != -1) {                                                                             \
            then;                                                                                                      \
        }                                                                                                              \
        errno = before;                                                                                                \
    }                                                                                                                  \
    pthread_mutex_unlock(&mutex);                                                                                      \
    return result;

static int opened(int folder, const char *path, int flags, mode_t mode)
{
    int (*call)(int, const char *, int, ...) = REAL(openat);
    char full[PATH_MAX];
    if (!resolve(folder, path, full))
        return call(folder, path, flags, mode);
    pthread_mutex_lock(&mutex);
    int is_new = (flags & O_CREAT) && !inode_at(full), result = -1;
    int wrong = fault(flags & (O_CREAT | O_WRONLY | O_RDWR) ? &CREATE : &OPEN, full);
    if (wrong)
        errno = wrong;
    else
        result = call(folder, path, flags, mode);
    int before = errno;
    if (result >= 0 && is_new)
        record('c', inode_of(result), 0, full, "", 0);
    else if (result >= 0 && flags & O_TRUNC)
        record('t', inode_of(result), 0, "", "", 0);
    errno = before;
    pthread_mutex_unlock(&mutex);
    return result;
}

#define MODE                                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }

int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    char target[PATH_MAX];
    if (!resolve(to, new, target))
        return REAL(renameat2)(from, old, to, new, flags);
    NAMED(&RENAME, from, old, -1, REAL(renameat2)(from, old, to, new, flags), record('r', 0, 0, full, target, 0))
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *path, int flags)
{
    NAMED(flags & AT_REMOVEDIR ? &RMDIR : &UNLINK, folder, path, -1, REAL(unlinkat)(folder, path, flags),
          record('u', 0, 0, full, "", 0))
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) { return !unlink(path) ? 0 : errno == EISDIR ? rmdir(path) : -1; }

int mkdirat(int folder, const char *path, mode_t mode)
{
    NAMED(&MKDIR, folder, path, -1, REAL(mkdirat)(folder, path, mode), record('m', inode_at(full), 0, full, "", 0))
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    char source[PATH_MAX];
    resolve(from, old, source);
    NAMED(&LINK, to, new, -1, REAL(linkat)(from, old, to, new, flags), record('l', 0, 0, source, full, 0))
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *target, int folder, const char *path)
{
    NAMED(&LINK, folder, path, -1, REAL(symlinkat)(target, folder, path), record('y', 0, 0, target, full, 0))
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int truncate(const char *path, off_t size)
{
    NAMED(&TRUNCATE, AT_FDCWD, path, -1, REAL(truncate)(path, size), record('t', inode_at(full), size, "", "", 0))
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

/* --- calls on a descriptor -------------------------------------------------------------------- */

#define ON_DESCRIPTOR(kind, descriptor, call, then)                                                                    \
    char path[PATH_MAX];                                                                                               \
    if (!concerns(descriptor, path))                                                                                   \
        return call;                                                                                                   \
    pthread_mutex_lock(&mutex);                                                                                        \
    int wrong = fault(kind, path), result = -1;                                                                        \
    if (wrong) {                                                                                                       \
        errno = wrong;                                                                                                 \
    } else {                                                                                                           \
        result = call;                                                                                                 \
        int before = errno;                                                                                            \
        if (!result) {                                                                                                 \
            then;                                                                                                      \
        }                                                                                                              \
        errno = before;                                                                                                \
    }                                                                                                                  \
    pthread_mutex_unlock(&mutex);                                                                                      \
    return result;

int fsync(int descriptor)
{
    ON_DESCRIPTOR(&SYNC, descriptor, REAL(fsync)(descriptor), record('s', inode_of(descriptor), 0, path, "", 0))
}
int fdatasync(int descriptor) { return fsync(descriptor); }

int ftruncate(int descriptor, off_t size)
{
    ON_DESCRIPTOR(&TRUNCATE, descriptor, REAL(ftruncate)(descriptor, size),
                  record('t', inode_of(descriptor), size, "", "", 0))
}
int ftruncate64(int descriptor, off64_t size) { return ftruncate(descriptor, size); }

static int allocated(int descriptor, off_t at, off_t size)
{
    char path[PATH_MAX];
    int wrong = concerns(descriptor, path) ? fault(&ALLOCATE, path) : 0;
    return wrong ? wrong : REAL(posix_fallocate)(descriptor, at, size);
}
int posix_fallocate(int descriptor, off_t at, off_t size) { return allocated(descriptor, at, size); }
int posix_fallocate64(int descriptor, off64_t at, off64_t size) { return allocated(descriptor, at, size); }

int flock(int descriptor, int what)
{
    char path[PATH_MAX];
    int wrong = concerns(descriptor, path) ? fault(&FLOCK, path) : 0;
    if (!wrong)
        return REAL(flock)(descriptor, what); /* it may wait for another thread: not under the mutex */
    errno = wrong;
    return -1;
}

int close(int descriptor)
{
    char path[PATH_MAX];
    int wrong = concerns(descriptor, path) ? fault(&CLOSE, path) : 0;
    int result = REAL(close)(descriptor); /* Linux closes it whatever it says */
    if (!wrong)
        return result;
    errno = wrong;
    return -1;
}

static void *mapped(void *where, size_t size, int protection, int flags, int descriptor, off_t at)
{
    char path[PATH_MAX];
    int wrong = concerns(descriptor, path) ? fault(&MMAP, path) : 0;
    if (!wrong)
        return REAL(mmap)(where, size, protection, flags, descriptor, at);
    errno = wrong;
    return MAP_FAILED;
}
void *mmap(void *where, size_t size, int protection, int flags, int descriptor, off_t at)
{
    return mapped(where, size, protection, flags, descriptor, at);
}
void *mmap64(void *where, size_t size, int protection, int flags, int descriptor, off64_t at)
{
    return mapped(where, size, protection, flags, descriptor, at);
}

/* --- reading and writing ---------------------------------------------------------------------- */

/* At most half of what was asked for, if that can be halved. */
static int halved(const struct iovec *parts, int number, struct iovec *less)
{
    size_t total = 0;
    for (int part = 0; part < number; part++)
        total += parts[part].iov_len;
    size_t left = total > 1 ? total / 2 : total;
    int used = 0;
    for (; used < number && left; used++) {
        less[used] = parts[used];
        if (less[used].iov_len > left)
            less[used].iov_len = left;
        left -= less[used].iov_len;
    }
    return used;
}

/* `at` is -1 for where the descriptor stands. */
static ssize_t transferred(int writes, int descriptor, const struct iovec *parts, int number, off_t at)
{
    char path[PATH_MAX];
    struct iovec less[number ? number : 1];
    int counted = concerns(descriptor, path), wrong = 0;
    ssize_t result = -1;
    if (counted) {
        pthread_mutex_lock(&mutex);
        wrong = fault(writes ? &WRITE : &READ, path);
        if (wrong == SHORT) {
            number = halved(parts, number, less);
            parts = less;
            wrong = 0;
        }
    }
    if (wrong)
        errno = wrong;
    else if (writes)
        result = at < 0 ? syscall(SYS_writev, descriptor, parts, number)
                        : syscall(SYS_pwritev, descriptor, parts, number, at, 0);
    else
        result = at < 0 ? syscall(SYS_readv, descriptor, parts, number)
                        : syscall(SYS_preadv, descriptor, parts, number, at, 0);
    if (counted) {
        int before = errno;
        if (writes)
            record_written(descriptor, parts, number, result, at);
        errno = before;
        pthread_mutex_unlock(&mutex);
    }
    return result;
}

#define PART(buffer, size) &(struct iovec){(void *)(buffer), size}, 1

ssize_t read(int fd, void *to, size_t size) { return transferred(0, fd, PART(to, size), -1); }
ssize_t pread(int fd, void *to, size_t size, off_t at) { return transferred(0, fd, PART(to, size), at); }
ssize_t pread64(int fd, void *to, size_t size, off64_t at) { return transferred(0, fd, PART(to, size), at); }
ssize_t __read_chk(int fd, void *to, size_t size, size_t) { return transferred(0, fd, PART(to, size), -1); }
ssize_t __pread_chk(int fd, void *to, size_t size, off_t at, size_t) { return transferred(0, fd, PART(to, size), at); }
ssize_t __pread64_chk(int fd, void *to, size_t size, off64_t at, size_t) { return transferred(0, fd, PART(to, size), at); }
ssize_t readv(int fd, const struct iovec *parts, int number) { return transferred(0, fd, parts, number, -1); }
ssize_t preadv(int fd, const struct iovec *parts, int number, off_t at) { return transferred(0, fd, parts, number, at); }
ssize_t preadv64(int fd, const struct iovec *parts, int number, off64_t at) { return transferred(0, fd, parts, number, at); }
ssize_t write(int fd, const void *from, size_t size) { return transferred(1, fd, PART(from, size), -1); }
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) { return transferred(1, fd, PART(from, size), at); }
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) { return transferred(1, fd, PART(from, size), at); }
ssize_t writev(int fd, const struct iovec *parts, int number) { return transferred(1, fd, parts, number, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t at) { return transferred(1, fd, parts, number, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int number, off64_t at) { return transferred(1, fd, parts, number, at); }
