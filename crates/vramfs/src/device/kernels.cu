// Reed-Solomon kernels over blocks in device memory. One thread block processes one block of
// memory; a warp processes rows. Lane l holds the 32 codewords with their symbols' bits in the
// eight words of a row at 16 l and at 512 + 16 l: bit c of each belongs to codeword 32 l + c.
//
// Invariants: stored rows were summed and encoded from the same registers that they are stored
// from, except for rows that `update` loads twice; a failed correction is undone; the caller has
// exclusive access to the block, except for `verify` and `check`, which only read.
//
// Constants, networks of exclusive ors and tables are in the generated header "constants.h".
#include "constants.h"

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

constexpr u32 ALL = 0xffffffffu;
constexpr u32 WARPS = 8;
constexpr u32 THREADS = 32 * WARPS;
// Rows that a warp loads ahead of those that it computes with.
constexpr u32 AHEAD = 4;
constexpr u32 AHEAD_TO_ENCODE = 2;

// One operation on a block. The host has the same structure (engine.rs).
struct BlockJob {
    u64 block;     // its address
    u64 data;      // the caller's rows, 16-byte aligned, or 0
    u64 identity;  // IDENTITY_WORDS words, or 0
    u64 sums;      // the expected checksums of the caller's rows, or 0
    u32 first;     // the first row of data
    u32 rows;      // the number of rows, within the rows of data
    u32 clears;    // not 0 if other rows become zeros
    u32 reserved;  // padding to a multiple of 16 bytes
};

struct BlockOutcome {
    u32 state;    // bits, see engine/outcome.rs
    u32 symbols;  // corrected symbols
    u32 rows;     // rows that do not match their checksums
    u32 words;    // wrong codewords
};

constexpr u32 WRONG_WORDS = 1;    // there are invalid codewords
constexpr u32 WRONG_RECORD = 2;   // the record does not match its checksum
constexpr u32 WRONG_IDENTITY = 4; // the record is that of another block
constexpr u32 WRONG_ROWS = 8;     // rows do not match their checksums
constexpr u32 CORRECTED = 16;     // all errors were corrected
constexpr u32 LOST = 32;          // the block is uncorrectable and unchanged
constexpr u32 WRONG_SOURCE = 64;  // the caller's rows do not match their checksums
// Instead of those bits, before the outcome: all checks passed, the change is under way.
constexpr u32 COMMITTED = 0xfffffffeu;

// Publishes a state to the host, which may be polling for it.
__device__ __forceinline__ void publish_state(BlockOutcome* to, u32 state) {
    *reinterpret_cast<volatile u32*>(&to->state) = state;
}

// Publishes an outcome to the host: everything that this thread block has written before a barrier
// is visible first. Called by one thread.
__device__ __forceinline__ void publish_outcome(BlockOutcome* to, u32 state, u32 symbols, u32 rows, u32 words) {
    to->symbols = symbols;
    to->rows = rows;
    to->words = words;
    __threadfence_system();
    publish_state(to, state);
}

__device__ __forceinline__ u8* address(u64 number) {
    return reinterpret_cast<u8*>(number);
}

__device__ __forceinline__ void load(const u8* row, u32 lane, u32 (&d)[8]) {
    const uint4 a = *reinterpret_cast<const uint4*>(row + 16 * lane);
    const uint4 b = *reinterpret_cast<const uint4*>(row + 512 + 16 * lane);
    d[0] = a.x; d[1] = a.y; d[2] = a.z; d[3] = a.w;
    d[4] = b.x; d[5] = b.y; d[6] = b.z; d[7] = b.w;
}

__device__ __forceinline__ void store(u8* row, u32 lane, const u32 (&d)[8]) {
    *reinterpret_cast<uint4*>(row + 16 * lane) = make_uint4(d[0], d[1], d[2], d[3]);
    *reinterpret_cast<uint4*>(row + 512 + 16 * lane) = make_uint4(d[4], d[5], d[6], d[7]);
}

// Lookup tables for checksums. Each lane reads its own bank in `lanes`.
struct SumTables {
    u32 word[4][256];       // shift by four zero bytes
    u32 half[4][256];       // shift by 496 zero bytes
    u32 lanes[8][16][32];   // shift by 16 (31 - lane) zero bytes, for each nibble
};

__device__ const SumTables SUMS = {SUM_WORD, SUM_HALF, SUM_LANES};

// Bit matrices for checksums by the tensor cores (crc.rs).
struct SumMatrices {
    uint4 fragments[4][2][32];
};
__device__ const u32 JOINS[2 * 32 * 4] = SUM_JOINS;

// Tables that `update` copies to shared memory. They are contiguous, as each separate address costs
// as much time as a row.
struct __align__(16) Tables {
    u32 fragments[4 * 2 * 32 * 4];
    u32 columns[32 * 8];
    u32 of_parity[WARPS][32];  // as `columns` in `RowTables`
};

struct __align__(16) RowTables {
    // The change of the record's checksum for each bit of the row's checksum.
    u32 columns[32];
    // The row's coefficient in each parity row, as selectors of partial sums (source.rs).
    u32 constants[WARPS][2];
};

struct AllTables {
    Tables common;
    RowTables rows[DATA_ROWS];
};
__device__ const AllTables TABLES = {{SUM_FRAGMENTS, SUM_COLUMNS, RECORD_COLUMNS_OF_PARITY}, TABLES_OF_ROWS};

__device__ __forceinline__ u32 shifted(const u32 (&table)[4][256], u32 r) {
    return table[0][r & 255] ^ table[1][r >> 8 & 255] ^ table[2][r >> 16 & 255] ^ table[3][r >> 24];
}

// The CRC32C of the row in the warp's registers.
__device__ __forceinline__ u32 sum_of(const SumTables& tables, u32 lane, const u32 (&d)[8]) {
    u32 r = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) r = shifted(tables.word, r ^ d[k]);
    r = shifted(tables.half, r);
#pragma unroll
    for (int k = 4; k < 8; k++) r = shifted(tables.word, r ^ d[k]);
    u32 s = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) s ^= tables.lanes[k][r >> 4 * k & 15][lane];
    return __reduce_xor_sync(ALL, s) ^ SUM_OF_ZEROS;
}

