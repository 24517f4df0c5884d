/* A stand-in for NVIDIA's libnvidia-ml.so.1: it answers what tests/contract/harness/nvml wrote into a folder.
 *
 * $FAKE_NVML/driver, cuda, count; gpu0/name, gpu0/total ...; gpu0/slice1/uuid ...: one value a file, and a file that is
 * missing is "not supported", as many calls are on real GPUs. Processes stand in `processes`, "pid bytes" a line; one
 * that has ended is gone, and with it the memory that it held.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef unsigned long handle; /* gpu + 1, and above the lowest byte slice + 1 */
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } process;

static void path(char *out, size_t room, handle device, const char *name) {
    const char *root = getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "/nonexistent";
    unsigned gpu = device & 0xff, slice = (unsigned)(device >> 8);
    if (!gpu) snprintf(out, room, "%s/%s", root, name);
    else if (!slice) snprintf(out, room, "%s/gpu%u/%s", root, gpu - 1, name);
    else snprintf(out, room, "%s/gpu%u/slice%u/%s", root, gpu - 1, slice - 1, name);
}

static int text(handle device, const char *name, char *out, unsigned room) {
    char where[512];
    path(where, sizeof where, device, name);
    FILE *file = fopen(where, "r");
    if (!file) return NOT_SUPPORTED;
    if (!fgets(out, (int)room, file)) out[0] = 0;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
    return OK;
}

static int number(handle device, const char *name, unsigned long long *out) {
    char word[64];
    int code = text(device, name, word, sizeof word);
    if (code == OK) *out = strtoull(word, NULL, 0);
    return code;
}

static int small(handle device, const char *name, unsigned *out) {
    unsigned long long value = 0;
    int code = number(device, name, &value);
    if (code == OK) *out = (unsigned)value;
    return code;
}

static int put(handle device, const char *name, unsigned value) {
    char where[512];
    path(where, sizeof where, device, name);
    FILE *file = fopen(where, "w");
    if (!file) return NO_PERMISSION;
    fprintf(file, "%u\n", value);
    return fclose(file) ? NO_PERMISSION : OK;
}

static unsigned living(handle device, process *out, unsigned room) {
    char where[512];
    unsigned count = 0;
    int pid;
    unsigned long long used;
    path(where, sizeof where, device, "processes");
    FILE *file = fopen(where, "r");
    if (!file) return 0;
    while (fscanf(file, "%d %llu", &pid, &used) == 2) {
        if (pid <= 0 || kill(pid, 0)) continue;
        if (out && count < room) out[count] = (process){(unsigned)pid, used, -1u, -1u};
        count++;
    }
    fclose(file);
    return count;
}

int nvmlInitWithFlags(unsigned flags) {
    unsigned refusal = 0;
    (void)flags;
    return small(0, "refusal", &refusal) == OK ? (int)refusal : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "fake"; }
int nvmlSystemGetDriverVersion(char *out, unsigned room) { return text(0, "driver", out, room); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return small(0, "cuda", (unsigned *)out); }
int nvmlDeviceGetCount_v2(unsigned *out) { return small(0, "count", out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out) {
    unsigned refusal = 0;
    *out = index + 1;
    return small(*out, "refusal", &refusal) == OK ? (int)refusal : OK;
}
int nvmlDeviceGetName(handle d, char *out, unsigned room) { return text(d, "name", out, room); }
int nvmlDeviceGetUUID(handle d, char *out, unsigned room) { return text(d, "uuid", out, room); }
int nvmlDeviceGetPersistenceMode(handle d, unsigned *out) { return small(d, "persistence", out); }
int nvmlDeviceSetPersistenceMode(handle d, unsigned mode) { return put(d, "persistence", mode); }
int nvmlDeviceGetClockInfo(handle d, int type, unsigned *out) { return type == 1 ? small(d, "sm", out) : INVALID; }
int nvmlDeviceGetMaxClockInfo(handle d, int type, unsigned *out) { return type == 1 ? small(d, "sm_max", out) : INVALID; }
int nvmlDeviceGetTemperature(handle d, int sensor, unsigned *out) { return sensor ? INVALID : small(d, "temperature", out); }
int nvmlDeviceGetComputeMode(handle d, unsigned *out) { return small(d, "compute_mode", out); }
int nvmlDeviceGetCurrentClocksEventReasons(handle d, unsigned long long *out) { return number(d, "reasons", out); }
int nvmlDeviceGetMaxMigDeviceCount(handle d, unsigned *out) { return small(d, "slices", out); }
int nvmlDeviceGetTotalEccErrors(handle d, int type, int counter, unsigned long long *out) {
    /* 1: uncorrected; 0: volatile, since the driver was loaded */
    return type == 1 && counter == 0 ? number(d, "ecc", out) : INVALID;
}

int nvmlDeviceGetMemoryInfo(handle d, memory *out) {
    process held[64];
    unsigned count = living(d, held, 64);
    int code = number(d, "total", &out->total);
    out->used = 0;
    for (unsigned i = 0; i < count && i < 64; i++) out->used += held[i].used;
    out->free = out->total - out->used;
    return code;
}

int nvmlDeviceGetUtilizationRates(handle d, utilization *out) {
    out->memory = 0;
    return small(d, "busy", &out->gpu);
}

int nvmlDeviceGetMigMode(handle d, unsigned *now, unsigned *pending) {
    *pending = 0;
    return small(d, "mig", now);
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle d, unsigned index, handle *out) {
    char uuid[128];
    *out = d | (handle)(index + 1) << 8;
    return text(*out, "uuid", uuid, sizeof uuid) == OK ? OK : NOT_FOUND;
}

int nvmlDeviceGetRemappedRows(handle d, unsigned *fixed, unsigned *broken, unsigned *pending, unsigned *failed) {
    *fixed = *broken = *failed = 0;
    return small(d, "rows_pending", pending);
}

int nvmlDeviceGetRetiredPagesPendingStatus(handle d, unsigned *out) { return small(d, "pages_pending", out); }

int nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *count, process *out) {
    unsigned room = *count, there = living(d, out, room);
    *count = there;
    return there > room ? INSUFFICIENT_SIZE : OK;
}
