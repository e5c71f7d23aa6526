/* A driver's library for machines without a GPU: as much of NVML as gpuqueue asks, over a state in one mapped file.
 *
 * FAKE_GPU_STATE names the file; fake_driver.py writes it and has the same layout. Memory belongs to live processes:
 * what an entry holds is free again when its process is dead, reaped or not. Changes show at the next call.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
       FUNCTION_NOT_FOUND = 13 };
enum { COMPUTE = 1, GRAPHICS = 2, NOT_AVAILABLE = 4, ALWAYS_ALIVE = 8 };
enum { MAX_GPUS = 16, MAX_ENTRIES = 256 };

typedef struct {
    char uuid[96], name[96];
    uint64_t total, reserved;
    int32_t error, memory_error; /* given by every call on this GPU, and by its memory calls only */
} Gpu;
typedef struct {
    uint32_t gpu, pid, flags, unused;
    uint64_t bytes;
} Entry;
typedef struct {
    uint32_t gpu_count, entry_count;
    int32_t init_error, call_error; /* given by init, and by every call after it */
    uint32_t v2_missing, inits, shutdowns, v2_calls;
    Gpu gpus[MAX_GPUS];
    Entry entries[MAX_ENTRIES];
} State;

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;
typedef struct { uint32_t pid; uint64_t bytes; uint32_t gpu_instance, compute_instance; } Process;
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } Pci;

static State *state;
static int sessions;

static int ready(void) { return sessions ? state->call_error : UNINITIALIZED; }

static int on(Gpu *gpu) { return ready() ? ready() : gpu->error; }

static int alive(const Entry *entry) {
    char path[32], line[512], *bracket;
    if (entry->flags & ALWAYS_ALIVE) return 1;
    snprintf(path, sizeof path, "/proc/%u/stat", entry->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, line, sizeof line - 1);
    close(file);
    if (size <= 0) return 0;
    line[size] = 0;
    bracket = strrchr(line, ')');
    return bracket && bracket[2] != 'Z' && bracket[2] != 'X';
}

static int counts(const Entry *entry, const Gpu *gpu) { return state->gpus + entry->gpu == gpu && alive(entry); }

static uint64_t allocated(const Gpu *gpu) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < state->entry_count; i++) {
        const Entry *mine = &state->entries[i];
        int largest = counts(mine, gpu); /* a pid that computes and draws has two entries for the same bytes */
        for (uint32_t j = 0; largest && j < state->entry_count; j++) {
            const Entry *other = &state->entries[j];
            if (j != i && other->gpu == mine->gpu && other->pid == mine->pid &&
                (other->bytes > mine->bytes || (other->bytes == mine->bytes && j < i)))
                largest = 0;
        }
        if (largest) sum += mine->bytes;
    }
    return sum;
}

static int processes(Gpu *gpu, uint32_t flag, uint32_t *count, Process *out) {
    uint32_t room = *count, seen = 0;
    if (on(gpu)) return on(gpu);
    for (uint32_t i = 0; i < state->entry_count; i++) {
        const Entry *entry = &state->entries[i];
        if (!(entry->flags & flag) || !counts(entry, gpu)) continue;
        if (seen < room && out)
            out[seen] = (Process){entry->pid, entry->flags & NOT_AVAILABLE ? UINT64_MAX : entry->bytes, ~0u, ~0u};
        seen++;
    }
    *count = seen;
    return seen > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!state) {
        const char *path = getenv("FAKE_GPU_STATE");
        int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (file < 0) return DRIVER_NOT_LOADED;
        void *at = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (at == MAP_FAILED) return DRIVER_NOT_LOADED;
        state = at;
    }
    if (state->init_error) return state->init_error;
    state->inits++;
    sessions++;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    state->shutdowns++;
    return OK;
}
const char *nvmlErrorString(int code) { return code ? "an error that the fake driver was told to give" : "Success"; }
static int text(int error, char *out, unsigned size, const char *from) {
    if (!error) snprintf(out, size, "%s", from);
    return error;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(ready(), out, size, "000.00"); }
int nvmlDeviceGetCount_v2(unsigned *out) { return ready() ? ready() : (*out = state->gpu_count, OK); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **out) {
    if (ready()) return ready();
    if (index >= state->gpu_count) return INVALID_ARGUMENT;
    *out = &state->gpus[index];
    return on(*out);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **out) {
    for (uint32_t i = 0; !ready() && i < state->gpu_count; i++)
        if (!strcmp(uuid, state->gpus[i].uuid)) return *out = &state->gpus[i], on(*out);
    return ready() ? ready() : NOT_FOUND;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *out, unsigned size) { return text(on(gpu), out, size, gpu->uuid); }
int nvmlDeviceGetName(Gpu *gpu, char *out, unsigned size) { return text(on(gpu), out, size, gpu->name); }
int nvmlDeviceGetIndex(Gpu *gpu, unsigned *out) { return on(gpu) ? on(gpu) : (*out = gpu - state->gpus, OK); }
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *out) {
    if (on(gpu)) return on(gpu);
    *out = (Pci){.bus = 1 + (uint32_t)(gpu - state->gpus)};
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    return OK;
}
static int memory(Gpu *gpu, MemoryV2 *out) {
    if (on(gpu)) return on(gpu);
    uint64_t used = allocated(gpu), room = gpu->total - gpu->reserved;
    if (used > room) used = room;
    *out = (MemoryV2){out->version, gpu->total, gpu->reserved, room - used, used};
    return gpu->memory_error;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *out) {
    MemoryV2 all = {0};
    int error = memory(gpu, &all);
    if (!error) *out = (Memory){all.total, all.free, all.used + all.reserved};
    return error;
}
int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *out) {
    state->v2_calls++;
    return state->v2_missing ? FUNCTION_NOT_FOUND : memory(gpu, out);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) {
    return processes(gpu, COMPUTE, count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) {
    return processes(gpu, GRAPHICS, count, out);
}
