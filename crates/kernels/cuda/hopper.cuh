// Instructions of sm_90a: mbarriers, copies by tensor maps, products of warpgroups, and clusters.
#pragma once
#include "common.cuh"

// What cuTensorMapEncodeTiled writes: where a tensor is, and the box that a copy moves.
struct __align__(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ u32 shared_address(const void* place) {
    return (u32)__cvta_generic_to_shared(place);
}

// The same place in a block of the cluster.
__device__ __forceinline__ u32 shared_address_of(const void* place, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(place)), "r"(rank));
    return there;
}

// Stores 16 bytes in the shared memory of a block of the cluster.
__device__ __forceinline__ void store_four(u32 there, float4 four) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(four.x),
                 "f"(four.y), "f"(four.z), "f"(four.w)
                 : "memory");
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster, and publishes what each wrote.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// Waits for the threads of one of the barriers 1 to 15.
__device__ __forceinline__ void sync_some(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// An mbarrier: a phase ends when the expected arrivals have come, and the bytes that they announced.
struct Barrier {
    u64 state;

    __device__ __forceinline__ void start(u32 arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)),
                     "r"(arrivals)
                     : "memory");
    }

    // Arrives, and announces bytes that copies bring.
    __device__ __forceinline__ void expect(u32 bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                         shared_address(&state)),
                     "r"(bytes)
                     : "memory");
    }

    // Arrives at the barrier at this place of a block of the cluster. What this thread wrote is not
    // published to that block: a release to the cluster costs more than the products of a slot.
    __device__ __forceinline__ void arrive_at(u32 rank) {
        asm volatile("{\n"
                     ".reg .b32 there;\n"
                     "mapa.shared::cluster.u32 there, %0, %1;\n"
                     "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                     "}" ::"r"(shared_address(&state)),
                     "r"(rank)
                     : "memory");
    }

    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state))
                     : "memory");
    }

    // Waits until the phase of that parity has ended.
    template <bool OF_CLUSTER>
    __device__ __forceinline__ void wait(u32 parity) {
        const u32 place = shared_address(&state);
        u32 is_over;
        do {
            if (OF_CLUSTER) {
                asm volatile("{\n"
                             ".reg .pred over;\n"
                             "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, "
                             "[%1], %2;\n"
                             "selp.u32 %0, 1, 0, over;\n"
                             "}"
                             : "=r"(is_over)
                             : "r"(place), "r"(parity)
                             : "memory");
            } else {
                asm volatile("{\n"
                             ".reg .pred over;\n"
                             "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                             "selp.u32 %0, 1, 0, over;\n"
                             "}"
                             : "=r"(is_over)
                             : "r"(place), "r"(parity)
                             : "memory");
            }
        } while (is_over == 0);
    }
};

