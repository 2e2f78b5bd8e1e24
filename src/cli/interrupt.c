#include "cli/interrupt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <poll.h>
#include <unistd.h>

struct sp_interrupt {
    GThread *thread;
    int signal_fd;
    int stop_fd;   /* eventfd: ends the thread */
    int cancel_fd; /* eventfd: readable once cancelled */
    atomic_int cancelled_by;
    GMutex lock; /* guards forward, forward_user */
    void (*forward)(void *user);
    void *forward_user;
};

static void raise_event(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; /* the counter cannot overflow by a few ones */
}

/* Forwards the signal if that is wanted; false: it cancels. */
static bool forward_signal(struct sp_interrupt *i, int signal)
{
    if (signal != SIGINT)
        return false;
    g_mutex_lock(&i->lock);
    void (*fn)(void *user) = i->forward;
    i->forward = NULL;
    if (fn)
        fn(i->forward_user);
    g_mutex_unlock(&i->lock);
    return fn != NULL;
}

static gpointer signal_thread(gpointer data)
{
    struct sp_interrupt *i = data;
    for (;;) {
        struct pollfd fds[2] = {{.fd = i->signal_fd, .events = POLLIN},
                                {.fd = i->stop_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (fds[1].revents)
            return NULL;
        struct signalfd_siginfo info;
        if (!fds[0].revents || read(i->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
            continue;
        int signal = (int)info.ssi_signo;
        if (forward_signal(i, signal))
            continue;
        int none = 0;
        atomic_compare_exchange_strong(&i->cancelled_by, &none, signal);
        raise_event(i->cancel_fd);
    }
}

/* A signal that our starter has ignored (nohup, a shell's background job) stays ignored. */
static void add_unless_ignored(sigset_t *set, int signal)
{
    struct sigaction now;
    if (sigaction(signal, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaddset(set, signal);
}

struct sp_interrupt *sp_interrupt_start(void)
{
    struct sp_interrupt *i = g_new0(struct sp_interrupt, 1);
    g_mutex_init(&i->lock);
    sigset_t set;
    sigemptyset(&set);
    add_unless_ignored(&set, SIGINT);
    add_unless_ignored(&set, SIGTERM);
    add_unless_ignored(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    i->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    i->stop_fd = eventfd(0, EFD_CLOEXEC);
    i->cancel_fd = eventfd(0, EFD_CLOEXEC);
    if (i->signal_fd < 0 || i->stop_fd < 0 || i->cancel_fd < 0)
        g_error("cannot wait for signals: %s", g_strerror(errno));
    i->thread = g_thread_new("signals", signal_thread, i);
    return i;
}

void sp_interrupt_stop(struct sp_interrupt *i)
{
    if (!i)
        return;
    raise_event(i->stop_fd);
    g_thread_join(i->thread);
    close(i->signal_fd);
    close(i->stop_fd);
    close(i->cancel_fd);
    g_mutex_clear(&i->lock);
    g_free(i);
}

void sp_interrupt_forward(struct sp_interrupt *i, void (*fn)(void *user), void *user)
{
    g_mutex_lock(&i->lock);
    i->forward = fn;
    i->forward_user = user;
    g_mutex_unlock(&i->lock);
}

bool sp_interrupt_cancelled(void *interrupt)
{
    struct sp_interrupt *i = interrupt;
    return atomic_load(&i->cancelled_by) != 0;
}

int sp_interrupt_signal(const struct sp_interrupt *i)
{
    return atomic_load(&i->cancelled_by);
}

int sp_interrupt_fd(const struct sp_interrupt *i)
{
    return i->cancel_fd;
}
