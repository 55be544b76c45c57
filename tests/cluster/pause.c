/* Holds a pod's namespaces: waits for ever, and for the children that nobody else waits for. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void down(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, down);
    signal(SIGTERM, down);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
