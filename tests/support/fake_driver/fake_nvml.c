/* A driver library for machines without a GPU: the part of NVML that gpuqueue, gpustat and nvitop use. */
#include "fake_state.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13 };
/* The calls that can be unsupported or missing, with the bits of fake_driver.py. */
enum { TEMPERATURE = 1, TEMPERATURE_V = 2, THRESHOLD = 4, FIELDS = 8, POWER = 16, UTILISATION = 32, REASONS = 64,
       ECC = 128, MODE = 256, MARGIN = 512, TOPOLOGY = 1024, MPS_LIST = 2048, GRAPHICS_LIST = 4096,
       BY_PROCESS = 8192, EVENTS = 1 << 14, ROWS = 1 << 15, PAGES = 1 << 16 };

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;
typedef struct { uint32_t pid; uint64_t bytes; uint32_t gpu_instance, compute_instance; } Process;
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { uint32_t version, sensor; int32_t degrees; } Temperature;
typedef struct { uint32_t version; int32_t degrees; } Margin;
typedef struct { uint32_t gpu, memory; } Rates;
typedef struct { uint32_t pid; uint64_t at; uint32_t busy, memory, encoder, decoder; } Share;
typedef struct { uint32_t gpu, memory; uint64_t most, time, start; uint32_t running, reserved[5]; } Stats;
typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency;
    uint32_t type, error;
    union { double d; uint32_t u; int32_t i; uint64_t wide; } value;
} Field;

static int sessions;

static int ready(void) { return sessions ? state->call_error : UNINITIALIZED; }

static int on(Gpu *gpu) {
    while (*(volatile uint32_t *)&gpu->hang) usleep(1000); /* like a dying GPU: only the test ends the wait */
    return ready() ? ready() : gpu->error;
}

static int asked(Gpu *gpu, uint32_t question) {
    int error = on(gpu);
    if (error) return error;
    if (state->missing & question) return FUNCTION_NOT_FOUND;
    return gpu->unsupported & question ? NOT_SUPPORTED : OK;
}

static int number(int error, unsigned *out, unsigned value) {
    if (!error) *out = value;
    return error;
}