// Multiplies bit matrices: adds the number of common bits of each row of one and each column of the
// other.
__device__ __forceinline__ void multiply(u32 (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The CRC32C by the tensor cores: the checksum bits of each group of four lanes, then their sum,
// shifted by the zeros for the bytes that follow.
template <typename Fragment>
__device__ __forceinline__ u32 sum_by(Fragment fragment, const u32 (&columns)[8], const u32 (&d)[8]) {
    u32 c[2][4] = {};
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) multiply(c[h], fragment(t, h), d[2 * t], d[2 * t + 1]);
    u32 s = 0;
#pragma unroll
    for (int at = 0; at < 8; at++) s ^= 0u - (c[at / 4][at % 4] & 1) & columns[at];
    return __reduce_xor_sync(ALL, s) ^ SUM_OF_ZEROS;
}

__device__ __forceinline__ void load_columns(u32 lane, u32 (&columns)[8]) {
#pragma unroll
    for (int at = 0; at < 8; at++) columns[at] = TABLES.common.columns[8 * lane + at];
}

__device__ __forceinline__ u32 sum_by_bits(const SumMatrices& matrices, const u32 (&columns)[8], u32 lane, const u32 (&d)[8]) {
    return sum_by([&](int t, int h) { return matrices.fragments[t][h][lane]; }, columns, d);
}

// Checksums with the tables in registers, for kernels that sum few rows: the tables load while the
// rows do.
struct Sums {
    uint4 fragments[4][2];
    u32 columns[8];

    // The tables are in device memory or in shared memory.
    __device__ __forceinline__ Sums(const Tables& tables, u32 lane) {
#pragma unroll
        for (int at = 0; at < 8; at++) {
            fragments[at / 2][at % 2] = reinterpret_cast<const uint4*>(tables.fragments)[32 * at + lane];
            columns[at] = tables.columns[8 * lane + at];
        }
    }

    __device__ __forceinline__ u32 operator()(const u32 (&d)[8]) const {
        return sum_by([&](int t, int h) { return fragments[t][h]; }, columns, d);
    }
};

__device__ __forceinline__ u32 times(u32 x, u32 y) {
    return x == 0 || y == 0 ? 0 : EXP[(LOG[x] + LOG[y]) % 255];
}

__device__ __forceinline__ u32 inverted(u32 x) {
    return EXP[(255 - LOG[x]) % 255];
}

// The mask's factor in this lane's codewords, for a block of this identity.
__device__ __forceinline__ u32 factor(const u64* identity, u32 lane) {
    u64 x = (identity[0] * MIX1 + identity[1]) * MIX2 + (lane + 1) * MIX0;
    x = (x ^ x >> 30) * MIX1;
    x = (x ^ x >> 27) * MIX2;
    x ^= x >> 31;
    return 1 + u32(x % 255);
}

// Adds a symbol to all codewords of a lane.
__device__ __forceinline__ void add_to_all(u32 (&d)[8], u32 symbol) {
#pragma unroll
    for (int b = 0; b < 8; b++) d[b] ^= 0u - (symbol >> b & 1);
}

struct Shared {
    u32 parts[WARPS][4][8][32];  // values at four roots of the rows that each warp has read
    u32 values[8][8][32];        // values at the roots: root, bit, lane
    u32 sums_wrong;
    u32 symbols;
    u32 words;
    u32 erased[8];               // rows with wrong checksums
};
static_assert(sizeof(Shared) == SHARED_BYTES, "as the host has it");

// A thread block's jobs, copied from the host's memory: the next one is prefetched while this one
// is processed.
struct __align__(16) JobBuffer {
    BlockJob jobs[2];
    u64 identity[IDENTITY_WORDS];
};

struct SharedWithJobs {
    Shared shared;
    JobBuffer job_buffer;
};
static_assert(sizeof(SharedWithJobs) == SHARED_WITH_JOBS_BYTES, "as the host has it");

struct SharedWithSums {
    Shared shared;
    JobBuffer job_buffer;
    SumMatrices sums;
};
static_assert(sizeof(SharedWithSums) == SHARED_WITH_TABLES_BYTES, "as the host has it");

extern __shared__ __align__(16) u8 dynamic_shared[];

__device__ __forceinline__ void copy_16(void* to, u64 from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Commits the copies issued since the last call as one group.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups except the last `LAST`.
template <int LAST>
__device__ __forceinline__ void wait_for_copies_except() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LAST) : "memory");
}

// Loads the first job of a thread block into the buffer, for all threads.
__device__ __forceinline__ void load_first_job(JobBuffer& job_buffer, const BlockJob* jobs, u32 at) {
    if (threadIdx.x < sizeof(BlockJob) / 16) {
        copy_16(reinterpret_cast<u8*>(&job_buffer.jobs[0]) + 16 * threadIdx.x, u64(jobs + at) + 16 * threadIdx.x);
        wait_for_copies();
    }
    __syncthreads();
}

// Prefetches the next job, and this job's identity. Visible to all threads after `wait_for_copies`
// and a barrier; the same warp calls both.
__device__ __forceinline__ void prefetch_job(JobBuffer& job_buffer, const BlockJob* jobs, u32 next, u32 count, u32 turn, const BlockJob& job, u32 lane) {
    if (next < count && lane < sizeof(BlockJob) / 16)
        copy_16(reinterpret_cast<u8*>(&job_buffer.jobs[turn ^ 1]) + 16 * lane, u64(jobs + next) + 16 * lane);
    if (job.identity != 0 && lane < IDENTITY_WORDS * 8 / 16)
        copy_16(job_buffer.identity + 2 * lane, job.identity + 16 * lane);
}

// Combines the values of ROWS consecutive rows of each warp into those of all rows, and adds the
// mask times a factor.
template <int ROWS>
__device__ __forceinline__ void combine(Shared& shared, u32 warp, u32 lane, const u32 (&s)[8][8], u32 factor) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
            for (int b = 0; b < 8; b++) shared.parts[warp][q][b][lane] = s[4 * half + q][b];
        __syncthreads();
        if (warp / 4 == half) {
            u32 t[8];
#pragma unroll
            for (int b = 0; b < 8; b++) t[b] = shared.parts[0][warp % 4][b][lane];
            for (u32 from = 1; from < WARPS; from++) {
                advance<ROWS>(warp, t);
#pragma unroll
                for (int b = 0; b < 8; b++) t[b] ^= shared.parts[from][warp % 4][b][lane];
            }
            add_to_all(t, times(MASK_VALUES[warp], factor));
#pragma unroll
            for (int b = 0; b < 8; b++) shared.values[warp][b][lane] = t[b];
        }
        __syncthreads();
    }
}

// Completes a record with row checksums: identity and checksum. One warp.
template <typename SumOf>
__device__ __forceinline__ void finish_record(SumOf sum_of_row, u32 lane, u8* record, const u64* given) {
    u64* words = reinterpret_cast<u64*>(record + MAGIC_OFFSET);
    for (u32 at = lane; at < (ROW_BYTES - MAGIC_OFFSET) / 8; at += 32) {
        u64 word = 0;
        if (at == 0) word = MAGIC;
        else if (at - 1 < IDENTITY_WORDS) word = given != nullptr ? given[at - 1] : words[at];
        words[at] = word;
    }
    __syncwarp();
    u32 d[8];
    load(record, lane, d);
    const u32 sum = sum_of_row(d);
    if (lane == 0) *reinterpret_cast<u32*>(record + RECORD_SUM_OFFSET) = sum;
}

__device__ __forceinline__ void finish_record(u32 lane, u8* record, u64 identity) {
    const auto by_tables = [&](const u32 (&d)[8]) { return sum_of(SUMS, lane, d); };
    finish_record(by_tables, lane, record, reinterpret_cast<const u64*>(identity));
}

// Checks the record. One warp; every lane returns the state. The identity is wrong if number,
// generation or owners differ.
template <typename SumOf>
__device__ __forceinline__ u32 check_record(SumOf sum_of_row, u32 lane, const u8* record, const u64* given) {
    u32 d[8];
    load(record, lane, d);
    const u32 expected = __shfl_sync(ALL, d[7], 31);
    if (lane == 31) d[7] = 0;
    u32 state = sum_of_row(d) == expected ? 0 : WRONG_RECORD;
    const u64* words = reinterpret_cast<const u64*>(record + MAGIC_OFFSET);
    bool differs = lane == 0 && words[0] != MAGIC;
    if (given != nullptr)
        for (u32 at = lane; at < IDENTITY_WORDS; at += 32) differs |= words[1 + at] != given[at];
    if (__any_sync(ALL, differs)) state |= WRONG_IDENTITY;
    return state;
}

__device__ __forceinline__ u32 check_record(u32 lane, const u8* record, const u64* given) {
    const auto by_tables = [&](const u32 (&d)[8]) { return sum_of(SUMS, lane, d); };
    return check_record(by_tables, lane, record, given);
}

