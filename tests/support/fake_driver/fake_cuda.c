/* The part of libcuda.so.1 that job.py uses, over the same state as fake_nvml.c.
 *
 * It has these properties of the real library: CUDA_VISIBLE_DEVICES is read once, at cuInit. A process is charged a
 * context on each GPU that it uses. Memory comes in pages of 2 MiB. A full GPU returns an error. All memory is free
 * when the process ends. A forked child of an initialised process cannot use CUDA. Devices are in the order of their
 * bus, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. A process is a client of MPS if a control daemon runs in its pipe
 * directory, which the file "control" stands for. A client is in a list of its own, may share a GPU in exclusive mode,
 * and keeps to its limit of memory.
 */
#include "fake_state.h"

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100,
       INVALID_DEVICE = 101, INVALID_CONTEXT = 201, UNKNOWN = 999 };
enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3, MAX_BLOCKS = 4096 };
static const uint64_t PAGE = 2 << 20;

typedef struct { uint64_t at, bytes; Gpu *gpu; } Block;

static Gpu *visible[MAX_GPUS];
static int visible_count;
static pid_t owner;
static Block blocks[MAX_BLOCKS];
static uint64_t next_at = 0x7f0000000000;
static int contexts[MAX_GPUS];
static __thread Gpu *current;
static int is_client;              /* of MPS */
static uint64_t limits[MAX_GPUS]; /* of this client on each visible GPU; 0: none */

static Gpu *named(const char *word) {
    Gpu *found = NULL;
    size_t length = strlen(word);
    int is_uuid = !strncmp(word, "GPU-", 4) || !strncmp(word, "MIG-", 4);
    if (!is_uuid) {
        char *end;
        long index = strtol(word, &end, 10);
        return *word && !*end && index >= 0 && index < state->gpu_count && !state->gpus[index].mig
                   ? &state->gpus[index] : NULL;
    }
    for (uint32_t i = 0; i < state->gpu_count + state->mig_count; i++) {
        if (strncmp(word, state->gpus[i].uuid, length) || state->gpus[i].mig) continue;
        if (found) return NULL; /* an ambiguous prefix */
        found = &state->gpus[i];
    }
    return found;
}

static void see(const char *list) {
    char copy[4096], *rest = copy, *word;
    visible_count = 0;
    if (!list) {
        for (uint32_t i = 0; i < state->gpu_count; i++)
            if (!state->gpus[i].mig) visible[visible_count++] = &state->gpus[i];
        if (!visible_count && state->mig_count) visible[visible_count++] = &state->gpus[state->gpu_count];
        return;
    }
    snprintf(copy, sizeof copy, "%s", list);
    while ((word = strsep(&rest, ",")) && visible_count < MAX_GPUS) {
        while (*word == ' ') word++;
        word[strcspn(word, " ")] = 0;
        Gpu *gpu = named(word);
        if (!gpu) return; /* an invalid name ends the list */
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == gpu) { visible_count = 0; return; } /* a repeat gives no device at all */
        visible[visible_count++] = gpu;
        if (gpu->parent >= 0) { /* a process can use one instance and no other device */
            visible[0] = gpu;
            visible_count = 1;
            return;
        }
    }
}

/* Without a daemon the program runs without MPS, as with the real library. */
static void join_mps(void) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY"), *at = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char path[4096];
    snprintf(path, sizeof path, "%s/control", directory ? directory : "/tmp/nvidia-mps");
    is_client = !access(path, F_OK);
    while (is_client && at && *at) {
        unsigned ordinal;
        unsigned long long mib;
        if (sscanf(at, "%u=%lluM", &ordinal, &mib) == 2 && ordinal < MAX_GPUS) limits[ordinal] = mib << 20;
        at = strchr(at, ',');
        at += at != NULL;
    }
}

static int ready(void) { return owner == getpid() ? OK : NOT_INITIALIZED; }

int cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (owner) return ready();
    if (!map_state() || state->init_error) return state ? UNKNOWN : NO_DEVICE;
    see(getenv("CUDA_VISIBLE_DEVICES"));
    if (!visible_count) return NO_DEVICE;
    join_mps();
    owner = getpid();
    return OK;
}
int cuDriverGetVersion(int *out) { return *out = 13000, OK; }
int cuDeviceGetCount(int *out) { return ready() ? ready() : (*out = visible_count, OK); }
int cuDeviceGet(int *out, int ordinal) {
    if (ready()) return ready();
    return ordinal < 0 || ordinal >= visible_count ? INVALID_DEVICE : (*out = ordinal, OK);
}
int cuDeviceGetName(char *out, int size, int device) {
    if (!ready()) snprintf(out, size, "%s", visible[device]->name);
    return ready();
}
int cuDeviceGetUuid_v2(unsigned char *out, int device) {
    if (ready()) return ready();
    const char *at = visible[device]->uuid + 4; /* after GPU- or MIG- */
    for (int i = 0; i < 16; i++, at += 2) {
        unsigned byte = 0;
        at += *at == '-';
        sscanf(at, "%2x", &byte);
        out[i] = byte;
    }
    return OK;
}
int cuDeviceGetUuid(unsigned char *out, int device) { return cuDeviceGetUuid_v2(out, device); }
int cuDeviceTotalMem_v2(size_t *out, int device) { return ready() ? ready() : (*out = visible[device]->total, OK); }