static int processes(Gpu *gpu, uint32_t question, uint32_t flag, uint32_t *count, Process *out) {
    uint32_t room = *count, seen = 0;
    int error = asked(gpu, question);
    if (error) return error;
    int file = lock();
    for (uint32_t i = 0; i < state->entry_count; i++) {
        Entry *entry = &state->entries[i];
        if (!(entry->flags & flag) || !counts(entry, gpu)) continue;
        if (seen < room && out)
            out[seen] = (Process){entry->pid, entry->flags & NOT_AVAILABLE ? UINT64_MAX : entry->bytes, ~0u, ~0u};
        seen++;
    }
    *count = seen;
    return unlock(file, seen > room ? INSUFFICIENT_SIZE : OK);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!map_state()) return DRIVER_NOT_LOADED;
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
const char *nvmlErrorString(int code) { return code ? "an error that the fake driver was asked to give" : "Success"; }
static int text(int error, char *out, unsigned size, const char *from) {
    if (!error) snprintf(out, size, "%s", from);
    return error;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(ready(), out, size, "000.00"); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { return text(OK, out, size, "13.000.01"); } /* also before init */
int nvmlSystemGetCudaDriverVersion(int *out) { return ready() ? ready() : (*out = state->cuda, OK); }
int nvmlDeviceGetCount_v2(unsigned *out) { return number(ready(), out, state->gpu_count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **out) {
    if (ready()) return ready();
    if (index >= state->gpu_count) return INVALID_ARGUMENT;
    *out = &state->gpus[index];
    return on(*out);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **out) {
    for (uint32_t i = 0; !ready() && i < state->gpu_count + state->mig_count; i++)
        if (!strcmp(uuid, state->gpus[i].uuid)) return *out = &state->gpus[i], on(*out);
    return ready() ? ready() : NOT_FOUND;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *out, unsigned size) { return text(on(gpu), out, size, gpu->uuid); }
int nvmlDeviceGetName(Gpu *gpu, char *out, unsigned size) { return text(on(gpu), out, size, gpu->name); }
int nvmlDeviceGetIndex(Gpu *gpu, unsigned *out) { return number(on(gpu), out, gpu - state->gpus); }
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *out) {
    if (on(gpu)) return on(gpu);
    *out = (Pci){.bus = 1 + (uint32_t)(gpu - state->gpus)};
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    return OK;
}

static int memory(Gpu *gpu, MemoryV2 *out) {
    if (on(gpu)) return on(gpu);
    int file = lock();
    uint64_t used = allocated(gpu);
    unlock(file, OK);
    *out = (MemoryV2){out->version, gpu->total, gpu->reserved, gpu->total - gpu->reserved - used, used};
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
    return processes(gpu, 0, COMPUTE, count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) {
    return processes(gpu, GRAPHICS_LIST, GRAPHICS, count, out);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) {
    return processes(gpu, MPS_LIST, MPS, count, out);
}

int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *out) {
    return sensor ? INVALID_ARGUMENT : number(asked(gpu, TEMPERATURE), out, gpu->temperature);
}
int nvmlDeviceGetTemperatureV(Gpu *gpu, Temperature *out) {
    int error = asked(gpu, TEMPERATURE | TEMPERATURE_V);
    if (!error) out->degrees = gpu->temperature;
    return error;
}
int nvmlDeviceGetTemperatureThreshold(Gpu *gpu, int which, unsigned *out) {
    int degrees = which == 3 ? gpu->gpu_max : which == 1 ? gpu->slowdown : 0, error = asked(gpu, THRESHOLD);
    return error ? error : degrees ? number(OK, out, degrees) : NOT_SUPPORTED;
}
int nvmlDeviceGetMarginTemperature(Gpu *gpu, Margin *out) {
    int error = asked(gpu, MARGIN);
    if (!error) out->degrees = gpu->margin;
    return error;
}
int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    int error = asked(gpu, FIELDS);
    for (int i = 0; !error && i < count; i++) {
        Field *field = &fields[i];
        field->error = OK;
        if (field->id == 82 && gpu->memory_temperature) {
            field->type = 1;
            field->value.u = gpu->memory_temperature;
        } else if ((field->id == 194 || field->id == 196) && gpu->margin) {
            field->type = 5;
            field->value.i = field->id == 194 ? gpu->slowdown_tlimit : gpu->gpu_max_tlimit;
        } else
            field->error = NOT_SUPPORTED;
    }
    return error;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *out) { return number(asked(gpu, POWER), out, gpu->power_mw); }
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Rates *out) {
    int error = asked(gpu, UTILISATION);
    if (!error) *out = (Rates){gpu->utilisation, gpu->memory_utilisation};
    return error;
}
/* Only processes that use the GPU are listed. */
int nvmlDeviceGetProcessUtilization(Gpu *gpu, Share *out, unsigned *count, unsigned long long since) {
    uint32_t room = out ? *count : 0, seen = 0;
    int error = asked(gpu, BY_PROCESS);
    if (error) return error;
    int file = lock();
    for (uint32_t i = 0; i < state->entry_count; i++) {
        Entry *entry = &state->entries[i];
        if (!entry->utilisation || !counts(entry, gpu)) continue;
        if (seen < room)
            out[seen] = (Share){entry->pid, since + 1, entry->utilisation & 0xff, entry->utilisation >> 8 & 0xff,
                                entry->utilisation >> 16 & 0xff, 0};
        seen++;
    }
    *count = seen;
    return unlock(file, !seen ? NOT_FOUND : seen > room ? INSUFFICIENT_SIZE : OK);
}
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, uint64_t *out) {
    int error = asked(gpu, REASONS);
    if (!error) *out = gpu->reasons;
    return error;
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int type, int counter, uint64_t *out) {
    int error = type == 1 && counter == 0 ? asked(gpu, ECC) : INVALID_ARGUMENT;
    if (!error) *out = gpu->ecc;
    return error;
}
/* A set has the errors that are reported after its card was registered. */
typedef struct { Gpu *gpu; uint32_t read; } EventSet;
typedef struct { Gpu *gpu; unsigned long long type, content; unsigned gpu_instance, compute_instance; } Event;
int nvmlEventSetCreate(EventSet **out) {
    if (ready()) return ready();
    if (state->missing & EVENTS) return FUNCTION_NOT_FOUND;
    return *out = calloc(1, sizeof **out), OK;
}
int nvmlEventSetFree(EventSet *set) { return free(set), OK; }
int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *out) {
    int error = asked(gpu, EVENTS);
    return error ? error : (*out = 8, OK);
}
int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, EventSet *set) {
    int error = types == 8 ? asked(gpu, EVENTS) : INVALID_ARGUMENT;
    return error ? error : (*set = (EventSet){gpu, gpu->xid_count}, OK);
}
int nvmlEventSetWait_v2(EventSet *set, Event *out, unsigned timeout_ms) {
    (void)timeout_ms;
    int error = on(set->gpu);
    if (error) return error;
    if (set->read >= set->gpu->xid_count) return TIMEOUT;
    *out = (Event){set->gpu, 8, set->gpu->xids[set->read++], ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    int error = asked(gpu, ROWS);
    if (error) return error;
    *corrected = 0, *uncorrected = gpu->rows, *pending = gpu->retirement & 1, *failed = gpu->retirement >> 1;
    return OK;
}
/* Older cards have pages in place of rows: here all for one cause. */
int nvmlDeviceGetRetiredPages(Gpu *gpu, unsigned cause, unsigned *count, unsigned long long *out) {
    unsigned room = out ? *count : 0, pages = cause ? gpu->rows : 0;
    int error = asked(gpu, PAGES);
    if (error) return error;
    for (unsigned i = 0; i < pages && i < room; i++) out[i] = i;
    *count = pages;
    return pages > room ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Gpu *gpu, unsigned *out) {
    return number(asked(gpu, PAGES), out, gpu->retirement & 1);
}
int nvmlDeviceGetComputeMode(Gpu *gpu, unsigned *out) { return number(asked(gpu, MODE), out, gpu->compute_mode); }
int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    int error = on(gpu);
    return error ? error : (*major = gpu->capability / 10, *minor = gpu->capability % 10, OK);
}
int nvmlDeviceGetPersistenceMode(Gpu *gpu, unsigned *out) { return number(on(gpu), out, gpu->persistence); }
int nvmlDeviceGetAccountingMode(Gpu *gpu, unsigned *out) { return number(on(gpu), out, gpu->accounting); }
int nvmlDeviceGetAccountingStats(Gpu *gpu, unsigned pid, Stats *out) {
    if (on(gpu)) return on(gpu);
    int file = lock();
    const Account *account = account_of(gpu - state->gpus, pid, 0);
    if (account) *out = (Stats){.most = account->bytes};
    return unlock(file, account ? OK : NOT_FOUND);
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    int error = on(gpu);
    if (!error && gpu->parent >= 0) error = INVALID_ARGUMENT;
    return error ? error : (*current = *pending = gpu->mig, OK);
}
int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *out) { return number(on(gpu), out, gpu->mig ? 7 : 0); }
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned slot, Gpu **out) {
    if (on(gpu)) return on(gpu);
    for (uint32_t i = state->gpu_count; i < state->gpu_count + state->mig_count; i++)
        if (state->gpus + state->gpus[i].parent == gpu && (unsigned)state->gpus[i].slot == slot)
            return *out = &state->gpus[i], OK;
    return NOT_FOUND;
}
int nvmlDeviceIsMigDeviceHandle(Gpu *gpu, unsigned *out) { return number(on(gpu), out, gpu->parent >= 0); }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Gpu *gpu, Gpu **out) {
    if (on(gpu)) return on(gpu);
    return gpu->parent < 0 ? INVALID_ARGUMENT : (*out = &state->gpus[gpu->parent], OK);
}

int nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, unsigned *out) {
    int error = on(b) ? on(b) : asked(a, TOPOLOGY);
    return number(error, out, state->levels[a - state->gpus][b - state->gpus]);
}
int nvmlDeviceGetP2PStatus(Gpu *a, Gpu *b, int what, unsigned *out) {
    int linked = what == 2 && state->links[a - state->gpus][b - state->gpus];
    return number(on(b) ? on(b) : asked(a, TOPOLOGY), out, linked ? 0 : 5);
}
int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *out) {
    if (link >= MAX_GPUS) return INVALID_ARGUMENT;
    return number(asked(gpu, TOPOLOGY), out, state->links[gpu - state->gpus][link]);
}

/* Further calls of nvitop and gpustat. They accept "not supported", but not a driver without the symbol. */
#define ON_NO_CARD(name) int name(Gpu *gpu) { return on(gpu) ? on(gpu) : NOT_SUPPORTED; }
ON_NO_CARD(nvmlDeviceGetBAR1MemoryInfo)
ON_NO_CARD(nvmlDeviceGetClockInfo)
ON_NO_CARD(nvmlDeviceGetConfComputeMemSizeInfo)
ON_NO_CARD(nvmlDeviceGetDecoderUtilization)
ON_NO_CARD(nvmlDeviceGetDriverModel_v2)
ON_NO_CARD(nvmlDeviceGetDriverModel)
ON_NO_CARD(nvmlDeviceGetDisplayActive)
ON_NO_CARD(nvmlDeviceGetDisplayMode)
ON_NO_CARD(nvmlDeviceGetEncoderUtilization)
ON_NO_CARD(nvmlDeviceGetEnforcedPowerLimit)
ON_NO_CARD(nvmlDeviceGetFanSpeed)
ON_NO_CARD(nvmlDeviceGetMaxClockInfo)
ON_NO_CARD(nvmlDeviceGetPcieThroughput)
ON_NO_CARD(nvmlDeviceGetPerformanceState)
ON_NO_CARD(nvmlDeviceGetPowerManagementLimit)
ON_NO_CARD(nvmlDeviceGetSerial)