// The identity to write, or the one in the block's record.
__device__ __forceinline__ const u64* identity_of(const BlockJob& job, const u64* given) {
    return job.identity != 0 ? given : reinterpret_cast<const u64*>(job.block + RECORD_OFFSET + MAGIC_OFFSET + 8);
}

__device__ __forceinline__ const u64* identity_of(const BlockJob& job) {
    return identity_of(job, reinterpret_cast<const u64*>(job.identity));
}

// Computes a parity row from the data's values at the roots. Each warp stores one row and returns
// it.
__device__ __forceinline__ void finish_parity(const Shared& shared, const BlockJob& job, const u64* identity, u32 warp, u32 lane, u32 (&parity)[8]) {
    u32 v[8][8];
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int b = 0; b < 8; b++) v[j][b] = shared.values[j][b][lane];
    parity_of(warp, v, parity);
    add_to_all(parity, times(MASK[warp], factor(identity, lane)));
    store(address(job.block) + (DATA_ROWS + warp) * ROW_BYTES, lane, parity);
}

// Whether the checksum of a caller's row differs from the expected one.
__device__ __forceinline__ bool has_wrong_sum(const BlockJob& job, u32 row, u32 sum) {
    return job.sums != 0 && sum != reinterpret_cast<const u32*>(job.sums)[row - job.first];
}

// Encodes blocks. Data rows are the caller's where the job has some, otherwise those in the block,
// or zeros; parity and record are computed from them. If a row of the caller's does not match its
// expected checksum, no valid record is written.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
vramfs_encode(const BlockJob* jobs, BlockOutcome* outcomes, u32 count) {
    SharedWithSums& all = *reinterpret_cast<SharedWithSums*>(dynamic_shared);
    Shared& shared = all.shared;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32* const fragments = reinterpret_cast<u32*>(&all.sums);
    for (u32 at = threadIdx.x; at < sizeof(SumMatrices) / 4; at += THREADS) fragments[at] = TABLES.common.fragments[at];
    u32 columns[8];
    load_columns(lane, columns);
    const auto sum_of_row = [&](const u32 (&d)[8]) { return sum_by_bits(all.sums, columns, lane, d); };
    load_first_job(all.job_buffer, jobs, blockIdx.x);
    for (u32 at = blockIdx.x, turn = 0; at < count; at += gridDim.x, turn ^= 1) {
        const BlockJob job = all.job_buffer.jobs[turn];
        if (warp == 0) prefetch_job(all.job_buffer, jobs, at + gridDim.x, count, turn, job, lane);
        u8* const block = address(job.block);
        u8* const record = block + RECORD_OFFSET;
        const u32 first = warp * (DATA_ROWS / WARPS);
        const auto is_given = [&](u32 row) { return job.data != 0 && row - job.first < job.rows; };
        const auto fetch = [&](u32 row, u32 (&d)[8]) {
            if (is_given(row)) load(address(job.data) + (row - job.first) * ROW_BYTES, lane, d);
            else if (job.clears == 0) load(block + row * ROW_BYTES, lane, d);
            else for (int b = 0; b < 8; b++) d[b] = 0;
        };
        bool has_other = false;
        u32 s[8][8] = {}, d[AHEAD_TO_ENCODE][8];
#pragma unroll
        for (u32 k = 0; k < AHEAD_TO_ENCODE; k++) fetch(first + k, d[k]);
#pragma unroll 1
        for (u32 of = 0; of < DATA_ROWS / WARPS; of += AHEAD_TO_ENCODE) {
#pragma unroll
            for (u32 k = 0; k < AHEAD_TO_ENCODE; k++) {
                const u32 row = first + of + k;
                if (is_given(row) || job.clears != 0) store(block + row * ROW_BYTES, lane, d[k]);
                horner(s, d[k]);
                const u32 sum = sum_of_row(d[k]);
                if (lane == 0) reinterpret_cast<u32*>(record)[row] = sum;
                if (is_given(row)) has_other |= has_wrong_sum(job, row, sum);
                if (of + AHEAD_TO_ENCODE < DATA_ROWS / WARPS) fetch(row + AHEAD_TO_ENCODE, d[k]);
            }
        }
        if (warp == 0) wait_for_copies();
        combine<DATA_ROWS / WARPS>(shared, warp, lane, s, 0);
        u32 parity[8];
        finish_parity(shared, job, identity_of(job, all.job_buffer.identity), warp, lane, parity);
        const u32 sum = sum_of_row(parity);
        if (lane == 0) reinterpret_cast<u32*>(record)[DATA_ROWS + warp] = sum;
        if (__syncthreads_or(has_other)) {
            if (threadIdx.x < ROW_BYTES / 4 - MAGIC_OFFSET / 4)
                reinterpret_cast<u32*>(record)[MAGIC_OFFSET / 4 + threadIdx.x] = 0;
            __syncthreads();
            if (threadIdx.x == 0) publish_outcome(outcomes + at, WRONG_SOURCE, 0, 0, 0);
        } else if (warp == 0) {
            finish_record(sum_of_row, lane, record, job.identity != 0 ? all.job_buffer.identity : nullptr);
            if (lane == 0) publish_outcome(outcomes + at, 0, 0, 0, 0);
        }
    }
}

// Computes the values of the block's rows at the roots; rows that the job requests are stored to
// its data.
__device__ __forceinline__ void compute_values(Shared& shared, const BlockJob& job, const u64* identity, u32 warp, u32 lane) {
    const u8* const block = address(job.block);
    const u32 first = warp * (CODED_ROWS / WARPS);
    u32 s[8][8] = {}, d[AHEAD][8];
    const auto take = [&](u32 row, const u32 (&d)[8]) {
        horner(s, d);
        if (job.data != 0 && row - job.first < job.rows) store(address(job.data) + (row - job.first) * ROW_BYTES, lane, d);
    };
#pragma unroll
    for (u32 k = 0; k < AHEAD; k++) load(block + (first + k) * ROW_BYTES, lane, d[k]);
    // One row is left over, which the last round loads.
    static_assert(CODED_ROWS / WARPS % AHEAD == 1, "as the last round expects");
#pragma unroll 1
    for (u32 of = 0; of < CODED_ROWS / WARPS - 1; of += AHEAD) {
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            const u32 row = first + of + k;
            take(row, d[k]);
            if (of + k + AHEAD < CODED_ROWS / WARPS) load(block + (row + AHEAD) * ROW_BYTES, lane, d[k]);
        }
    }
    take(first + CODED_ROWS / WARPS - 1, d[0]);
    if (warp == 0) wait_for_copies();
    __syncthreads();
    combine<CODED_ROWS / WARPS>(shared, warp, lane, s, factor(identity, lane));
}

// Whether any codeword is invalid, for every thread. Each warp checks one root.
__device__ __forceinline__ bool has_wrong_words(const Shared& shared, u32 warp, u32 lane) {
    u32 any = 0;
#pragma unroll
    for (int b = 0; b < 8; b++) any |= shared.values[warp][b][lane];
    return __syncthreads_or(any != 0);
}