// Arrives at one of the barriers 1 to 15, for which others wait.
__device__ __forceinline__ void arrive_some(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Makes initialised barriers known to the cluster and to copies.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders what this thread wrote to shared memory before copies that follow.
__device__ __forceinline__ void publish_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies a box of three or four dimensions to shared memory; its bytes arrive at `barrier`.
__device__ __forceinline__ void load_box(void* to, const TensorMap& map, Barrier& barrier, int x,
                                         int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(shared_address(&barrier.state)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void load_box(void* to, const TensorMap& map, Barrier& barrier, int x,
                                         int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(shared_address(&barrier.state)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// The same, to this place of each block of the cluster whose bit is set.
__device__ __forceinline__ void load_box_to_all(void* to, const TensorMap& map, Barrier& barrier,
                                                u16 blocks, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
                 "l"(&map), "r"(shared_address(&barrier.state)), "r"(x), "r"(y), "r"(z),
                 "h"(blocks)
                 : "memory");
}

// Copies a box from shared memory, of the part inside the tensor.
__device__ __forceinline__ void store_box(const TensorMap& map, const void* from, int x, int y,
                                          int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
                 " [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, const void* from, int x, int y, int z,
                                          int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
                 " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read shared memory.
__device__ __forceinline__ void wait_for_reads_of_stores() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Registers of each thread of a warpgroup, which all its warps change.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps uses of sums behind the wait for their products.
template <int COUNT>
__device__ __forceinline__ void settle(float (&sums)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Describes a factor in shared memory, in lines of 128 bytes whose chunks of 16 are swizzled by the
// line's number, eight lines after eight. Parts of 64 elements across the depth, of a factor whose
// lines go along them, are `part` bytes apart.
__device__ __forceinline__ u64 factor_of(const void* place, u32 part) {
    const u64 first = (shared_address(place) & 0x3ffff) >> 4;
    return first | (u64)(part >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Operands of an instruction for sums of so many columns: registers, their names, and the numbers of
// what follows them. Each list is that of 16 columns fewer with eight more.
#define REGISTERS_8(d, at)                                                           \
    "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), \
        "+f"(d[at + 5]), "+f"(d[at + 6]), "+f"(d[at + 7])
#define REGISTERS_16(d) REGISTERS_8(d, 0)
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define FACTORS_16 "%8, %9"
#define ADDS_16 "%10"
#define ACROSS_16 "%11, %12"
#define FRAGMENT_16 "{%8, %9, %10, %11}, %12"
#define FRAGMENT_ADDS_16 "%13"
#define FRAGMENT_ACROSS_16 "%14"
#define REGISTERS_32(d) REGISTERS_16(d), REGISTERS_8(d, 8)
#define NAMES_32 NAMES_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define FACTORS_32 "%16, %17"
#define ADDS_32 "%18"
#define ACROSS_32 "%19, %20"
#define FRAGMENT_32 "{%16, %17, %18, %19}, %20"
#define FRAGMENT_ADDS_32 "%21"
#define FRAGMENT_ACROSS_32 "%22"
#define REGISTERS_48(d) REGISTERS_32(d), REGISTERS_8(d, 16)
#define NAMES_48 NAMES_32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define FACTORS_48 "%24, %25"
#define ADDS_48 "%26"
#define ACROSS_48 "%27, %28"
#define FRAGMENT_48 "{%24, %25, %26, %27}, %28"
#define FRAGMENT_ADDS_48 "%29"
#define FRAGMENT_ACROSS_48 "%30"
#define REGISTERS_64(d) REGISTERS_48(d), REGISTERS_8(d, 24)
#define NAMES_64 NAMES_48 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define FACTORS_64 "%32, %33"
#define ADDS_64 "%34"
#define ACROSS_64 "%35, %36"
#define FRAGMENT_64 "{%32, %33, %34, %35}, %36"
#define FRAGMENT_ADDS_64 "%37"
#define FRAGMENT_ACROSS_64 "%38"
#define REGISTERS_80(d) REGISTERS_64(d), REGISTERS_8(d, 32)
#define NAMES_80 NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define FACTORS_80 "%40, %41"
#define ADDS_80 "%42"
#define ACROSS_80 "%43, %44"
#define FRAGMENT_80 "{%40, %41, %42, %43}, %44"
#define FRAGMENT_ADDS_80 "%45"
#define FRAGMENT_ACROSS_80 "%46"
#define REGISTERS_96(d) REGISTERS_80(d), REGISTERS_8(d, 40)
#define NAMES_96 NAMES_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FACTORS_96 "%48, %49"
#define ADDS_96 "%50"
#define ACROSS_96 "%51, %52"
#define FRAGMENT_96 "{%48, %49, %50, %51}, %52"
#define FRAGMENT_ADDS_96 "%53"
#define FRAGMENT_ACROSS_96 "%54"
#define REGISTERS_112(d) REGISTERS_96(d), REGISTERS_8(d, 48)
#define NAMES_112 NAMES_96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define FACTORS_112 "%56, %57"
#define ADDS_112 "%58"
#define ACROSS_112 "%59, %60"
#define FRAGMENT_112 "{%56, %57, %58, %59}, %60"
#define FRAGMENT_ADDS_112 "%61"
#define FRAGMENT_ACROSS_112 "%62"
#define REGISTERS_128(d) REGISTERS_112(d), REGISTERS_8(d, 56)
#define NAMES_128 NAMES_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define FACTORS_128 "%64, %65"
#define ADDS_128 "%66"
#define ACROSS_128 "%67, %68"
#define FRAGMENT_128 "{%64, %65, %66, %67}, %68"
#define FRAGMENT_ADDS_128 "%69"
#define FRAGMENT_ACROSS_128 "%70"
#define REGISTERS_144(d) REGISTERS_128(d), REGISTERS_8(d, 64)
#define NAMES_144 NAMES_128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define FACTORS_144 "%72, %73"
#define ADDS_144 "%74"
#define ACROSS_144 "%75, %76"
#define FRAGMENT_144 "{%72, %73, %74, %75}, %76"
#define FRAGMENT_ADDS_144 "%77"
#define FRAGMENT_ACROSS_144 "%78"
#define REGISTERS_160(d) REGISTERS_144(d), REGISTERS_8(d, 72)
#define NAMES_160 NAMES_144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define FACTORS_160 "%80, %81"
#define ADDS_160 "%82"
#define ACROSS_160 "%83, %84"
#define FRAGMENT_160 "{%80, %81, %82, %83}, %84"
#define FRAGMENT_ADDS_160 "%85"
#define FRAGMENT_ACROSS_160 "%86"
#define REGISTERS_176(d) REGISTERS_160(d), REGISTERS_8(d, 80)
#define NAMES_176 NAMES_160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define FACTORS_176 "%88, %89"
#define ADDS_176 "%90"
#define ACROSS_176 "%91, %92"
#define FRAGMENT_176 "{%88, %89, %90, %91}, %92"
#define FRAGMENT_ADDS_176 "%93"
#define FRAGMENT_ACROSS_176 "%94"
#define REGISTERS_192(d) REGISTERS_176(d), REGISTERS_8(d, 88)
#define NAMES_192 NAMES_176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define FACTORS_192 "%96, %97"
#define ADDS_192 "%98"
#define ACROSS_192 "%99, %100"
#define FRAGMENT_192 "{%96, %97, %98, %99}, %100"
#define FRAGMENT_ADDS_192 "%101"
#define FRAGMENT_ACROSS_192 "%102"
#define REGISTERS_208(d) REGISTERS_192(d), REGISTERS_8(d, 96)
#define NAMES_208 NAMES_192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define FACTORS_208 "%104, %105"
#define ADDS_208 "%106"
#define ACROSS_208 "%107, %108"
#define FRAGMENT_208 "{%104, %105, %106, %107}, %108"
#define FRAGMENT_ADDS_208 "%109"
#define FRAGMENT_ACROSS_208 "%110"
#define REGISTERS_224(d) REGISTERS_208(d), REGISTERS_8(d, 104)
#define NAMES_224 NAMES_208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define FACTORS_224 "%112, %113"
#define ADDS_224 "%114"
#define ACROSS_224 "%115, %116"
#define FRAGMENT_224 "{%112, %113, %114, %115}, %116"
#define FRAGMENT_ADDS_224 "%117"
#define FRAGMENT_ACROSS_224 "%118"
#define REGISTERS_240(d) REGISTERS_224(d), REGISTERS_8(d, 112)
#define NAMES_240 NAMES_224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define FACTORS_240 "%120, %121"
#define ADDS_240 "%122"
#define ACROSS_240 "%123, %124"
#define FRAGMENT_240 "{%120, %121, %122, %123}, %124"
#define FRAGMENT_ADDS_240 "%125"
#define FRAGMENT_ACROSS_240 "%126"
#define REGISTERS_256(d) REGISTERS_240(d), REGISTERS_8(d, 120)
#define NAMES_256 NAMES_240 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define FACTORS_256 "%128, %129"
#define ADDS_256 "%130"
#define ACROSS_256 "%131, %132"
#define FRAGMENT_256 "{%128, %129, %130, %131}, %132"
#define FRAGMENT_ADDS_256 "%133"
#define FRAGMENT_ACROSS_256 "%134"

template <typename T, int WIDTH>
struct WarpgroupProduct;

// sums += left * right, or = where `adds` is 0, of 64 rows, so many columns and a depth of 16.
// Thread t of the warpgroup has, at 4 j + 2 h + i, row t / 32 * 16 + t % 32 / 4 + 8 h of column
// 8 j + t % 4 * 2 + i. The sums are there once the group was waited for.
#define DEFINE_PRODUCT_OF(T, type, columns)                                                        \
    template <>                                                                                    \
    struct WarpgroupProduct<T, columns> {                                                          \
        template <int LEFT_ACROSS, int RIGHT_ACROSS>                                               \
        static __device__ __forceinline__ void multiply(float (&d)[columns / 2], u64 left,         \
                                                        u64 right, u32 adds) {                     \
            asm volatile("{\n"                                                                     \
                         ".reg .pred adds;\n"                                                      \
                         "setp.ne.b32 adds, " ADDS_##columns                                       \
                         ", 0;\n"                                                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type     \
                         " {" NAMES_##columns "}, " FACTORS_##columns                              \
                         ", adds, 1, 1, " ACROSS_##columns                                         \
                         ";\n"                                                                     \
                         "}"                                                                       \
                         : REGISTERS_##columns(d)                                                  \
                         : "l"(left), "l"(right), "r"(adds), "n"(LEFT_ACROSS), "n"(RIGHT_ACROSS)   \
                         : "memory");                                                              \
        }                                                                                          \
    };

// The same with a left factor in registers: as sums of 16 columns have it, in pairs.
template <typename T, int WIDTH>
struct FragmentProduct;

#define DEFINE_FRAGMENT_OF(T, type, columns)                                                        \
    template <>                                                                                    \
    struct FragmentProduct<T, columns> {                                                           \
        template <int RIGHT_ACROSS>                                                                \
        static __device__ __forceinline__ void multiply(float (&d)[columns / 2], const u32* left,  \
                                                        u64 right, u32 adds) {                     \
            asm volatile("{\n"                                                                     \
                         ".reg .pred adds;\n"                                                      \
                         "setp.ne.b32 adds, " FRAGMENT_ADDS_##columns                              \
                         ", 0;\n"                                                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type     \
                         " {" NAMES_##columns "}, " FRAGMENT_##columns                             \
                         ", adds, 1, 1, " FRAGMENT_ACROSS_##columns                                \
                         ";\n"                                                                     \
                         "}"                                                                       \
                         : REGISTERS_##columns(d)                                                  \
                         : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),      \
                           "r"(adds), "n"(RIGHT_ACROSS)                                            \
                         : "memory");                                                              \
        }                                                                                          \
    };
#define DEFINE_FRAGMENT_PRODUCT(columns)     \
    DEFINE_FRAGMENT_OF(Half, "f16", columns) \
    DEFINE_FRAGMENT_OF(Bfloat, "bf16", columns)

// For a number of columns that is a macro.
#define DEFINE_WARPGROUP_PRODUCT(columns)     \
    DEFINE_PRODUCT_OF(Half, "f16", columns)   \
    DEFINE_PRODUCT_OF(Bfloat, "bf16", columns)
