/* Preloaded into a coordinator: fsync and fdatasync fail while the file $VARUNA_CHAOS_FSYNC exists. */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(void) {
    const char *path = getenv("VARUNA_CHAOS_FSYNC");
    return path != NULL && access(path, F_OK) == 0;
}

int fsync(int file) {
    if (fails()) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    if (fails()) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, file);
}