// Checks codewords and record. Rows stored to the job's data are those that were checked: they are
// correct if the state is 0.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
vramfs_verify(const BlockJob* jobs, BlockOutcome* outcomes, u32 count) {
    SharedWithJobs& all = *reinterpret_cast<SharedWithJobs*>(dynamic_shared);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    load_first_job(all.job_buffer, jobs, blockIdx.x);
    for (u32 at = blockIdx.x, turn = 0; at < count; at += gridDim.x, turn ^= 1) {
        const BlockJob job = all.job_buffer.jobs[turn];
        if (warp == 0) prefetch_job(all.job_buffer, jobs, at + gridDim.x, count, turn, job, lane);
        compute_values(all.shared, job, identity_of(job, all.job_buffer.identity), warp, lane);
        u32 state = has_wrong_words(all.shared, warp, lane) ? WRONG_WORDS : 0;
        if (warp == 0) {
            const u64* const given = job.identity != 0 ? all.job_buffer.identity : nullptr;
            state |= check_record(lane, address(job.block) + RECORD_OFFSET, given);
            if (lane == 0) publish_outcome(outcomes + at, state, 0, 0, 0);
        }
    }
}

__device__ __forceinline__ void load_once(const u8* row, u32 lane, u32 (&d)[8]) {
    const uint4 a = __ldcs(reinterpret_cast<const uint4*>(row + 16 * lane));
    const uint4 b = __ldcs(reinterpret_cast<const uint4*>(row + 512 + 16 * lane));
    d[0] = a.x; d[1] = a.y; d[2] = a.z; d[3] = a.w;
    d[4] = b.x; d[5] = b.y; d[6] = b.z; d[7] = b.w;
}

static_assert(CODED_ROWS % AHEAD == 0, "each round takes as many");

// Output of a scan, and its work queue: each warp begins with one block, and then claims the next
// unclaimed one, as warps differ in speed.
struct Sweep {
    u32 found;  // reported blocks; their numbers follow this structure
    u32 claimed;

    __device__ __forceinline__ void report(u32 number) { reinterpret_cast<u32*>(this + 1)[atomicAdd(&found, 1)] = number; }

    // Claims the next block before this one is processed, to hide the latency of the atomic.
    __device__ __forceinline__ u32 claim(u32 lane) { return lane == 0 ? gridDim.x * WARPS + atomicAdd(&claimed, 1) : 0; }
    static __device__ __forceinline__ u32 next(u32 claimed) { return __shfl_sync(ALL, claimed, 0); }
};
static_assert(sizeof(Sweep) == 4 * SWEEP_WORDS, "as the host has it");

// Reports which of many blocks are wrong: codewords, record, or the record's number. A reported
// block may be one that is being changed; the caller checks it again. Each warp processes one block
// after another and has all of its codewords' values at the roots, so no warp waits for another.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
vramfs_scan(u64 base, const u32* numbers, u32 count, Sweep* sweep) {
    const u32 lane = threadIdx.x % 32;
    const u32 warp = (blockIdx.x * THREADS + threadIdx.x) / 32;
    for (u32 at = warp, claimed; at < count; at = Sweep::next(claimed)) {
        claimed = sweep->claim(lane);
        const u32 number = numbers[at];
        const u8* const block = address(base) + u64(number) * BLOCK_BYTES;
        u32 s[8][8] = {}, d[AHEAD][8];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) load_once(block + k * ROW_BYTES, lane, d[k]);
#pragma unroll 1
        for (u32 row = 0; row < CODED_ROWS - AHEAD; row += AHEAD) {
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                horner(s, d[k]);
                load_once(block + (row + AHEAD + k) * ROW_BYTES, lane, d[k]);
            }
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) horner(s, d[k]);
        const u8* const record = block + RECORD_OFFSET;
        const u64* const identity = reinterpret_cast<const u64*>(record + MAGIC_OFFSET + 8);
        const u32 of_mask = factor(identity, lane);
        u32 wrong = identity[0] != number;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            add_to_all(s[j], times(MASK_VALUES[j], of_mask));
#pragma unroll
            for (int b = 0; b < 8; b++) wrong |= s[j][b];
        }
        const bool is_wrong = __any_sync(ALL, wrong != 0) || check_record(lane, record, nullptr) != 0;
        if (is_wrong && lane == 0) sweep->report(number);
    }
}

// Per-warp state of a refresh.
struct RefreshState {
    // Of four rows' checksums, see `bits_of_two`; then checksums, see `join`.
    u32 bits[CODED_ROWS / AHEAD][32];
    uint4 half[32];                    // the second half of the record, without its own checksum
    u8 rows[AHEAD][ROW_BYTES];         // prefetched data rows; each lane reads what it has copied
};

struct SharedToRefresh {
    SumMatrices sums;
    uint4 joins[2][32];
    RefreshState state[WARPS];
};
static_assert(sizeof(SharedToRefresh) == SHARED_TO_REFRESH_BYTES, "as the host has it");
static_assert(AHEAD == 4 && DATA_ROWS % AHEAD == 0, "four rows' bits are a word");
static_assert(MAGIC_OFFSET >= ROW_BYTES / 2 && MAGIC_OFFSET % 16 == 0, "a lane's sixteen bytes are sums or none");

// This lane's bits of the checksums of two rows: eight of the first, and those of the second from
// bit 16 on. The second matrix interprets them, so no row needs a reduction over all lanes.
__device__ __forceinline__ u32 bits_of_two(const SumMatrices& matrices, u32 lane, const u32 (&x)[8], const u32 (&y)[8]) {
    u32 bits = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        // Sequential, as there are too few registers for both.
        __syncwarp();
        u32 of_x[4] = {}, of_y[4] = {};
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint4 a = matrices.fragments[t][h][lane];
            multiply(of_x, a, x[2 * t], x[2 * t + 1]);
            multiply(of_y, a, y[2 * t], y[2 * t + 1]);
        }
        // Each count is at most 1024.
#pragma unroll
        for (int at = 0; at < 4; at++) bits |= (of_x[at] + (of_y[at] << 16)) << (4 * h + at) & 0x10001u << (4 * h + at);
    }
    return bits;
}

// Turns all rows' bits into checksums: those of the rows from 8 g on are stored in `bits[2 g]`.
__device__ __forceinline__ void join(RefreshState& state, const uint4 (&joins)[2][32], u32 lane) {
    const uint4 a[2] = {joins[0][lane], joins[1][lane]};
    const u32 row = lane / 4, byte = row % 2 * 2 + row / 2 % 2, pick = byte | (4 + byte) << 4;
    const auto of_four = [&](const uint4& from) {
        return __byte_perm(__byte_perm(from.x, from.y, pick), __byte_perm(from.z, from.w, pick), 0x5410);
    };
#pragma unroll 1
    for (u32 two = 0; two < CODED_ROWS / AHEAD; two += 2) {
        const uint4* const from = reinterpret_cast<const uint4*>(&state.bits[two + row / 4][lane % 4 * 8]);
        const u32 low = of_four(from[0]), high = of_four(from[1]);
        u32 sums[2] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 c[4] = {};
            multiply(c, a[h], low, high);
#pragma unroll
            for (int at = 0; at < 4; at++) sums[at % 2] |= (c[at] & 1) << (16 * h + 8 * (at / 2));
        }
#pragma unroll
        for (int of = 0; of < 2; of++) {
            sums[of] <<= lane / 4;
#pragma unroll
            for (int by = 4; by < 32; by *= 2) sums[of] |= __shfl_xor_sync(ALL, sums[of], by);
        }
        // All lanes have read their bits, as each contributed to the shuffles.
        if (lane < 4) *reinterpret_cast<uint2*>(&state.bits[two][2 * lane]) = make_uint2(sums[0] ^ SUM_OF_ZEROS, sums[1] ^ SUM_OF_ZEROS);
    }
    __syncwarp();
}

// The CRC32C of a row, with the columns loaded from device memory.
__device__ __forceinline__ u32 sum_once(const SumMatrices& matrices, u32 lane, const u32 (&d)[8]) {
    u32 columns[8];
    load_columns(lane, columns);
    return sum_by_bits(matrices, columns, lane, d);
}

