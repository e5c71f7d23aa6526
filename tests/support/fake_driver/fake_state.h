/* The state of the fake GPUs, in one mapped file that fake_nvml.c, fake_cuda.c and fake_driver.py share.
 *
 * FAKE_GPU_STATE names the file. Memory belongs to live processes: the memory of an entry is free when its process is
 * dead, reaped or not, or when its pid belongs to a later process. Changes take effect at the next call.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { COMPUTE = 1, GRAPHICS = 2, NOT_AVAILABLE = 4, ALWAYS_ALIVE = 8, MPS = 16 };
enum { MAX_GPUS = 16, MAX_ENTRIES = 512, MAX_ACCOUNTS = 1024, MAX_CHANGES = 4096, MAX_XIDS = 15 };
enum { NOBODY = 1 }; /* the start time of a free entry: no process is as old as the kernel */

typedef struct {
    char uuid[96], name[96];
    uint64_t total, reserved, context; /* context: bytes that a process holds once it uses CUDA */
    int32_t error, memory_error;       /* returned by every call on this GPU, and by its memory calls only */
    uint32_t hang;                     /* calls on this GPU wait while it is not 0 */
    uint32_t unsupported;              /* a bit for each call that this GPU does not support */
    int32_t temperature, memory_temperature, gpu_max, slowdown, margin, gpu_max_tlimit, slowdown_tlimit;
    uint32_t power_mw, utilisation, memory_utilisation, compute_mode;
    uint32_t mig; /* MIG is on */
    int32_t parent, slot; /* of an instance: the index of its card, and its slot there; else -1 */
    uint64_t reasons, ecc;
    uint64_t accounting; /* whether the driver reports the accounts below; it always keeps them */
    uint64_t persistence;
    uint64_t capability; /* for CUDA: 10 major + minor */
    uint32_t rows, retirement; /* retired rows of memory; 1: one is pending, 2: one failed */
    uint32_t xid_count, xids[MAX_XIDS]; /* the errors of the driver so far */
} Gpu;
typedef struct {
    uint32_t gpu, pid, flags;
    uint32_t utilisation; /* in percent: of the cores, of the memory << 8, of the encoder << 16 */
    uint64_t bytes, start; /* start 0: any process with that pid */
} Entry;
/* The most that a process ever held on a GPU. Samples are compared with it. It outlives the process. */
typedef struct {
    uint32_t gpu, pid;
    uint64_t bytes, start;
} Account;
/* One step of what a process holds, in the order of the steps. The total of a run at any time follows from them.
 * A process that dies leaves no step. */
typedef struct {
    uint64_t at; /* nanoseconds on the wall clock */
    uint32_t gpu, pid;
    uint64_t start, bytes, refused; /* what it holds from then on; refused: what it asked for and did not get */
} Change;
typedef struct {
    uint32_t gpu_count, mig_count, entry_count; /* instances follow the cards */
    int32_t init_error, call_error; /* returned by init, and by every call after it */
    uint32_t v2_missing, inits, shutdowns, v2_calls;
    uint32_t missing; /* a bit for each call that this driver does not have */
    uint32_t cuda; /* the newest CUDA version that it supports: 1000 major + 10 minor */
    Gpu gpus[MAX_GPUS];
    Entry entries[MAX_ENTRIES];
    uint32_t levels[MAX_GPUS][MAX_GPUS], links[MAX_GPUS][MAX_GPUS];
    uint64_t account_count; /* all accounts ever made; the ring keeps the newest */
    Account accounts[MAX_ACCOUNTS];
    uint64_t change_count; /* as for the accounts */
    Change changes[MAX_CHANGES];
} State;

static State *state;

static inline int map_state(void) {
    const char *path = getenv("FAKE_GPU_STATE");
    int file = state || !path ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return state != NULL;
    void *at = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED) state = at;
    return state != NULL;
}

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

/* Makes each read and each change atomic. Each lock opens its own descriptor: all copies of a descriptor share its
 * lock, and so do forked children. */
static inline int lock(void) {
    pthread_mutex_lock(&threads);
    int file = open(getenv("FAKE_GPU_STATE"), O_RDONLY | O_CLOEXEC);
    flock(file, LOCK_EX);
    return file;
}
static inline int unlock(int file, int error) {
    close(file);
    pthread_mutex_unlock(&threads);
    return error;
}

/* The start time of the process in the kernel's ticks; 0 when it is dead. */
static inline uint64_t start_of(uint32_t pid) {
    char path[32], line[1024], *at;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, line, sizeof line - 1);
    close(file);
    if (size <= 0) return 0;
    line[size] = 0;
    at = strrchr(line, ')');
    if (!at || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Needs the lock, as all functions below. Frees the entry of a dead process at once, so that it is not checked again. */
static inline int alive(Entry *entry) {
    if (entry->start == NOBODY) return 0;
    if (entry->flags & ALWAYS_ALIVE) return 1;
    errno = 0;
    uint64_t start = start_of(entry->pid);
    if (start && (!entry->start || entry->start == start)) return 1;
    if (entry->start && (start || !errno || errno == ENOENT || errno == ESRCH)) *entry = (Entry){.start = NOBODY};
    return 0;
}

static inline int counts(Entry *entry, const Gpu *gpu) { return state->gpus + entry->gpu == gpu && alive(entry); }

static inline uint64_t allocated(const Gpu *gpu) {
    uint64_t sum = 0;
    unsigned char there[MAX_ENTRIES];
    for (uint32_t i = 0; i < state->entry_count; i++) there[i] = counts(&state->entries[i], gpu);
    for (uint32_t i = 0; i < state->entry_count; i++) {
        const Entry *mine = &state->entries[i];
        int largest = there[i]; /* a process that computes and draws has two entries for the same bytes */
        for (uint32_t j = 0; largest && j < state->entry_count; j++) {
            const Entry *other = &state->entries[j];
            if (j != i && there[j] && other->pid == mine->pid &&
                (other->bytes > mine->bytes || (other->bytes == mine->bytes && j < i)))
                largest = 0;
        }
        if (largest) sum += mine->bytes;
    }
    uint64_t room = gpu->total - gpu->reserved;
    return sum < room ? sum : room;
}

/* The newest account of the process, NULL when it has none. */
static inline Account *account_of(uint32_t gpu, uint32_t pid, uint64_t start) {
    uint64_t oldest = state->account_count > MAX_ACCOUNTS ? state->account_count - MAX_ACCOUNTS : 0;
    for (uint64_t i = state->account_count; i-- > oldest;) {
        Account *each = &state->accounts[i % MAX_ACCOUNTS];
        if (each->gpu == gpu && each->pid == pid && (!start || each->start == start)) return each;
    }
    return NULL;
}

static inline void keep_change(const Entry *entry, uint64_t refused) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    state->changes[state->change_count % MAX_CHANGES] =
        (Change){now.tv_sec * 1000000000ull + now.tv_nsec, entry->gpu, entry->pid, entry->start, entry->bytes, refused};
    __atomic_fetch_add(&state->change_count, 1, __ATOMIC_RELEASE);
}

static inline void keep_account(const Entry *entry) {
    Account *account = account_of(entry->gpu, entry->pid, entry->start);
    if (!account) {
        account = &state->accounts[state->account_count++ % MAX_ACCOUNTS];
        *account = (Account){.gpu = entry->gpu, .pid = entry->pid, .start = entry->start};
    }
    if (entry->bytes > account->bytes) account->bytes = entry->bytes;
    keep_change(entry, 0);
}
