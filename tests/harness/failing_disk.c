/* A disk that fails or is slow, for a process that has this preloaded (LD_PRELOAD). While the file that FAILING_DISK names is
 * there, what its first byte says goes wrong: `s` is a sync, of which nothing is written; `w` is a write for which there is no
 * room, and of which a part is written. Writes and syncs take SLOW_DISK times as long as they would. With NO_FALLOCATE it is a
 * file system that preallocates nothing, from the start on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The server makes this system call without the C library, so it is the kernel that has to refuse it. */
__attribute__((constructor)) static void refuse_fallocate(void) {
    if (!getenv("NO_FALLOCATE")) return;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        _exit(1);
    }
}

static char fault(void) {
    char kind = 0;
    const char *name = getenv("FAILING_DISK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, &kind, 1) != 1) kind = 0;
        close(file);
    }
    return kind;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* What a slow disk takes at most, in seconds: a process may have been stopped in the middle of a write, for which no disk is to
 * be blamed. */
static const double SLOWEST = 0.5;

/* Waits for the rest of what a slow disk would have taken since then. */
static void slow_down(double since) {
    const char *factor = getenv("SLOW_DISK");
    double rest = factor ? (atof(factor) - 1) * (now() - since) : 0;
    if (rest > SLOWEST) rest = SLOWEST;
    if (rest > 0) {
        int error = errno;
        struct timespec time = {(time_t)rest, (long)((rest - (time_t)rest) * 1e9)};
        while (nanosleep(&time, &time) < 0 && errno == EINTR) {}
        errno = error;
    }
}

static int failing_sync(const char *name, int file) {
    if (fault() == 's') {
        errno = EIO;
        return -1;
    }
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    double since = now();
    int result = sync(file);
    slow_down(since);
    return result;
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
    double since = now();
    ssize_t written = write(file, bytes, count, offset);
    slow_down(since);
    return written;
}