// Recomputes parity, checksums and record from the current data rows; the identity stays. A block
// with a wrong record stays unchanged and is reported. Each warp processes one block after another,
// as in `vramfs_scan`.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
vramfs_refresh(u64 base, const u32* numbers, u32 count, Sweep* sweep) {
    SharedToRefresh& all = *reinterpret_cast<SharedToRefresh*>(dynamic_shared);
    const u32 lane = threadIdx.x % 32;
    for (u32 at = threadIdx.x; at < sizeof(all.sums) / 4; at += THREADS) reinterpret_cast<u32*>(&all.sums)[at] = TABLES.common.fragments[at];
    for (u32 at = threadIdx.x; at < sizeof(all.joins) / 4; at += THREADS) reinterpret_cast<u32*>(all.joins)[at] = JOINS[at];
    __syncthreads();
    RefreshState& state = all.state[threadIdx.x / 32];
    const u64* const words = reinterpret_cast<const u64*>(state.half) + (MAGIC_OFFSET - ROW_BYTES / 2) / 8;
    for (u32 at = (blockIdx.x * THREADS + threadIdx.x) / 32, claimed; at < count; at = Sweep::next(claimed)) {
        claimed = sweep->claim(lane);
        const u32 number = numbers[at];
        u8* const block = address(base) + u64(number) * BLOCK_BYTES;
        u8* const record = block + RECORD_OFFSET;
        // Two rows are requested together, into the place of those consumed two rounds earlier.
        const auto ask_for = [&](u32 row) {
#pragma unroll
            for (u32 part = 0; part < 4; part++) {
                const u32 at = part * (ROW_BYTES / 2) + 16 * lane;
                copy_16(state.rows[row % AHEAD] + at, u64(block + row * ROW_BYTES) + at);
            }
        };
        bool is_wrong;
        {
            u32 r[8];
            load_once(record, lane, r);
#pragma unroll
            for (u32 row = 0; row < AHEAD; row += 2) {
                ask_for(row);
                commit_copies();
            }
            const u32 expected = __shfl_sync(ALL, r[7], 31);
            if (lane == 31) r[7] = 0;
            __syncwarp();
            state.half[lane] = make_uint4(r[4], r[5], r[6], r[7]);
            is_wrong = sum_once(all.sums, lane, r) != expected;
            __syncwarp();
            is_wrong |= words[0] != MAGIC || words[1] != number;
        }
        if (is_wrong) {
            if (lane == 0) sweep->report(number);
            wait_for_copies();
            continue;
        }
        u32 s[8][8] = {};
#pragma unroll 1
        for (u32 row = 0; row < DATA_ROWS; row += AHEAD) {
            u32 bits = 0;
#pragma unroll
            for (u32 k = 0; k < AHEAD; k += 2) {
                u32 d[2][8];
                wait_for_copies_except<1>();
                load(state.rows[k], lane, d[0]);
                load(state.rows[k + 1], lane, d[1]);
                // All of it is in registers before the place is overwritten.
                __syncwarp();
                if (row + AHEAD < DATA_ROWS) ask_for(row + AHEAD + k);
                commit_copies();
                bits |= bits_of_two(all.sums, lane, d[0], d[1]) << 4 * k;
                horner(s, d[0]);
                horner(s, d[1]);
            }
            state.bits[row / AHEAD][lane] = bits;
        }
        const u32 of_mask = factor(words + 1, lane);
#pragma unroll
        for (u32 i = 0; i < 8; i += AHEAD) {
            u32 bits = 0;
#pragma unroll
            for (u32 k = 0; k < AHEAD; k += 2) {
                u32 p[2][8];
#pragma unroll
                for (u32 of = 0; of < 2; of++) {
                    // Common subexpressions of two rows are computed twice: there are too few
                    // registers to keep them.
#pragma unroll
                    for (int at = 0; at < 64; at++) asm volatile("" : "+r"(s[at / 8][at % 8]));
                    parity_of(i + k + of, s, p[of]);
                    add_to_all(p[of], times(MASK[i + k + of], of_mask));
                    store(block + (DATA_ROWS + i + k + of) * ROW_BYTES, lane, p[of]);
                }
                bits |= bits_of_two(all.sums, lane, p[0], p[1]) << 4 * k;
            }
            state.bits[(DATA_ROWS + i) / AHEAD][lane] = bits;
        }
        __syncwarp();
        join(state, all.joins, lane);
        const auto sums = [&](u32 first) { return *reinterpret_cast<const uint4*>(&state.bits[first / 8 * 2][first % 8]); };
        const uint4 a = sums(4 * lane);
        const uint4 b = lane < (MAGIC_OFFSET - ROW_BYTES / 2) / 16 ? sums(ROW_BYTES / 8 + 4 * lane) : state.half[lane];
        u32 r[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const u32 sum = sum_once(all.sums, lane, r);
        if (lane == 31) r[7] = sum;
        store(record, lane, r);
        __syncwarp();
    }
}

// A job that is passed as a launch parameter, with its identity (used if `identity` is not 0).
// Reads of host memory by a kernel queue behind all writes of the device to it. The host has the
// same structure (engine.rs).
struct InlineJob {
    BlockJob job;
    u64 identity[IDENTITY_WORDS];
};

// The jobs of a request, or one job.
template <u32 COUNT>
struct InlineJobs {
    InlineJob all[COUNT];
};

// Copies a job's identity to shared memory, visible after a barrier.
__device__ __forceinline__ void take_identity(const InlineJob& inline_job, u64* given) {
    // By threads that have less to do at first than others.
    const u32 at = THREADS - 1 - threadIdx.x;
    if (at < IDENTITY_WORDS) given[at] = inline_job.identity[at];
}

// Checks the record and some rows of data, by checksums alone; stores the rows to the job's data.
// Several thread blocks share a job's rows; the first checks the record.
__device__ __forceinline__ void check(const InlineJob& inline_job, BlockOutcome* outcomes) {
    __shared__ u32 wrong;
    __shared__ u64 given[IDENTITY_WORDS];
    const BlockJob job = inline_job.job;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u8* const block = address(job.block);
    const u32* const sums = reinterpret_cast<const u32*>(block + RECORD_OFFSET);
    const Sums sum_of_row(TABLES.common, lane);
    if (threadIdx.x == 0) wrong = 0;
    if (blockIdx.y == 0) take_identity(inline_job, given);
    __syncthreads();
    u32 errors = 0;
    for (u32 from = blockIdx.y * WARPS + warp; from < job.rows; from += AHEAD * WARPS * gridDim.y) {
        u32 d[AHEAD][8], expected[AHEAD];
        const auto at = [&](u32 k) { return from + k * WARPS * gridDim.y; };
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++)
            if (at(k) < job.rows) {
                load(block + (job.first + at(k)) * ROW_BYTES, lane, d[k]);
                expected[k] = sums[job.first + at(k)];
            }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++)
            if (at(k) < job.rows) {
                if (job.data != 0) store(address(job.data) + at(k) * ROW_BYTES, lane, d[k]);
                errors += sum_of_row(d[k]) != expected[k];
            }
    }
    if (errors != 0 && lane == 0) atomicAdd(&wrong, errors);
    u32 state = 0;
    if (blockIdx.y == 0 && warp == WARPS - 1)
        state = check_record(sum_of_row, lane, block + RECORD_OFFSET, job.identity != 0 ? given : nullptr);
    __syncthreads();
    if (threadIdx.x == THREADS - 1)
        publish_outcome(outcomes + blockIdx.x * gridDim.y + blockIdx.y, state | (wrong != 0 ? WRONG_ROWS : 0), 0, wrong, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vramfs_check(const __grid_constant__ InlineJobs<INLINE_JOBS_MAX> jobs, BlockOutcome* outcomes) {
    check(jobs.all[blockIdx.x], outcomes);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vramfs_check_one(const __grid_constant__ InlineJobs<1> jobs, BlockOutcome* outcomes) {
    check(jobs.all[0], outcomes);
}

// Rows that `update` processes at once.
constexpr u32 ROUND = WARPS / 2;

// Products of a row with any constant are sums of its bit planes: these are all sums of the lower
// four planes and of the upper four, for each selection.
struct PlaneSums {
    u32 of[2][16][32];
};

__device__ __forceinline__ void store_plane_sums(PlaneSums& to, u32 lane, const u32 (&d)[8]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32* const plane = d + 4 * half;
        u32 sums[16] = {0, plane[0], plane[1], plane[0] ^ plane[1]};
#pragma unroll
        for (int choice = 4; choice < 16; choice++) sums[choice] = choice < 8 ? sums[choice & 3] ^ plane[2] : sums[choice & 7] ^ plane[3];
#pragma unroll
        for (int choice = 0; choice < 16; choice++) to.of[half][choice][lane] = sums[choice];
    }
}

// The shared-memory address of a lane's sum, for `at_place`.
__device__ __forceinline__ u32 place_of(const u32 (&of)[16][32], u32 choice, u32 lane) {
    return u32(__cvta_generic_to_shared(&of[choice][lane]));
}

__device__ __forceinline__ u32 at_place(u32 place) {
    return *reinterpret_cast<const u32*>(__cvta_shared_to_generic(place));
}

// If any thread has found an error, publishes it with the number of wrong rows, and returns true.
__device__ __forceinline__ bool refuse_if_wrong(u32 state, u32 wrong, u32 (&parts)[WARPS], BlockOutcome* outcome) {
    if (!__syncthreads_or(state)) return false;
    state = (__syncthreads_or(state & WRONG_RECORD) ? WRONG_RECORD : 0) | (__syncthreads_or(state & WRONG_IDENTITY) ? WRONG_IDENTITY : 0) |
            (__syncthreads_or(state & WRONG_ROWS) ? WRONG_ROWS : 0) | (__syncthreads_or(state & WRONG_SOURCE) ? WRONG_SOURCE : 0);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = wrong;
    wait_for_copies();
    __syncthreads();
    if (threadIdx.x != 0) return true;
    for (u32 warp = 1; warp < WARPS; warp++) wrong += parts[warp];
    publish_outcome(outcome, state, 0, wrong, 0);
    return true;
}

// Replaces rows of data by the caller's. Parity changes by the contribution of the difference, and
// the record's checksum by that of the changed checksums. Nothing changes if the old rows, the
// parity or the record do not match their checksums, or the caller's rows do not. The transfer over
// the bus takes as long as all else, so everything that does not depend on it is done before it
// completes.
__device__ __forceinline__ void update(const InlineJob& inline_job, BlockOutcome* outcome) {
    __shared__ __align__(sizeof(PlaneSums)) PlaneSums changes[ROUND];
    __shared__ __align__(16) u8 rows[ROUND][ROW_BYTES], fresh[2][ROUND][ROW_BYTES], parity_rows[WARPS][ROW_BYTES], record[ROW_BYTES];
    __shared__ Tables tables;
    __shared__ RowTables of_rows[ROUND];
    __shared__ u32 parts[WARPS];
    __shared__ bool has_other_owners;
    const BlockJob job = inline_job.job;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool lays = warp < ROUND, has_record = warp == WARPS - 1;
    u8* const block = address(job.block);
    const auto is_there = [&](u32 row) { return row < job.rows; };
    // Everything is copied to shared memory, 16 bytes a thread, beginning with some warp.
    const auto piece_from = [&](u32 first) { return 16 * (threadIdx.x - 32 * first); };
    const auto bring = [&](void* to, u64 from, u32 piece) { copy_16(static_cast<u8*>(to) + piece, from + piece); };
    const u32 piece = piece_from(0), row_of_piece = piece / ROW_BYTES;
    static_assert(16 * THREADS == ROUND * ROW_BYTES && sizeof(Tables) == 16 * (THREADS + 128) && sizeof(of_rows) <= 16 * 64, "pieces of 16 bytes a thread");
    // The old rows, and their tables.
    const auto bring_rows = [&](u32 from) {
        if (is_there(from + row_of_piece)) bring(rows, job.block + (job.first + from) * ROW_BYTES, piece);
        const u32 of_tables = piece_from(6);
        if (of_tables < sizeof(of_rows) && is_there(from + of_tables / sizeof(RowTables)))
            bring(of_rows, u64(TABLES.rows) + (job.first + from) * sizeof(RowTables), of_tables);
        commit_copies();
    };
    // The caller's rows, of this round and the next. Later requests do not complete before them.
    const auto bring_fresh = [&](u32 from, u32 turn) {
        if (is_there(from + row_of_piece)) bring(fresh[turn], job.data + from * ROW_BYTES, piece);
        commit_copies();
    };
#pragma unroll
    for (u32 at = 0; at < WARPS; at += ROUND) bring(parity_rows[at], job.block + (DATA_ROWS + at) * ROW_BYTES, piece);
    bring(&tables, u64(&TABLES.common), piece);
    if (warp < 4) bring(&tables, u64(&TABLES.common), piece + 16 * THREADS);
    else if (warp < 6) bring(record, job.block + RECORD_OFFSET, piece_from(4));
    bring_rows(0);
    bring_fresh(0, 0);
    bring_fresh(ROUND, 1);
    // The identity, requested before it is needed, as every lane reads another address.
    const bool has_identity = warp == WARPS - 2 && job.identity != 0;
    u64 identity[(IDENTITY_WORDS + 31) / 32];
    if (has_identity)
#pragma unroll
        for (u32 k = 0; k < (IDENTITY_WORDS + 31) / 32; k++) identity[k] = lane + 32 * k < IDENTITY_WORDS ? inline_job.identity[lane + 32 * k] : 0;
    wait_for_copies_except<2>();
    __syncthreads();
    const Sums sum_of_row(tables, lane);
    u32* const sums = reinterpret_cast<u32*>(record);
    u64* const words = reinterpret_cast<u64*>(record + MAGIC_OFFSET);
    const u32 expected_of_parity = sums[DATA_ROWS + warp];
    // Besides a parity row, a warp has an old row or the record: both are summed at once.
    u32 parity[8], d[8] = {}, state = 0, sum_of_record = 0;
    load(parity_rows[warp], lane, parity);
    if (lays && is_there(warp)) load(rows[warp], lane, d);
    if (has_record) {
        load(record, lane, d);
        sum_of_record = __shfl_sync(ALL, d[7], 31);
        if (lane == 31) d[7] = 0;
        if (words[0] != MAGIC) state |= WRONG_IDENTITY;
    }
    const u32 of_parity = sum_of_row(parity), of_other = sum_of_row(d);
    u32 wrong = of_parity != expected_of_parity;
    if (lays && is_there(warp)) wrong += of_other != sums[job.first + warp];
    if (has_record && of_other != sum_of_record) state |= WRONG_RECORD;
    if (warp == WARPS - 2) {
        // The owners may change, so only number and generation must match.
        bool differs = false;
        if (has_identity)
#pragma unroll
            for (u32 k = 0; k < (IDENTITY_WORDS + 31) / 32; k++) {
                const u32 at = lane + 32 * k;
                if (at >= IDENTITY_WORDS || words[1 + at] == identity[k]) continue;
                differs = true;
                if (at < 2) state |= WRONG_IDENTITY;
            }
        differs = __any_sync(ALL, differs);
        if (lane == 0) has_other_owners = differs;
    }
    // The change of the record's checksum by the checksums that change here.
    u32 part = 0;
    const auto contribute = [&](const u32 (&columns)[32], u32 difference) { part ^= 0u - (difference >> lane & 1) & columns[lane]; };
    u32 now[8];
    u32 from = 0, turn = 0;
#pragma unroll 1
    for (;; from += ROUND, turn ^= 1) {
        const u32 row = job.first + from + warp;
        const bool has_row = lays && is_there(from + warp), is_last = !is_there(from + ROUND);
        if (from != 0 && has_row) {
            load(rows[warp], lane, d);
            wrong += sum_of_row(d) != sums[row];
        }
        if (wrong != 0) state |= WRONG_ROWS;
        if (refuse_if_wrong(state, wrong, parts, outcome)) return;
        // All checks on staged rows have passed: only a failure of the device can lose the write
        // now.
        if (is_last && job.sums == 0 && threadIdx.x == 0) publish_state(outcome, COMMITTED);
        // The addresses of the products with these constants.
        u32 low[ROUND][8], high[ROUND][8];
#pragma unroll
        for (u32 r = 0; r < ROUND; r++) {
            const uint2 choices = is_there(from + r) ? *reinterpret_cast<const uint2*>(of_rows[r].constants[warp]) : make_uint2(0, 0);
#pragma unroll
            for (int o = 0; o < 8; o++) {
                low[r][o] = place_of(changes[r].of[0], choices.x >> 4 * o & 15, lane);
                high[r][o] = place_of(changes[r].of[1], choices.y >> 4 * o & 15, lane);
                // Compute the address here, not at its use.
                asm volatile("" : "+r"(low[r][o]), "+r"(high[r][o]));
            }
        }
        wait_for_copies_except<1>();
        __syncthreads();
        // The caller's rows have arrived.
        if (has_record && from == 0 && has_other_owners) {
            for (u32 at = lane; at < IDENTITY_WORDS; at += 32) words[1 + at] = inline_job.identity[at];
            __syncwarp();
            load(record, lane, d);
            if (lane == 31) d[7] = 0;
            sum_of_record = sum_of_row(d);
        }
        u32 sum = 0;
        if (has_row) {
            load(fresh[turn][warp], lane, now);
#pragma unroll
            for (int b = 0; b < 8; b++) d[b] ^= now[b];
            store_plane_sums(changes[warp], lane, d);
            sum = sum_of_row(now);
            if (has_wrong_sum(job, row, sum)) state |= WRONG_SOURCE;
            contribute(of_rows[warp].columns, sum ^ sums[row]);
        } else if (lays) {
#pragma unroll
            for (int b = 0; b < 8; b++) d[b] = 0;
            store_plane_sums(changes[warp], lane, d);
        }
        if (refuse_if_wrong(state, wrong, parts, outcome)) return;
        if (has_row && lane == 0) sums[row] = sum;
        if (!is_last) {
            bring_rows(from + ROUND);
            bring_fresh(from + 2 * ROUND, turn);
        } else if (has_row) {
            // No thread reads the old rows any more.
            store(block + row * ROW_BYTES, lane, now);
        }
#pragma unroll
        for (u32 r = 0; r < ROUND; r++)
#pragma unroll
            for (int o = 0; o < 8; o++) parity[o] ^= at_place(low[r][o]) ^ at_place(high[r][o]);
        if (is_last) break;
        wait_for_copies_except<1>();
        __syncthreads();
    }
    store(block + (DATA_ROWS + warp) * ROW_BYTES, lane, parity);
    const u32 sum = sum_of_row(parity);
    contribute(tables.of_parity[warp], sum ^ expected_of_parity);
    part = __reduce_xor_sync(ALL, part);
    if (lane == 0) sums[DATA_ROWS + warp] = sum, parts[warp] = part;
    // Rows of earlier rounds are loaded again: an error in between contradicts their checksum and
    // the parity, so it is corrected, or lost, as any other wrong row.
    for (u32 at = warp; at < from; at += WARPS) {
        load(address(job.data) + at * ROW_BYTES, lane, d);
        store(block + (job.first + at) * ROW_BYTES, lane, d);
    }
    __syncthreads();
    if (!has_record) return;
    load(record, lane, d);
    part = __reduce_xor_sync(ALL, lane < WARPS ? parts[lane] : 0);
    if (lane == 31) d[7] = sum_of_record ^ part;
    store(block + RECORD_OFFSET, lane, d);
    __syncwarp();
    if (lane == 0) publish_outcome(outcome, 0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vramfs_update(const __grid_constant__ InlineJobs<INLINE_JOBS_MAX> jobs, BlockOutcome* outcomes) {
    update(jobs.all[blockIdx.x], outcomes + blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
vramfs_update_one(const __grid_constant__ InlineJobs<1> jobs, BlockOutcome* outcomes) {
    update(jobs.all[0], outcomes);
}

// The errors in a codeword.
struct Found {
    u32 count;
    u32 rows[8];
    u32 values[8];
};

// Decodes the word with these values at the roots: `erased` rows, and up to `most` errors
// elsewhere. False if there is no such codeword. Berlekamp-Massey initialised with the erasure
// locator, Chien search, Forney's formula (R. E. Blahut, "Algebraic Codes for Data Transmission",
// chapter 7).
__device__ bool find_wrong(const u32 (&s)[8], const u32* erased, u32 erasures, u32 most, Found& found) {
    u32 locator[9] = {1}, other[9];
    for (u32 k = 0; k < erasures; k++) {
        const u32 x = EXP[CODED_ROWS - 1 - erased[k]];
        for (int i = 8; i > 0; i--) locator[i] ^= times(x, locator[i - 1]);
    }
    for (int i = 0; i < 9; i++) other[i] = locator[i];
    u32 length = erasures;
    for (u32 r = erasures; r < 8; r++) {
        u32 difference = 0;
        for (u32 j = 0; j <= r; j++) difference ^= times(locator[j], s[r - j]);
        for (int i = 8; i > 0; i--) other[i] = other[i - 1];
        other[0] = 0;
        if (difference == 0) continue;
        const bool grows = 2 * length <= r + erasures;
        const u32 scale = inverted(difference);
        for (int i = 0; i < 9; i++) {
            const u32 before = locator[i];
            locator[i] ^= times(difference, other[i]);
            if (grows) other[i] = times(scale, before);
        }
        if (grows) length = r + 1 + erasures - length;
    }
    u32 degree = 8;
    while (locator[degree] == 0) degree--;
    if (degree != length || length > 8 || length - erasures > most) return false;
    u32 evaluator[8];
    for (u32 i = 0; i < 8; i++) {
        evaluator[i] = 0;
        for (u32 j = 0; j <= i; j++) evaluator[i] ^= times(locator[j], s[i - j]);
    }
    found.count = 0;
    for (u32 row = 0; row < CODED_ROWS; row++) {
        const u32 power = CODED_ROWS - 1 - row;
        const u32 x = EXP[(255 - power) % 255];
        u32 value = 0;
        for (int i = 8; i >= 0; i--) value = times(value, x) ^ locator[i];
        if (value != 0) continue;
        if (found.count == length) return false;
        u32 above = 0, below = 0;
        for (int i = 7; i >= 0; i--) above = times(above, x) ^ evaluator[i];
        const u32 square = times(x, x);
        for (int i = 7; i > 0; i -= 2) below = times(below, square) ^ locator[i];
        if (below == 0) return false;
        // The power 1 minus the exponent of the first root.
        const u32 factor = EXP[power * (1 - FIRST_ROOT) % 255];
        found.rows[found.count] = row;
        found.values[found.count] = times(times(above, factor), inverted(below));
        found.count++;
    }
    return found.count == length;
}

// Decodes each word and, if `changes` is set, flips the wrong bits, which also undoes an earlier
// correction. Returns whether every word could be decoded, for every thread.
__device__ bool sweep(Shared& shared, u8* block, u32 erasures, u32 most, bool changes) {
    bool all = true;
    u32 symbols = 0, words = 0;
    for (u32 word = threadIdx.x; word < WORDS; word += THREADS) {
        const u32 lane = word / 32, bit = word % 32;
        u32 s[8], any = 0;
        for (int j = 0; j < 8; j++) {
            s[j] = 0;
            for (int b = 0; b < 8; b++) s[j] |= (shared.values[j][b][lane] >> bit & 1) << b;
            any |= s[j];
        }
        if (any == 0) continue;
        words++;
        Found found;
        if (!find_wrong(s, shared.erased, erasures, most, found)) {
            all = false;
            continue;
        }
        for (u32 at = 0; at < found.count; at++) {
            symbols += found.values[at] != 0;
            if (!changes) continue;
            u8* const row = block + found.rows[at] * ROW_BYTES + 16 * lane;
            for (int b = 0; b < 8; b++)
                if (found.values[at] >> b & 1)
                    atomicXor(reinterpret_cast<u32*>(row + 512 * (b / 4) + 4 * (b % 4)), 1u << bit);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.symbols = shared.words = 0;
    __syncthreads();
    atomicAdd(&shared.symbols, symbols);
    atomicAdd(&shared.words, words);
    return __syncthreads_and(all);
}

// Counts the rows that do not match their checksums, for every thread; up to eight of them are
// listed in `named`.
__device__ u32 wrong_rows(Shared& shared, const u8* block, u32 warp, u32 lane, u32* named) {
    const u32* const sums = reinterpret_cast<const u32*>(block + RECORD_OFFSET);
    __syncthreads();
    if (threadIdx.x == 0) shared.sums_wrong = 0;
    __syncthreads();
    for (u32 row = warp; row < CODED_ROWS; row += WARPS) {
        u32 d[8];
        load(block + row * ROW_BYTES, lane, d);
        const u32 sum = sum_of(SUMS, lane, d);
        if (lane == 0 && sum != sums[row]) {
            const u32 at = atomicAdd(&shared.sums_wrong, 1);
            if (named != nullptr && at < 8) named[at] = row;
        }
    }
    __syncthreads();
    return shared.sums_wrong;
}

// Recomputes the checksums of all rows, and the record.
__device__ void recompute_record(const BlockJob& job, u32 warp, u32 lane) {
    u8* const block = address(job.block);
    u8* const record = block + RECORD_OFFSET;
    __syncthreads();
    for (u32 row = warp; row < CODED_ROWS; row += WARPS) {
        u32 d[8];
        load(block + row * ROW_BYTES, lane, d);
        const u32 sum = sum_of(SUMS, lane, d);
        if (lane == 0) reinterpret_cast<u32*>(record)[row] = sum;
    }
    __syncthreads();
    if (warp == 0) finish_record(lane, record, job.identity);
}

// Recomputes parity from the data, which is correct.
__device__ void recompute_parity(Shared& shared, const BlockJob& job, u32 warp, u32 lane) {
    u8* const block = address(job.block);
    __syncthreads();
    if (threadIdx.x == 0) shared.symbols = 0;
    u32 s[8][8] = {};
    for (u32 at = 0; at < DATA_ROWS / WARPS; at++) {
        u32 d[8];
        load(block + (warp * (DATA_ROWS / WARPS) + at) * ROW_BYTES, lane, d);
        horner(s, d);
    }
    combine<DATA_ROWS / WARPS>(shared, warp, lane, s, 0);
    u32 parity[8];
    finish_parity(shared, job, identity_of(job), warp, lane, parity);
}

// Corrects errors: up to three wrong symbols a codeword; four; then up to eight in the rows with
// wrong checksums. A correction that the checksums do not confirm is undone. If all codewords are
// valid, the rows are correct even if up to eight checksums differ: no other codeword is as near.
// If the checksums of all data rows match, the data is correct. If the record is lost, there is no
// confirmation: then up to three wrong symbols are corrected, and only if the caller supplies the
// identity. A block of another identity stays unchanged.
extern "C" __global__ void __launch_bounds__(THREADS)
vramfs_correct(const BlockJob* jobs, BlockOutcome* outcomes) {
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
    BlockJob job = jobs[blockIdx.x];
    job.data = 0;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u8* const block = address(job.block);
    compute_values(shared, job, identity_of(job), warp, lane);
    u32 state = has_wrong_words(shared, warp, lane) ? WRONG_WORDS : 0;
    // One warp checks, so that all threads branch alike.
    const u32 of_record = check_record(lane, block + RECORD_OFFSET, reinterpret_cast<const u64*>(job.identity));
    if (threadIdx.x == 0) shared.sums_wrong = of_record;
    __syncthreads();
    state |= shared.sums_wrong;
    const bool has_record = (state & WRONG_RECORD) == 0;
    const u32 rows = has_record ? wrong_rows(shared, block, warp, lane, shared.erased) : 0;
    if (rows != 0) state |= WRONG_ROWS;
    u32 rows_of_data = 0;
    for (u32 at = 0; at < (rows < 8 ? rows : 8); at++) rows_of_data += shared.erased[at] < DATA_ROWS;
    if (threadIdx.x == 0) shared.symbols = shared.words = 0;
    __syncthreads();
    bool is_right = false;
    if (state == 0) {
        is_right = true;
    } else if (has_record && (state & WRONG_IDENTITY) != 0) {
        // Another block's.
    } else if (!has_record) {
        if (job.identity != 0 && sweep(shared, block, 0, 3, false)) {
            sweep(shared, block, 0, 3, true);
            recompute_record(job, warp, lane);
            is_right = true;
        }
    } else if ((state & WRONG_WORDS) == 0) {
        if (rows <= 8) {
            recompute_record(job, warp, lane);
            is_right = true;
        }
    } else {
        for (u32 way = 0; way < 3 && !is_right; way++) {
            const u32 erasures = way == 2 ? rows : 0;
            if (way == 2 && rows > 8) break;
            const u32 most = way == 2 ? (8 - erasures) / 2 : 3 + way;
            if (!sweep(shared, block, erasures, most, false)) continue;
            sweep(shared, block, erasures, most, true);
            is_right = wrong_rows(shared, block, warp, lane, nullptr) == 0;
            if (!is_right) sweep(shared, block, erasures, most, true);
        }
        if (!is_right && rows <= 8 && rows_of_data == 0) {
            recompute_parity(shared, job, warp, lane);
            recompute_record(job, warp, lane);
            is_right = true;
        }
    }
    __syncthreads();
    if (state != 0) state |= is_right ? CORRECTED : LOST;
    if (threadIdx.x == 0) publish_outcome(outcomes + blockIdx.x, state, is_right ? shared.symbols : 0, rows, shared.words);
}