/* This process's entry on the GPU, new or reused from a dead process. Needs the lock. */
static Entry *entry_on(Gpu *gpu) {
    uint32_t pid = getpid(), index = gpu - state->gpus;
    uint64_t start = start_of(pid);
    Entry *place = NULL;
    for (uint32_t i = 0; i < state->entry_count; i++) {
        Entry *each = &state->entries[i];
        if (each->gpu == index && each->pid == pid && each->start == start) return each;
        if (each->start && !alive(each) && each->start == NOBODY) place = each;
    }
    if (!place && state->entry_count == MAX_ENTRIES) return NULL;
    if (!place) place = &state->entries[state->entry_count];
    *place = (Entry){.gpu = index, .pid = pid, .flags = is_client ? MPS : COMPUTE, .start = start};
    if (place == &state->entries[state->entry_count]) state->entry_count++;
    return place;
}

static uint64_t limit_on(const Gpu *gpu) {
    for (int i = 0; i < visible_count; i++)
        if (visible[i] == gpu && limits[i]) return limits[i];
    return UINT64_MAX;
}

static int charge(Gpu *gpu, uint64_t bytes) {
    if (gpu->error) return UNKNOWN;
    Entry *entry = entry_on(gpu);
    if (!entry) return OUT_OF_MEMORY;
    if (entry->bytes + bytes > limit_on(gpu) || allocated(gpu) + bytes > gpu->total - gpu->reserved) {
        keep_change(entry, bytes);
        if (!contexts[gpu - state->gpus]) *entry = (Entry){.start = NOBODY};
        return OUT_OF_MEMORY;
    }
    entry->bytes += bytes;
    keep_account(entry);
    return OK;
}

static int used_by_another(Gpu *gpu) {
    for (uint32_t i = 0; i < state->entry_count; i++)
        if (counts(&state->entries[i], gpu) && state->entries[i].pid != (uint32_t)getpid()) return 1;
    return 0;
}

int cuDevicePrimaryCtxRetain(Gpu **out, int device) {
    if (ready()) return ready();
    Gpu *gpu = *out = visible[device];
    int file = lock(), error = OK, index = gpu - state->gpus;
    int alone = gpu->compute_mode == EXCLUSIVE_PROCESS && !is_client;
    if (gpu->compute_mode == PROHIBITED || (alone && used_by_another(gpu)))
        error = DEVICE_UNAVAILABLE;
    else if (!contexts[index])
        error = charge(gpu, gpu->context);
    if (!error) contexts[index]++;
    return unlock(file, error);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    if (ready()) return ready();
    Gpu *gpu = visible[device];
    int file = lock(), index = gpu - state->gpus;
    if (!contexts[index]) return unlock(file, INVALID_CONTEXT);
    if (!--contexts[index]) {
        Entry *entry = entry_on(gpu);
        entry->bytes = 0;
        keep_change(entry, 0);
        *entry = (Entry){.start = NOBODY};
        for (int i = 0; i < MAX_BLOCKS; i++)
            if (blocks[i].gpu == gpu) blocks[i] = (Block){0};
    }
    return unlock(file, OK);
}
int cuCtxSetCurrent(Gpu *gpu) { return ready() ? ready() : (current = gpu, OK); }
int cuCtxCreate_v2(Gpu **out, unsigned flags, int device) {
    (void)flags;
    int error = cuDevicePrimaryCtxRetain(out, device);
    return error ? error : cuCtxSetCurrent(*out);
}

int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    if (ready()) return ready();
    if (!current) return INVALID_CONTEXT;
    if (!bytes) return INVALID_VALUE;
    if (bytes > current->total) return OUT_OF_MEMORY;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    int file = lock(), i = 0;
    while (i < MAX_BLOCKS && blocks[i].gpu) i++;
    int error = i == MAX_BLOCKS ? OUT_OF_MEMORY : charge(current, bytes);
    if (error) return unlock(file, error);
    blocks[i] = (Block){next_at, bytes, current};
    *out = next_at;
    next_at += bytes;
    return unlock(file, OK);
}
int cuMemFree_v2(uint64_t at) {
    if (ready()) return ready();
    int file = lock();
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (!blocks[i].gpu || blocks[i].at != at) continue;
        Entry *entry = entry_on(blocks[i].gpu);
        entry->bytes -= blocks[i].bytes;
        keep_change(entry, 0);
        blocks[i] = (Block){0};
        return unlock(file, OK);
    }
    return unlock(file, INVALID_VALUE);
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (ready()) return ready();
    if (!current) return INVALID_CONTEXT;
    int file = lock();
    *total = current->total;
    *free_bytes = current->total - current->reserved - allocated(current);
    return unlock(file, OK);
}
