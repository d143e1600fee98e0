/* A disk that fails, for a process that has this preloaded (LD_PRELOAD). While the file that FAILING_DISK names is there,
 * what its first byte says goes wrong: `s` is a sync, of which nothing is written; `w` is a write for which there is no room,
 * and of which a part is written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char fault(void) {
    char kind = 0;
    int file = open(getenv("FAILING_DISK"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, &kind, 1) != 1) kind = 0;
        close(file);
    }
    return kind;
}

static int failing_sync(const char *name, int file) {
    if (fault() == 's') {
        errno = EIO;
        return -1;
    }
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return sync(file);
}

int fsync(int file) {
    return failing_sync("fsync", file);
}

int fdatasync(int file) {
    return failing_sync("fdatasync", file);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    if (fault() == 'w' && (count /= 2) == 0) {
        errno = ENOSPC;
        return -1;
    }
    ssize_t (*write)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return write(file, bytes, count, offset);
}
